"""Owns: the process of an engine: rows from the agent go in while others run, each goes back as it ends.

Invariant: a row is answered once, or the process dies. No batch is awaited: between two steps new rows are added and
unwanted ones are stopped.
Absent: the engine (`vllm_engine`), the socket (`_native`).
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from rollout import failures

# Rows that are added between two steps.
ROWS_PER_STEP = 1024
# How often progress is reported to the agent while rows run.
PROGRESS_EVERY_S = 0.05
# Held by the thread that ends this process.
ENDING = threading.Lock()


class Engine(Protocol):
    """The interface of an engine that this process can run."""

    counts: tuple[int, ...]

    def add(self, ticket: int, task: str, model: str, sampling: dict[str, Any], row: dict[str, Any]) -> None: ...
    def stop(self, ticket: int) -> None: ...
    def running(self) -> bool: ...
    def child_exit(self) -> int | None: ...
    def watch_children(self, ended: Callable[[BaseException, int | None], NoReturn]) -> None: ...
    def step(self) -> tuple[list[Any], list[Any]]: ...


def serve(agent: Any, engine: Engine) -> None:
    """Runs rows until the agent is gone."""
    told, at = None, 0.0
    while True:
        idle = not engine.running()
        if engine.counts != told and (idle or time.monotonic() - at >= PROGRESS_EVERY_S):
            told, at = engine.counts, time.monotonic()
            agent.progress(*told)
        agent.flush()
        for event in agent.poll(ROWS_PER_STEP, None if idle else 0):
            if isinstance(event, int):
                engine.stop(event)
                agent.stopped(event)
            else:
                take(agent, engine, *event)
        if engine.running():
            done, failed = engine.step()
            for outcome in done:
                agent.finish(*outcome)
            for failure in failed:
                agent.fail(*failure)


def take(
    agent: Any, engine: Engine, ticket: int, task: str, model: str, sampling: str, row: bytes
) -> None:
    """Passes a row to the engine, or reports its failure."""
    try:
        engine.add(ticket, task, model, json.loads(sampling or "{}"), json.loads(row))
    except Exception as error:
        if failures.is_fatal(error):
            raise
        agent.fail(ticket, *failures.classify(error))


def end(error: BaseException, child: int | None) -> NoReturn:
    """Records why this process dies, and ends it; `child` is how a process of the engine's own ended. Of two threads
    the first counts."""
    ENDING.acquire()
    failures.leave_crash_file(error, child)
    sys.stderr.flush()
    # Threads of the engine may not end by themselves; its children end with this process's group.
    os._exit(1)


def main() -> int:
    """Runs the engine that the agent's configuration names."""
    try:
        from rollout._native import Agent

        agent = Agent()
    except (ImportError, RuntimeError) as error:
        print(f"rollout.engine_host: {error}", file=sys.stderr)
        return 2
    engine: Any = None
    try:
        options = json.loads(agent.options)
        from rollout.vllm_engine import VllmEngine

        engine = VllmEngine(options)
        agent.loaded(engine.versions(), engine.revisions(), engine.room_tokens())
        agent.ready()
        engine.watch_children(end)
        serve(agent, engine)
    except EOFError:
        return 0
    except BaseException as error:
        traceback.print_exc()
        end(error, engine.child_exit() if engine is not None else None)
    return 0


if __name__ == "__main__":
    # The engine's own children import this module again, and must not become hosts.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
