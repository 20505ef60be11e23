"""Owns: requests of the OpenAI format. vLLM's own handlers answer them as they do for `vllm run-batch`; requests to
completions, responses and pooling, which vLLM's batch runner does not support, are answered as in vLLM's server.

Invariant: a response is the handler's own, unchanged. A request for a model other than the run's fails its row. A route
is reported only if vLLM has made a handler of it for the loaded model.
Handlers are made before the first row, so a configuration that they refuse is blamed on no row.
Absent: the thread on which they run (`vllm_engine` runs the handlers between two steps).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, NamedTuple

from pydantic import BaseModel, TypeAdapter
from starlette.datastructures import State
from starlette.responses import JSONResponse
from vllm.entrypoints.launchers import run_batch
from vllm.entrypoints.launchers.api_server.entry import init_app_state
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.pooling.pooling.protocol import PoolingRequest
from vllm.entrypoints.serve import create_error_response
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.utils import random_uuid
from vllm.utils.argparse_utils import FlexibleArgumentParser

from rollout.client import HostClient
from rollout.failures import RowError

# Routes that vLLM's batch runner may have a handler for.
BATCH = [
    "/v1/chat/completions",
    "/v1/embeddings",
    "/v1/score",
    "/v1/rerank",
    "/score",
    "/rerank",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
]
STREAM = "Request must not be sent in stream mode"


class Server(NamedTuple):
    """A handler of vLLM's server: its name in the server's state, its method, and how to read a request's body."""

    name: str
    method: str
    read: Callable[[Any], Any]


# Routes that vLLM's server has, and its batch runner does not.
SERVER = {
    "/v1/completions": Server("openai_serving_completion", "create_completion", CompletionRequest.model_validate),
    "/v1/responses": Server("openai_serving_responses", "create_responses", ResponsesRequest.model_validate),
    "/pooling": Server("serving_pooling", "__call__", TypeAdapter(PoolingRequest).validate_python),
}


class Response(NamedTuple):
    """A handler's response; `body` is the text of its JSON."""

    status: int
    request_id: str
    body: str

    def as_extra(self) -> str:
        """The text of a row's extra fields, with the body unchanged."""
        request_id = json.dumps(self.request_id)
        head = f'{{"status_code":{self.status},"request_id":{request_id}'
        return f'{{"response":{head},"body":{self.body}}}}}'


class Serving:
    """vLLM's handlers around an engine."""

    def __init__(self, client: HostClient, arguments: dict[str, Any], names: list[str], adapters: dict[str, str]) -> None:
        self._client = client
        arguments = {**arguments, "structured_outputs_config": client.vllm_config.structured_outputs_config}
        self._adapters = adapters
        self._args = namespace(arguments, names, adapters)
        self._registry: dict[str, Any] = {}
        self._state = State()

    async def build(self) -> None:
        """Makes the handlers. Raises an error for a configuration that they refuse."""
        self._registry = await run_batch.build_endpoint_registry(self._client, self._args)
        await init_app_state(self._client, self._state, self._args, await self._client.get_supported_tasks())

    def routes(self) -> list[str]:
        """The routes that have a handler, because the loaded model supports them."""
        return [url for url in BATCH if self._in_batch(url)] + [url for url in SERVER if self._in_server(url)]

    def _in_batch(self, url: str) -> bool:
        endpoint = self._registry.get(url.split("/")[-1])
        return endpoint is not None and endpoint["url_matcher"](url) and endpoint["handler_getter"]() is not None

    def _in_server(self, url: str) -> Any:
        # The state has names of only those handlers that fit the model's tasks.
        return getattr(self._state, SERVER[url].name, None)

    async def answer(self, model: str, row: dict[str, Any]) -> Response:
        """The response to a row. Raises an error if there is none."""
        body = row.get("body")
        if not isinstance(body, dict):
            raise RowError("ROW_SHAPE", "the row's body is no object")
        named = body.get("model")
        if named is not None and named != model and named not in self._adapters:
            raise RowError("MODEL_MISMATCH", f"the body's model is not the run's, {model!r}")
        if row.get("url") in SERVER:
            return await self._of_server(row["url"], body)
        request = run_batch.BatchRequestInput.model_validate(row)
        endpoint = self._registry.get(request.url.split("/")[-1])
        answer = endpoint and run_batch.handle_endpoint_request(request, Silent(), **endpoint)
        if answer is None:
            raise RowError("UNKNOWN_URL", f"vLLM has no handler for {request.url}")
        output = await answer
        response = output.response
        if output.error is None:
            body = response.body.model_dump_json()
        elif isinstance(output.error, str):
            body = json.dumps({"error": {"message": output.error}})
        else:
            body = output.error.model_dump_json()
        return Response(response.status_code, response.request_id, body)

    async def _of_server(self, url: str, body: dict[str, Any]) -> Response:
        """The answer of vLLM's server; exceptions and streams are converted as its batch runner does elsewhere."""
        server, handler = SERVER[url], self._in_server(url)
        request = server.read(body)
        request_id = f"vllm-batch-{random_uuid()}"
        refused = None
        if handler is None:
            refused = f"Model does not support endpoint: {url}"
        elif getattr(request, "stream", False):
            refused = STREAM
        elif getattr(request, "background", False):
            refused = "Request must not be sent in background mode"
        if refused is not None:
            return refusal(request_id, refused)
        if hasattr(request, "store"):
            # vLLM would keep the answer in memory, for requests that no row can make.
            request.store = False
        try:
            answer = await getattr(handler, server.method)(request)
        except Exception as error:
            answer = create_error_response(error)
        if isinstance(answer, JSONResponse):
            return Response(answer.status_code, request_id, bytes(answer.body).decode())
        if not isinstance(answer, BaseModel):
            return refusal(request_id, STREAM)
        status = answer.error.code if isinstance(answer, ErrorResponse) else HTTPStatus.OK.value
        # As vLLM's server writes it; only responses have aliases.
        return Response(status, request_id, answer.model_dump_json(by_alias=url == "/v1/responses"))


def refusal(request_id: str, message: str) -> Response:
    """A refusal in the words of vLLM's batch runner."""
    return Response(HTTPStatus.BAD_REQUEST.value, request_id, json.dumps({"error": {"message": message}}))


class Silent:
    """Ignores the progress of requests."""

    def submitted(self) -> None: ...

    def completed(self) -> None: ...


def namespace(arguments: dict[str, Any], names: list[str], adapters: dict[str, str]) -> Any:
    """The command-line arguments that `vllm run-batch` would have."""
    parser = run_batch.make_arg_parser(FlexibleArgumentParser())
    args = parser.parse_args(["-i", "rows", "-o", "rows", "--model", arguments["model"]])
    for name, value in arguments.items():
        setattr(args, name, value)
    args.served_model_name = names
    from vllm.entrypoints.openai.models.protocol import LoRAModulePath

    args.lora_modules = [LoRAModulePath(name=name, path=path) for name, path in adapters.items()] or None
    return args


def check_handlers_arguments(names: set[str]) -> None:
    """Refuses arguments that `vllm run-batch` does not accept either."""
    known = vars(run_batch.make_arg_parser(FlexibleArgumentParser()).parse_args(["-i", "rows", "-o", "rows"]))
    unknown = sorted(names - set(known))
    if unknown:
        raise TypeError(f"vLLM has no argument {unknown[0]}")
