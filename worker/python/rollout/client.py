"""Owns: vLLM's engine in the form that vLLM's own serving handlers need: asynchronous, with one stream of outputs per
request.

Invariant: a request whose caller has gone, or that was refused halfway, is aborted. An exception that the engine
cannot survive is kept in `fatal`, because handlers turn every exception into a response. Everything runs on the host's
single thread, between two steps: the code that steps the engine passes its outputs on with `deliver`.
Absent: handlers (`serving`). Methods of an engine that they do not need raise an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from vllm.engine.protocol import EngineClient
from vllm.v1.engine import EngineCoreRequest

from rollout import failures
from rollout.adapters import Adapters


class HostClient(EngineClient):
    """The engine of this process."""

    def __init__(self, engine: Any, adapters: Adapters, abort: Callable[[str], None]) -> None:
        self._engine = engine
        self._adapters = adapters
        self._abort = abort
        self._streams: dict[str, asyncio.Queue[Any]] = {}
        self.fatal: BaseException | None = None
        self.vllm_config = engine.vllm_config
        self.model_config = engine.model_config
        self.renderer = engine.renderer
        self.input_processor = engine.input_processor

    def waiting(self) -> int:
        """Requests in the engine."""
        return len(self._streams)

    def deliver(self, output: Any) -> bool:
        """Passes an output on; false if it is not for this client."""
        stream = self._streams.get(output.request_id)
        if stream is not None:
            stream.put_nowait(output)
        return stream is not None

    async def generate(
        self,
        prompt: Any,
        sampling_params: Any,
        request_id: str,
        *,
        prompt_text: str | None = None,
        lora_request: Any = None,
        reasoning_ended: bool | None = None,
        reasoning_parser_kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> AsyncGenerator[Any, None]:
        """The outputs of a request for tokens."""
        if reasoning_ended is not None or reasoning_parser_kwargs is not None:
            prompt, prompt_text = self._with_reasoning(
                prompt, sampling_params, request_id, reasoning_ended, reasoning_parser_kwargs
            )
        async for output in self._outputs(
            request_id, prompt, sampling_params, lora_request, prompt_text=prompt_text, **known(options)
        ):
            yield output

    async def encode(
        self, prompt: Any, pooling_params: Any, request_id: str, lora_request: Any = None, **options: Any
    ) -> AsyncGenerator[Any, None]:
        """The outputs of a request for a vector, or for a score."""
        async for output in self._outputs(request_id, prompt, pooling_params, lora_request, **known(options)):
            yield output

    async def _outputs(
        self, request_id: str, prompt: Any, params: Any, lora: Any, **options: Any
    ) -> AsyncGenerator[Any, None]:
        if request_id in self._streams:
            raise ValueError(f"request {request_id} runs already")
        adapter = self._adapters.of(lora.lora_name) if lora is not None else None
        stream = self._streams[request_id] = asyncio.Queue()
        finished = False
        try:
            try:
                self._engine.add_request(request_id, prompt, params, lora_request=adapter, **options)
            except BaseException as error:
                if failures.is_fatal(error):
                    self.fatal = error
                    # There is no engine left to abort it in.
                    finished = True
                raise
            while not finished:
                output = await stream.get()
                finished = output.finished
                yield output
        finally:
            del self._streams[request_id]
            if not finished:
                self._abort(request_id)

    def _with_reasoning(
        self, prompt: Any, params: Any, request_id: str, ended: bool | None, kwargs: dict[str, Any] | None
    ) -> tuple[EngineCoreRequest, str | None]:
        """A reasoning model's addition to a request, for which vLLM's synchronous engine has no argument."""
        request = self.input_processor.process_inputs(
            request_id, prompt, params, supported_tasks=self._engine.get_supported_tasks()
        )
        request.reasoning_ended = ended
        request.reasoning_parser_kwargs = kwargs
        text = prompt.get("prompt") if isinstance(prompt, dict) else None
        return request, text

    async def abort(self, request_id: Any) -> None:
        """Stops requests."""
        for one in [request_id] if isinstance(request_id, str) else list(request_id):
            self._abort(one)

    async def get_supported_tasks(self) -> tuple[Any, ...]:
        """The tasks of the model."""
        return self._engine.get_supported_tasks()

    async def add_lora(self, lora_request: Any) -> bool:
        """Loads an adapter, under the number that rows use for it."""
        return self._engine.add_lora(self._adapters.of(lora_request.lora_name))

    @property
    def is_running(self) -> bool:
        return True

    @property
    def is_stopped(self) -> bool:
        return False

    @property
    def errored(self) -> bool:
        return self.fatal is not None

    @property
    def dead_error(self) -> BaseException:
        return self.fatal or RuntimeError("a dead engine ends its process")

    async def is_tracing_enabled(self) -> bool:
        return False

    async def is_sleeping(self) -> bool:
        return False

    async def is_paused(self) -> bool:
        return False

    async def check_health(self) -> None:
        pass

    async def do_log_stats(self) -> None:
        pass

    def shutdown(self, timeout: float | None = None) -> None:
        pass


def known(options: dict[str, Any]) -> dict[str, Any]:
    """Those of a handler's options that vLLM's synchronous engine has, if they are set."""
    taken = ("tokenization_kwargs", "trace_headers", "priority", "session_id", "kv_hints")
    return {name: options[name] for name in taken if options.get(name) is not None}


async def refused(*_: Any, **__: Any) -> Any:
    """The error for methods that handlers of single requests must not call."""
    raise NotImplementedError("a batch engine does not do this")


# Newer versions of vLLM may ask for more; none of it matters for rows.
for _name in sorted(EngineClient.__abstractmethods__ - set(vars(HostClient))):
    setattr(HostClient, _name, refused)
HostClient.__abstractmethods__ = frozenset()
