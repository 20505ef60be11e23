"""Harm to a vLLM engine from inside a step, its next one: a file of that name in ROLLOUT_INJECT_DIR asks for it once.

vLLM loads this as a plug-in of the engine's own process, in no certain order with others, so what is harmed is what a step
does: whoever watches steps sees it. For tests alone.
"""

import os
import time


def install() -> None:
    directory = os.environ.get("ROLLOUT_INJECT_DIR")
    if not directory:
        return
    import torch
    from vllm.v1.core.sched.scheduler import Scheduler

    def taken(what: str) -> bool:
        try:
            os.rename(f"{directory}/{what}", f"{directory}/{what}.{os.getpid()}")
        except FileNotFoundError:
            return False
        return True

    schedule = Scheduler.schedule

    def harmed(self, *args, **kwargs):
        if taken("oom"):
            raise torch.OutOfMemoryError("injected: CUDA out of memory")
        if taken("abort"):
            os.abort()
        if taken("hang"):
            time.sleep(3600)
        return schedule(self, *args, **kwargs)

    Scheduler.schedule = harmed
