"""Requests that handlers give to an engine, with a fake vLLM: which are aborted, and what ends the engine."""

from __future__ import annotations

import asyncio
import importlib
import sys
import unittest
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock


def played() -> dict[str, ModuleType]:
    """The names that the modules import from vLLM; handlers are the tests' own."""
    names = ["vllm", "vllm.engine", "vllm.engine.protocol", "vllm.v1", "vllm.v1.engine", "rollout.serving"]
    modules = {name: ModuleType(name) for name in names}
    client = type("EngineClient", (), {"__abstractmethods__": frozenset()})
    modules["vllm.engine.protocol"].EngineClient = client  # type: ignore[attr-defined]
    modules["vllm.v1.engine"].EngineCoreRequest = object  # type: ignore[attr-defined]
    modules["rollout.serving"].Serving = object  # type: ignore[attr-defined]
    return modules


class Engine:
    """Accepts requests, or raises the given error after it has accepted part of one."""

    vllm_config = model_config = renderer = input_processor = None

    def __init__(self, error: BaseException | None) -> None:
        self.error = error

    def add_request(self, *_: Any, **__: Any) -> None:
        if self.error is not None:
            raise self.error


class Serving:
    """Sends as many requests as a row says, and makes a response of any exception, as vLLM's handlers do."""

    client: Any

    async def build(self) -> None: ...

    async def answer(self, model: str, row: dict[str, Any]) -> Any:
        async def one(number: int) -> None:
            async for _ in self.client.generate("p", None, f"r{number}"):
                pass

        tasks = [asyncio.create_task(one(number)) for number in range(row["requests"])]
        try:
            await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            return response(499)
        except Exception:
            return response(500)
        return response(200)


def response(status: int) -> Any:
    return SimpleNamespace(status=status, body='{"usage": {}}', as_extra=lambda: "{}")


class Requests(unittest.TestCase):
    def setUp(self) -> None:
        patch = mock.patch.dict(sys.modules, played())
        patch.start()
        self.addCleanup(patch.stop)
        self.client = importlib.reload(importlib.import_module("rollout.client"))
        self.module = importlib.reload(importlib.import_module("rollout.calls"))

    def calls(self, error: BaseException | None = None) -> tuple[Any, list[str]]:
        aborted: list[str] = []
        serving = Serving()
        serving.client = self.client.HostClient(Engine(error), None, aborted.append)
        calls = self.module.Calls(serving.client, serving)
        self.addCleanup(calls._loop.close)
        return calls, aborted

    def test_a_fatal_error_is_raised_although_a_handler_caught_it(self) -> None:
        calls, aborted = self.calls(MemoryError("injected"))
        calls.add(1, "openai", "m", {"requests": 1})
        with self.assertRaises(MemoryError):
            calls.run(engine_is_idle=True)
        self.assertEqual(aborted, [])

    def test_a_refused_request_fails_its_row_and_aborts_accepted_parts(self) -> None:
        calls, aborted = self.calls(ValueError("refused"))
        calls.add(1, "openai", "m", {"requests": 1})
        done, failed = calls.run(engine_is_idle=True)
        self.assertEqual((done, [row[:2] for row in failed]), ([], [(1, "transient")]))
        self.assertEqual(aborted, ["r0"])

    def test_all_requests_of_a_row_that_is_stopped_are_aborted_before_it_is_answered_for(self) -> None:
        calls, aborted = self.calls()
        calls.add(1, "openai", "m", {"requests": 3})
        calls.run(engine_is_idle=False)
        self.assertEqual(calls._client.waiting(), 3)
        self.assertTrue(calls.stop(1))
        self.assertEqual((sorted(aborted), calls._client.waiting(), calls.running()), (["r0", "r1", "r2"], 0, False))


if __name__ == "__main__":
    unittest.main()
