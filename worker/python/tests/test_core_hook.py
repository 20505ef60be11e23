"""What vLLM's own processes record about their ends, with a fake vLLM: which of several records counts."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import unittest
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from rollout import core_hook, failures

DEAD = "vllm.v1.engine.exceptions.EngineDeadError"


def played() -> dict[str, ModuleType]:
    """vLLM's module of exceptions."""
    names = ["vllm", "vllm.v1", "vllm.v1.engine", "vllm.v1.engine.exceptions"]
    modules = {name: ModuleType(name) for name in names}
    dead = type("EngineDeadError", (Exception,), {"__module__": names[-1]})
    modules[names[-1]].EngineDeadError = dead  # type: ignore[attr-defined]
    return modules


def killed_worker() -> Any:
    """A process that was killed."""
    process = multiprocessing.get_context("spawn").Process(target=sys.exit)
    process.start()
    process.kill()
    process.join()
    return SimpleNamespace(proc=process)


def raising(error: BaseException) -> Any:
    def step(*_: Any) -> None:
        raise error

    return step


class Notes(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = Path(directory.name) / "crash.json"
        for patch in (
            mock.patch.dict(os.environ, {failures.CRASH_FILE_ENV: str(self.path)}),
            mock.patch.dict(sys.modules, played()),
        ):
            patch.start()
            self.addCleanup(patch.stop)

    def told(self) -> tuple[str, int | None, int | None]:
        crash = json.loads(self.path.read_text())
        self.assertEqual(os.listdir(self.path.parent), [self.path.name], "nothing else is left")
        return crash["exception"], crash["child_exit_code"], crash["child_signal"]

    def test_the_first_note_is_believed(self) -> None:
        failures.leave_crash_file(KeyError("first"))
        failures.leave_crash_file(MemoryError("second"))
        failures.leave_crash_file(ValueError("third"), 1)
        self.assertEqual(self.told(), ("KeyError", None, None))

    def test_a_killed_child_explains_other_errors_except_exhausted_memory(self) -> None:
        failures.leave_crash_file(RuntimeError("connection reset by peer"))
        failures.leave_crash_file(KeyError("the executor"), -9)
        self.assertEqual(self.told(), ("KeyError", None, 9))
        failures.leave_crash_file(KeyError("ended by vLLM itself"), -15)
        self.assertEqual(self.told(), ("KeyError", None, 9))
        self.path.unlink()
        failures.leave_crash_file(MemoryError())
        failures.leave_crash_file(KeyError("the executor"), -9)
        self.assertEqual(self.told(), ("MemoryError", None, None))

    def test_an_unreadable_crash_file_is_replaced(self) -> None:
        self.path.write_text("[")
        failures.leave_crash_file(KeyError(), -9)
        self.assertEqual(self.told(), ("KeyError", None, 9))

    def test_a_killed_worker_explains_the_exception_of_its_core(self) -> None:
        # As a worker records it when its neighbor is gone.
        failures.leave_crash_file(RuntimeError("connection closed by peer"))
        core = SimpleNamespace(model_executor=SimpleNamespace(workers=[killed_worker()]))
        with self.assertRaises(RuntimeError):
            core_hook.noting_step(raising(RuntimeError("worker failed")))(core)
        self.assertEqual(self.told(), (DEAD, None, 9))

    def test_workers_that_vllm_ends_itself_explain_nothing(self) -> None:
        executor = SimpleNamespace(workers=[killed_worker()], shutting_down=True, is_failed=True)
        core_hook.noting_ends(lambda executor: None)(executor)
        self.assertFalse(self.path.exists())
        executor.shutting_down = False
        core_hook.noting_ends(lambda executor: None)(executor)
        self.assertEqual(self.told(), (DEAD, None, 9))

    def test_an_answer_that_fails_as_it_is_made_is_noted_and_goes_on_as_a_failure(self) -> None:
        class Unfinished:
            get_output = raising(MemoryError("on its way"))

        answers: list[Any] = []
        enqueue = core_hook.noting_output(lambda worker, output: answers.append(output), Unfinished)
        enqueue(None, "an answer")
        self.assertFalse(self.path.exists())
        with mock.patch("sys.stderr"):
            enqueue(None, Unfinished())
        self.assertEqual((answers[0], type(answers[1])), ("an answer", MemoryError))
        self.assertEqual(self.told(), ("MemoryError", None, None))

    def test_a_worker_that_fails_ends_where_another_is_asked_for_the_answer(self) -> None:
        def execute(worker: Any, request: Any) -> None:
            try:
                worker.worker.step()
            except MemoryError:
                pass

        for rank, asked, ends in [(0, 0, False), (1, 0, True), (1, None, True)]:
            for error in [None, MemoryError()]:
                step = core_hook.noting(raising(error) if error else lambda *_: None)
                share = SimpleNamespace()
                share.step = lambda share=share, step=step: step(share)
                worker = SimpleNamespace(rank=rank, worker=share)
                with mock.patch("os._exit") as end:
                    core_hook.ending(execute)(worker, ("execute_model", (), {}, asked))
                self.assertEqual(end.called, ends and error is not None, (rank, asked, error))
        self.assertEqual(self.told(), ("MemoryError", None, None))


if __name__ == "__main__":
    unittest.main()
