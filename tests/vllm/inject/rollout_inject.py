"""Harm to a vLLM engine from inside a step, its next one: a file of that name in ROLLOUT_INJECT_DIR asks for it once. Memory runs
out inside the model, with `oom-1` inside the share of the second worker that it is spread over.

vLLM loads this as a plug-in of the engine's own processes, in no certain order with others, so what is harmed is what a step
does: whoever watches steps sees it. For tests alone.
"""

import os
import time


def install() -> None:
    directory = os.environ.get("ROLLOUT_INJECT_DIR")
    if not directory:
        return
    import torch
    from vllm.distributed import get_tensor_model_parallel_rank
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    def taken(what: str) -> bool:
        try:
            os.rename(f"{directory}/{what}", f"{directory}/{what}.{os.getpid()}")
        except FileNotFoundError:
            return False
        return True

    schedule = Scheduler.schedule

    def harmed(self, *args, **kwargs):
        if taken("abort"):
            os.abort()
        if taken("hang"):
            time.sleep(3600)
        return schedule(self, *args, **kwargs)

    Scheduler.schedule = harmed

    execute_model = GPUModelRunner.execute_model

    def starved(self, *args, **kwargs):
        if taken("oom") or taken(f"oom-{get_tensor_model_parallel_rank()}"):
            raise torch.OutOfMemoryError("injected: CUDA out of memory")
        return execute_model(self, *args, **kwargs)

    GPUModelRunner.execute_model = starved
