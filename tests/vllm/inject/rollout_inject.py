"""Injects faults into a vLLM engine inside its next step: a file named after the fault in ROLLOUT_INJECT_DIR
requests it once. Memory runs out inside the model; with `oom-1`, inside the share of the second worker that the
model is spread over.

vLLM loads this as a plug-in of the engine's own processes, in no fixed order with others. So the fault is injected
into a step itself, where code that watches steps sees it. For tests only.
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
