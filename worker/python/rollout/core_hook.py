"""Owns: what is noted of an exception inside vLLM's own processes, which tell their front end only that they are dead.

vLLM loads this as a plug-in (`vllm.general_plugins`) in its core's process and in its workers'. Does nothing where no agent
asked for a crash file.
Invariant: an exception goes on as it came. The first that is noted is believed, unless a worker was killed: what the others
met then came of that. A worker that fails where vLLM asks another for the answer ends, for its others wait for it for ever.
Absent: the front end's own exceptions (`engine_host`).
"""

from __future__ import annotations

import os
import sys
import traceback
from multiprocessing import connection
from typing import Any

from rollout import failures

# What every worker does in a step, each with its share of the model.
STEPS = ("execute_model", "sample_tokens")
# How long the end of a worker is waited for, of which a core's own exception may have come.
WORKER_END_S = 0.5


def install() -> None:
    """Watches the steps of a core and of its workers, and how these end."""
    if not os.environ.get(failures.CRASH_FILE_ENV):
        return
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor, WorkerProc
    from vllm.v1.outputs import AsyncModelRunnerOutput
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    if getattr(EngineCore, "_rollout_watched", False):
        return
    EngineCore._rollout_watched = True
    for name in ("step", "step_with_batch_queue"):
        setattr(EngineCore, name, noting_step(getattr(EngineCore, name)))
    for name in STEPS:
        setattr(WorkerWrapperBase, name, noting(getattr(WorkerWrapperBase, name, None) or of_worker(name)))
    WorkerProc.enqueue_output = noting_output(WorkerProc.enqueue_output, AsyncModelRunnerOutput)
    WorkerProc._execute_worker_rpc = ending(WorkerProc._execute_worker_rpc)
    MultiprocExecutor.shutdown = noting_ends(MultiprocExecutor.shutdown)


def noting(step: Any) -> Any:
    """The same step of a worker; what it raises is left for the agent."""

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return step(self, *args, **kwargs)
        except Exception as error:
            self._rollout_failed = True
            failures.leave_crash_file(error)
            raise

    return noted


def of_worker(name: str) -> Any:
    """What vLLM's wrapper of a worker has of the worker itself."""
    return lambda self, *args, **kwargs: getattr(self.worker, name)(*args, **kwargs)


def noting_output(enqueue: Any, unfinished: type) -> Any:
    """The same way of a worker's answer to its core. An answer that is still being made is waited for here, as vLLM would."""

    def noted(self: Any, output: Any) -> Any:
        if isinstance(output, unfinished):
            try:
                output = output.get_output()
            except Exception as error:
                traceback.print_exception(error)
                output = error
        if isinstance(output, Exception):
            failures.leave_crash_file(output)
        return enqueue(self, output)

    return noted


def ending(execute: Any) -> Any:
    """The same call of a worker. vLLM hears of a step's failure only from the worker that it asks for the answer; that one
    waits in its next exchange with the worker that failed. So this process ends, which vLLM does see."""

    def executed(self: Any, request: tuple[Any, ...]) -> None:
        execute(self, request)
        _, _, _, asked = request
        if asked != self.rank and getattr(self.worker, "_rollout_failed", False):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

    return executed


def noting_step(step: Any) -> Any:
    """The same step of a core; what it raises is left for the agent, or the end of the worker that it came of."""

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return step(self, *args, **kwargs)
        except BaseException as error:
            note_ends(getattr(self, "model_executor", None), WORKER_END_S)
            failures.leave_crash_file(error)
            raise

    return noted


def noting_ends(shutdown: Any) -> Any:
    """The same end of an executor; how a worker ended that was not told to is left for the agent."""

    def noted(self: Any) -> Any:
        # Later vLLM has ended workers itself.
        if not getattr(self, "shutting_down", False):
            note_ends(self, 0)
        return shutdown(self)

    return noted


def note_ends(executor: Any, patience_s: float) -> None:
    """Leaves word of a worker that has ended. Where one was killed, no exception explains more."""
    from vllm.v1.engine.exceptions import EngineDeadError

    workers = [worker.proc for worker in getattr(executor, "workers", None) or ()]
    if not workers:
        return
    connection.wait([worker.sentinel for worker in workers], patience_s)
    codes = [worker.exitcode for worker in workers]
    if died := next((code for code in codes if code), None):
        failures.leave_crash_file(EngineDeadError(), died)
