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
    """Watches the steps of a core, what its workers answer, and how they end."""
    if not os.environ.get(failures.CRASH_FILE_ENV):
        return
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor, WorkerProc

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
    MultiprocExecutor.shutdown = noting_worker(MultiprocExecutor.shutdown)


def noting_worker(shutdown: Any) -> Any:
    """The same end of an executor; where it is one of a worker that died, how that ended is left for the agent. By then no other
    worker has been ended."""
    from vllm.v1.engine.exceptions import EngineDeadError

    def noted(self: Any) -> Any:
        if getattr(self, "is_failed", False):
            ends = [worker.proc.exitcode for worker in getattr(self, "workers", None) or ()]
            if died := next((code for code in ends if code), None):
                failures.leave_crash_file(EngineDeadError(), died)
        return shutdown(self)

    return noted


def noting(step: Any) -> Any:
    """The same step; what it raises is left for the agent."""

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return step(self, *args, **kwargs)
        except BaseException as error:
            failures.leave_crash_file(error)
            raise

    return noted
