"""Owns: vLLM as an engine of this process.

If one device serves a slot, the engine runs in this same process, so its death is this process's death and the agent
sees how it died. With more devices, vLLM's own workers are its children and die with its group.
Invariant: rows are added and stopped between steps. A completion is what vLLM's own `LLM` gives for the same prompt
and the parameters that `params` makes, which include the model's own defaults. If vLLM refuses a row, `add` raises the
error or the row comes back as a failure, and the engine continues without any of it. If vLLM refuses the configuration
(an adapter, an argument of its handlers), the error is raised before there are rows.
Absent: which rows run, and where their results go.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import fields
from multiprocessing import connection
from typing import Any, NoReturn

from rollout import failures
from rollout.adapters import Adapters
from rollout.counters import Counters, Counts
from rollout.failures import RowError
from rollout.outcome import Outcome, of_completion
from rollout.versions import versions

# vLLM starts more processes by spawn; a fork would copy threads' locks.
ENVIRONMENT = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_NO_USAGE_STATS": "1",
}
PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
# How long to wait for the end of a core that was given up.
CHILD_END_S = 1.0
# How long a dying core's last messages may take to be processed, and vLLM's report of its end to be raised.
LAST_WORDS_S = 3.0
Failed = tuple[int, str, str, str]


class VllmEngine:
    """vLLM, loaded."""

    def __init__(self, options: dict[str, Any]) -> None:
        arguments = dict(options.get("engine_args") or {})
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if options.get("tensor_parallel_size", 1) != 1:
            arguments["tensor_parallel_size"] = options["tensor_parallel_size"]
        if all(arguments.get(name, 1) == 1 for name in PARALLEL):
            os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        from rollout.params import ParamsOf

        arguments.setdefault("disable_log_stats", True)
        arguments.setdefault("max_num_seqs", options["concurrency"])
        arguments["model"] = options["model"]
        if options.get("revision"):
            arguments["revision"] = options["revision"]
        self._adapters = Adapters(options.get("loras") or {})
        self._adapters.set_up(arguments)
        known = {field.name for field in fields(EngineArgs)}
        handlers = set(arguments) - known
        if handlers:
            from rollout.serving import check_handlers_arguments

            check_handlers_arguments(handlers)
        self._arguments = arguments
        self._names = names_of(options)
        self._engine = LLMEngine.from_engine_args(EngineArgs(**{n: v for n, v in arguments.items() if n in known}))
        config = self._engine.model_config
        self._params = ParamsOf(config.get_diff_sampling_param(), config.max_model_len, config.get_vocab_size())
        self._counters = Counters(self._engine)
        self._adapters.load(self._engine)
        self._client: Any = None
        self._calls: Any = None
        self._routes: list[str] = []
        if asks_handlers(options):
            self._make_handlers()

    def versions(self) -> dict[str, str]:
        """The installed versions, the kind of device, and the routes that rows of the OpenAI format may use."""
        from vllm.platforms import current_platform

        found = {**versions(), "max_model_len": str(self._engine.model_config.max_model_len)}
        if not current_platform.is_cpu():
            found["gpu"] = current_platform.get_device_name()
        if self._routes:
            found["routes"] = " ".join(self._routes)
        return found

    def revisions(self) -> list[str]:
        """The names of the loaded model's revision: as requested, and as the hub resolved it. A directory has none."""
        config = self._engine.model_config
        if os.path.isdir(config.model):
            return []
        names = [config.revision, getattr(config.hf_config, "_commit_hash", None)]
        return [name for name in names if name]

    def room_tokens(self) -> int:
        """Tokens that the cache for keys and values holds; 0 if vLLM does not report it."""
        cache = self._engine.vllm_config.cache_config
        return getattr(cache, "kv_cache_size_tokens", None) or (cache.num_gpu_blocks or 0) * (cache.block_size or 0)

    @property
    def counts(self) -> Counts:
        """The engine's counters."""
        return self._counters.counts

    def add(self, ticket: int, task: str, model: str, sampling: dict[str, Any], row: dict[str, Any]) -> None:
        """Adds a row; raises vLLM's errors about it."""
        # In the OpenAI format, an adapter's name is a model's name.
        adapter = self._adapters.of(row.get("lora")) if task != "openai" else None
        if task != "generate":
            if self._calls is None:
                raise RowError("TASK_UNKNOWN", f"the tasks of this engine's block lack {task!r}")
            self._calls.add(ticket, task, model, row)
            return
        from rollout.prompts import rendered

        prompt = rendered(self._engine, sampling, row)
        params = self._params.make(sampling, row, len(prompt["prompt_token_ids"]))
        try:
            self._engine.add_request(str(ticket), prompt, params, lora_request=adapter)
        except Exception as error:
            if not failures.is_fatal(error):
                # Some of several completions may have been added, or only the front end's half of one.
                self._abort(str(ticket))
            raise
        self._counters.added()

    def _make_handlers(self) -> None:
        from rollout.calls import Calls
        from rollout.client import HostClient
        from rollout.serving import Serving

        self._client = HostClient(self._engine, self._adapters, self._abort)
        serving = Serving(self._client, self._arguments, self._names, self._adapters.paths)
        self._calls = Calls(self._client, serving)
        self._routes = serving.routes()

    def _abort(self, request_id: str) -> None:
        # As in `LLMEngine.abort_request`, which reserves vLLM's own names for itself.
        ids = self._engine.output_processor.abort_requests([request_id], internal=False)
        self._engine.engine_core.abort_requests(ids)
        self._counters.abort(ids)

    def stop(self, ticket: int) -> None:
        """Stops a row; stopping one that has ended is not an error."""
        if self._calls is None or not self._calls.stop(ticket):
            self._abort(str(ticket))

    def _cores(self) -> list[Any]:
        manager = getattr(getattr(self._engine.engine_core, "resources", None), "engine_manager", None)
        return list(getattr(manager, "processes", None) or ())

    def watch_children(self, ended: Callable[[BaseException, int | None], NoReturn]) -> None:
        """Calls back when a core in a separate process ends. vLLM's own client does not report a killed core to a step
        that waits for it, and the step would wait forever."""
        from vllm.v1.engine.exceptions import EngineDeadError

        def watch(cores: list[Any]) -> None:
            connection.wait([core.sentinel for core in cores])
            time.sleep(LAST_WORDS_S)
            ended(EngineDeadError(), self.child_exit())

        if cores := self._cores():
            threading.Thread(target=watch, args=(cores,), name="cores", daemon=True).start()

    def child_exit(self) -> int | None:
        """How vLLM's core ended, if it is a separate process and has ended."""
        for process in self._cores():
            process.join(timeout=CHILD_END_S)
            if process.exitcode:
                return process.exitcode
        return None

    def running(self) -> bool:
        """Whether there is anything to step for."""
        return self._engine.has_unfinished_requests() or (self._calls is not None and self._calls.running())

    def step(self) -> tuple[list[Outcome], list[Failed]]:
        """Runs one step; returns every row that ended, successfully or not."""
        done: list[Outcome] = []
        failed: list[Failed] = []
        busy = self._engine.has_unfinished_requests()
        if busy:
            self._counters.before_step()
            for output in self._engine.step():
                if self._client is not None and self._client.deliver(output):
                    continue
                if output.finished:
                    ticket = int(output.request_id)
                    try:
                        done.append(of_completion(ticket, output))
                    except Exception as error:
                        if failures.is_fatal(error):
                            raise
                        failed.append((ticket, *failures.classify(error)))
        if self._calls is not None and self._calls.running():
            ended, refused = self._calls.run(engine_is_idle=not busy)
            done.extend(ended)
            failed.extend(refused)
        return done, failed


def names_of(options: dict[str, Any]) -> list[str]:
    """The model names that requests may use: those of the configuration, without revisions."""
    names = [name.rsplit("@", 1)[0] for name in options.get("models") or [] if name != "*"]
    return names or [options["model"]]


def asks_handlers(options: dict[str, Any]) -> bool:
    """Whether rows may come that vLLM's handlers answer: all except those of the native format for completions. A
    block that names no tasks offers them, whatever its model."""
    return set(options.get("tasks") or ["openai"]) != {"generate"}
