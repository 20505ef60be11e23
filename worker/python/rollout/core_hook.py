"""Owns: the record of exceptions inside vLLM's own processes, which tell their front end only that they are dead.

vLLM loads this as a plug-in (`vllm.general_plugins`) in its core's process and in its workers' processes. It does
nothing unless an agent asked for a crash file.
Invariant: an exception propagates unchanged. The first recorded one counts, unless a worker was killed: the others'
exceptions are then its consequence. If a worker fails while vLLM waits for another one's answer, this process ends,
because the other workers would wait for it forever.
Absent: the front end's own exceptions (`engine_host`).
"""

from __future__ import annotations

import os
import sys
import traceback
from multiprocessing import connection
from typing import Any

from rollout import failures

# The methods that every worker runs in a step, each with its share of the model.
STEPS = ("execute_model", "sample_tokens")
# How long to wait for a worker's end, which may have caused a core's own exception.
WORKER_END_S = 0.5


def install() -> None:
    """Wraps the steps of a core and of its workers, and their ends."""
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
    """The same step of a worker, with its exceptions recorded for the agent."""

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return step(self, *args, **kwargs)
        except Exception as error:
            self._rollout_failed = True
            failures.leave_crash_file(error)
            raise

    return noted


def of_worker(name: str) -> Any:
    """The worker inside vLLM's wrapper."""
    return lambda self, *args, **kwargs: getattr(self.worker, name)(*args, **kwargs)


def noting_output(enqueue: Any, unfinished: type) -> Any:
    """The same path of a worker's answer to its core. It waits for an unfinished answer here, as vLLM would."""

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
    """The same call of a worker. vLLM learns of a step's failure only from the worker whose answer it waits for, and
    that one waits in its next exchange with the failed worker. So this process ends, which vLLM does notice."""

    def executed(self: Any, request: tuple[Any, ...]) -> None:
        execute(self, request)
        _, _, _, asked = request
        if asked != self.rank and getattr(self.worker, "_rollout_failed", False):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

    return executed


def noting_step(step: Any) -> Any:
    """The same step of a core, with its exception, or the worker's end that caused it, recorded for the agent."""

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return step(self, *args, **kwargs)
        except BaseException as error:
            note_ends(getattr(self, "model_executor", None), WORKER_END_S)
            failures.leave_crash_file(error)
            raise

    return noted


def noting_ends(shutdown: Any) -> Any:
    """The same end of an executor; an unexpected end of a worker is recorded for the agent."""

    def noted(self: Any) -> Any:
        # After this, vLLM itself has ended workers.
        if not getattr(self, "shutting_down", False):
            note_ends(self, 0)
        return shutdown(self)

    return noted


def note_ends(executor: Any, patience_s: float) -> None:
    """Records a worker that has ended. If one was killed, no exception explains more."""
    from vllm.v1.engine.exceptions import EngineDeadError

    workers = [worker.proc for worker in getattr(executor, "workers", None) or ()]
    if not workers:
        return
    connection.wait([worker.sentinel for worker in workers], patience_s)
    codes = [worker.exitcode for worker in workers]
    if died := next((code for code in codes if code), None):
        failures.leave_crash_file(EngineDeadError(), died)
