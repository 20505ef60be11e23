"""Owns: requests of the OpenAI format. vLLM's own handlers answer them as they do for `vllm run-batch`; requests to
`/v1/completions`, which vLLM's batch runner does not support, are answered as in vLLM's server.

Invariant: a response is the handler's own, unchanged. A request for a model other than the run's fails its row.
Handlers are made before the first row, so a configuration that they refuse is blamed on no row.
Absent: the thread on which they run (`vllm_engine` runs the handlers between two steps).
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any, NamedTuple

from starlette.datastructures import State
from vllm.entrypoints.launchers import run_batch
from vllm.entrypoints.launchers.api_server.entry import init_app_state
from vllm.entrypoints.openai.completion.protocol import CompletionRequest, CompletionResponse
from vllm.entrypoints.serve import create_error_response
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.utils import random_uuid
from vllm.utils.argparse_utils import FlexibleArgumentParser

from rollout.client import HostClient
from rollout.failures import RowError

COMPLETIONS = "/v1/completions"


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

    async def answer(self, model: str, row: dict[str, Any]) -> Response:
        """The response to a row. Raises an error if there is none."""
        body = row.get("body")
        if not isinstance(body, dict):
            raise RowError("ROW_SHAPE", "the row's body is no object")
        named = body.get("model")
        if named is not None and named != model and named not in self._adapters:
            raise RowError("MODEL_MISMATCH", f"the body's model is not the run's, {model!r}")
        if row.get("url") == COMPLETIONS:
            return await self._completion(CompletionRequest.model_validate(body))
        request = run_batch.BatchRequestInput.model_validate(row)
        endpoint = self._registry.get(request.url.split("/")[-1])
        answer = endpoint and run_batch.handle_endpoint_request(request, Silent(), **endpoint)
        if answer is None:
            raise RowError("UNKNOWN_URL", f"vLLM's batch runner has no {request.url}")
        output = await answer
        response = output.response
        if output.error is None:
            body = response.body.model_dump_json()
        elif isinstance(output.error, str):
            body = json.dumps({"error": {"message": output.error}})
        else:
            body = output.error.model_dump_json()
        return Response(response.status_code, response.request_id, body)

    async def _completion(self, request: CompletionRequest) -> Response:
        """The answer of vLLM's server; exceptions and streams are converted as its batch runner does elsewhere."""
        handler = self._state.openai_serving_completion
        request_id = f"vllm-batch-{random_uuid()}"
        refused = None
        if handler is None:
            refused = f"Model does not support endpoint: {COMPLETIONS}"
        elif request.stream:
            refused = "Request must not be sent in stream mode"
        if refused is not None:
            return Response(HTTPStatus.BAD_REQUEST.value, request_id, json.dumps({"error": {"message": refused}}))
        try:
            answer: CompletionResponse | ErrorResponse = await handler.create_completion(request)
        except Exception as error:
            answer = create_error_response(error)
        status = answer.error.code if isinstance(answer, ErrorResponse) else HTTPStatus.OK.value
        return Response(status, request_id, answer.model_dump_json())


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
