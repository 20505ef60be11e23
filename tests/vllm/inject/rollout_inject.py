"""Harm to a vLLM engine from inside, at its next step: a file of that name in ROLLOUT_INJECT_DIR asks for it once.

vLLM loads this as a plug-in of the engine's own process. For tests alone.
"""

import os
import time


def install() -> None:
    directory = os.environ.get("ROLLOUT_INJECT_DIR")
    if not directory:
        return
    import torch
    from vllm.v1.engine.core import EngineCore

    def taken(what: str) -> bool:
        try:
            os.rename(f"{directory}/{what}", f"{directory}/{what}.{os.getpid()}")
        except FileNotFoundError:
            return False
        return True

    step = EngineCore.step

    def harmed(self):
        if taken("oom"):
            raise torch.OutOfMemoryError("injected: CUDA out of memory")
        if taken("abort"):
            os.abort()
        if taken("hang"):
            time.sleep(3600)
        return step(self)

    EngineCore.step = harmed
