"""vLLM as an engine, with a fake vLLM: which configurations fail the start, and what remains of a refused row."""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import unittest
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from rollout.failures import RowError, classify


@dataclass
class EngineArgs:
    model: str = ""
    max_num_seqs: int = 0
    disable_log_stats: bool = False
    enable_lora: bool = False
    max_loras: int = 0
    max_lora_rank: int = 0


class LLMEngine:
    """Has accepted the first of a row's two completions when it raises the given error."""

    model_config = SimpleNamespace(max_model_len=64, get_vocab_size=lambda: 9, get_diff_sampling_param=dict)

    def __init__(self) -> None:
        self.held: list[str] = []
        self.loaded: list[str] = []
        self.error: BaseException | None = None
        self.vllm_config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=4))
        self.output_processor = self
        self.engine_core = SimpleNamespace(get_output=None, abort_requests=lambda ids: None)

    @classmethod
    def from_engine_args(cls, args: EngineArgs) -> LLMEngine:
        engine = cls()
        engine.args = args  # type: ignore[attr-defined]
        return engine

    def add_lora(self, adapter: Any) -> bool:
        if "bad" in adapter.name:
            raise RuntimeError("a weight has another shape")
        self.loaded.append(adapter.name)
        return True

    def add_request(self, request_id: str, *_: Any, **__: Any) -> None:
        self.held.append(request_id)
        if self.error is not None:
            raise self.error

    def get_num_unfinished_requests(self) -> int:
        return len(self.held)

    def abort_requests(self, ids: list[str], internal: bool) -> list[str]:
        gone = [one for one in ids if one in self.held]
        self.held = [one for one in self.held if one not in ids]
        return gone


class Calls:
    """Accepts rows once it was made; a configuration may be one that handlers refuse."""

    def __init__(self, client: Any, serving: Any) -> None:
        if serving.arguments.get("tool_call_parser"):
            raise KeyError("invalid tool call parser")
        self.rows: list[int] = []

    def add(self, ticket: int, *_: Any) -> None:
        self.rows.append(ticket)


def played() -> dict[str, ModuleType]:
    """The names that the engine imports from vLLM, and those of the package's modules that need more of it."""
    own = ["rollout.params", "rollout.prompts", "rollout.client", "rollout.calls", "rollout.serving"]
    names = ["vllm", "vllm.engine", "vllm.engine.arg_utils", "vllm.v1", "vllm.v1.engine", "vllm.v1.engine.llm_engine"]
    names += ["vllm.lora", "vllm.lora.request", "vllm.lora.utils", "vllm.platforms", *own]
    modules: dict[str, Any] = {name: ModuleType(name) for name in names}
    modules["vllm.engine.arg_utils"].EngineArgs = EngineArgs
    modules["vllm.v1.engine.llm_engine"].LLMEngine = LLMEngine
    modules["vllm.lora.request"].LoRARequest = lambda name, number, path: SimpleNamespace(name=name, number=number)
    modules["vllm.lora.utils"].get_adapter_absolute_path = str
    modules["vllm.platforms"].current_platform = SimpleNamespace(
        is_cpu=lambda: False, get_device_name=lambda: "H200"
    )
    modules["rollout.params"].ParamsOf = lambda *_: SimpleNamespace(make=lambda *_: None)
    modules["rollout.prompts"].rendered = lambda *_: {"prompt_token_ids": [1, 2]}
    modules["rollout.client"].HostClient = lambda *_: None
    modules["rollout.calls"].Calls = Calls
    modules["rollout.serving"].Serving = lambda client, arguments, *_: SimpleNamespace(
        arguments=arguments, routes=lambda: ["/v1/chat/completions", "/v1/completions"]
    )
    modules["rollout.serving"].check_handlers_arguments = lambda names: None
    return modules


class Starts(unittest.TestCase):
    def setUp(self) -> None:
        for patch in (mock.patch.dict(sys.modules, played()), mock.patch.dict("os.environ")):
            patch.start()
            self.addCleanup(patch.stop)
        self.module = importlib.reload(importlib.import_module("rollout.vllm_engine"))
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = Path(directory.name)

    def engine(self, **options: Any) -> Any:
        return self.module.VllmEngine({"model": "m", "concurrency": 4, **options})

    def adapter(self, name: str, config: Any) -> dict[str, str]:
        path = self.path / name
        path.mkdir(exist_ok=True)
        (path / "adapter_config.json").write_text(json.dumps(config))
        return {name: str(path)}

    def test_handlers_that_do_not_take_the_configuration_fail_the_start_where_rows_may_ask_for_them(self) -> None:
        wrong = {"tool_call_parser": "hermse"}
        for tasks in [[], ["openai"], ["generate", "openai"], ["embed"]]:
            with self.assertRaisesRegex(KeyError, "tool call parser"):
                self.engine(engine_args=wrong, tasks=tasks)
        self.engine(engine_args=wrong, tasks=["generate"])

    def test_a_task_that_the_block_does_not_offer_has_no_handlers(self) -> None:
        with self.assertRaises(RowError) as raised:
            self.engine(tasks=["generate"]).add(1, "openai", "m", {}, {})
        self.assertEqual(classify(raised.exception)[:2], ("invalid", "TASK_UNKNOWN"))

    def test_the_routes_are_reported_of_a_block_with_handlers_alone(self) -> None:
        self.assertEqual(self.engine().versions()["routes"], "/v1/chat/completions /v1/completions")
        self.assertNotIn("routes", self.engine(tasks=["generate"]).versions())

    def test_an_unknown_adapter_is_reported_for_every_task(self) -> None:
        engine = self.engine()
        for task in ["generate", "embed", "score"]:
            with self.assertRaises(RowError) as raised:
                engine.add(1, task, "m", {}, {"lora": "none"})
            self.assertEqual(classify(raised.exception)[:2], ("invalid", "UNKNOWN_LORA"), task)
        # There, an adapter is a model's name, and this is an unrelated field.
        engine.add(2, "openai", "m", {}, {"lora": "none"})
        self.assertEqual(engine._calls.rows, [2])

    def test_every_adapter_is_loaded_before_there_are_rows_in_the_room_that_the_largest_needs(self) -> None:
        loras = {**self.adapter("small", {"r": 4}), **self.adapter("large", {"r": 17})}
        engine = self.engine(loras=loras)._engine
        self.assertEqual((engine.loaded, engine.args.max_lora_rank, engine.args.max_loras), (["large", "small"], 32, 2))
        with self.assertRaisesRegex(ValueError, "'bad'.*another shape"):
            self.engine(loras={**loras, **self.adapter("bad", {"r": 4})})

    def test_an_adapter_of_unknown_rank_fails_the_start_unless_somebody_says_the_rank(self) -> None:
        for config in [{}, {"r": "many"}, {"r": None}, []]:
            loras = self.adapter("one", config)
            with self.assertRaisesRegex(ValueError, "'one'.*max_lora_rank"):
                self.engine(loras=loras)
        with self.assertRaisesRegex(ValueError, "FileNotFoundError"):
            self.engine(loras={"two": str(self.path / "two")})
        self.assertEqual(self.engine(loras=loras, engine_args={"max_lora_rank": 64})._engine.args.max_lora_rank, 64)

    def test_nothing_is_left_in_the_engine_of_a_row_that_it_refuses_half_way(self) -> None:
        engine = self.engine()
        engine._engine.error = ValueError("refused")
        with self.assertRaises(ValueError):
            engine.add(1, "generate", "m", {}, {"prompt": "p"})
        self.assertEqual(engine._engine.held, [])
        engine._engine.error = None
        engine.add(2, "generate", "m", {}, {"prompt": "p"})
        self.assertEqual(engine._engine.held, ["2"])

    def test_an_engine_that_is_dead_is_not_asked_to_abort(self) -> None:
        engine = self.engine()
        engine._engine.error = MemoryError("injected")
        with mock.patch.object(engine, "_abort") as abort, self.assertRaises(MemoryError):
            engine.add(1, "generate", "m", {}, {"prompt": "p"})
        abort.assert_not_called()


if __name__ == "__main__":
    unittest.main()
