"""Owns: what is noted of an exception inside vLLM's own processes, which tell their front end only that they are dead.

vLLM loads this as a plug-in (`vllm.general_plugins`) in its core's process and in its workers'. Does nothing where no agent
asked for a crash file.
Invariant: an exception goes on as it came. The first that is noted is believed.
Absent: the front end's own exceptions (`engine_host`).
"""

from __future__ import annotations

import os
from typing import Any

from rollout import failures


def install() -> None:
    """Watches the steps of a core, and what workers answer it."""
    if not os.environ.get(failures.CRASH_FILE_ENV):
        return
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor.multiproc_executor import WorkerProc

    if getattr(EngineCore, "_rollout_watched", False):
        return
    EngineCore._rollout_watched = True
    for name in ("step", "step_with_batch_queue"):
        setattr(EngineCore, name, noting(getattr(EngineCore, name)))
    handle_output = WorkerProc.handle_output

    def handled(self: Any, output: Any) -> Any:
        if isinstance(output, BaseException):
            failures.leave_crash_file(output)
        return handle_output(self, output)

    WorkerProc.handle_output = handled


def noting(step: Any) -> Any:
    """The same step; what it raises is left for the agent."""

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return step(self, *args, **kwargs)
        except BaseException as error:
            failures.leave_crash_file(error)
            raise

    return noted
