"""Routes with a fake vLLM: which are reported, and what a row of each route gets."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import unittest
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock


class Model:
    """Stands for pydantic's models: requests and answers."""

    def __init__(self, **values: Any) -> None:
        self.values = values
        self.stream = values.get("stream", False)

    @classmethod
    def model_validate(cls, body: dict[str, Any]) -> Model:
        return cls(**body)

    def model_dump_json(self, by_alias: bool = False) -> str:
        return json.dumps({**self.values, **({"aliases": True} if by_alias else {})})


class Request(Model):
    """A request for a response."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.store = values.get("store", True)
        self.background = values.get("background", False)


class ErrorResponse(Model):
    error = SimpleNamespace(code=404)


class JSONResponse:
    def __init__(self, status_code: int, body: bytes) -> None:
        self.status_code, self.body = status_code, body


class BatchRequestInput(Model):
    url = property(lambda self: self.values["url"])


def handle(request: Any, tracker: Any, url_matcher: Any, handler_getter: Any, wrapper_fn: Any) -> Any:
    """As in vLLM's batch runner."""
    if not url_matcher(request.url):
        return None
    answer = handler_getter()

    async def response() -> Any:
        body = answer(request) if answer is not None else None
        return SimpleNamespace(
            error=None if body else "refused",
            response=SimpleNamespace(status_code=200 if body else 400, request_id="q", body=body),
        )

    return response()


def endpoint(matches: Callable[[str], bool], handler: Any) -> dict[str, Any]:
    return {"url_matcher": matches, "handler_getter": lambda: handler, "wrapper_fn": None}


def played() -> dict[str, ModuleType]:
    """The names that the module imports from vLLM and its dependencies."""
    names = ["pydantic", "starlette", "starlette.datastructures", "starlette.responses", "rollout.client", "vllm"]
    names += ["vllm.utils", "vllm.utils.argparse_utils", "vllm.entrypoints", "vllm.entrypoints.launchers"]
    names += ["vllm.entrypoints.launchers.api_server", "vllm.entrypoints.launchers.api_server.entry"]
    names += ["vllm.entrypoints.openai", "vllm.entrypoints.pooling", "vllm.entrypoints.pooling.pooling"]
    names += ["vllm.entrypoints.openai.completion", "vllm.entrypoints.openai.responses", "vllm.entrypoints.serve"]
    names += [f"vllm.entrypoints.{of}.protocol" for of in ("openai.completion", "openai.responses", "pooling.pooling")]
    names += ["vllm.entrypoints.serve.engine", "vllm.entrypoints.serve.engine.protocol"]
    modules: dict[str, Any] = {name: ModuleType(name) for name in names}
    modules["pydantic"].BaseModel = Model
    modules["pydantic"].TypeAdapter = lambda model: SimpleNamespace(validate_python=model.model_validate)
    modules["starlette.datastructures"].State = SimpleNamespace
    modules["starlette.responses"].JSONResponse = JSONResponse
    modules["rollout.client"].HostClient = object
    modules["vllm.utils"].random_uuid = lambda: "u"
    modules["vllm.utils.argparse_utils"].FlexibleArgumentParser = object
    batch = SimpleNamespace(BatchRequestInput=BatchRequestInput, handle_endpoint_request=handle)
    modules["vllm.entrypoints.launchers"].run_batch = batch
    modules["vllm.entrypoints.launchers.api_server.entry"].init_app_state = None
    modules["vllm.entrypoints.openai.completion.protocol"].CompletionRequest = Model
    modules["vllm.entrypoints.openai.responses.protocol"].ResponsesRequest = Request
    modules["vllm.entrypoints.pooling.pooling.protocol"].PoolingRequest = Model
    modules["vllm.entrypoints.serve"].create_error_response = lambda error: ErrorResponse(error=str(error))
    modules["vllm.entrypoints.serve.engine.protocol"].ErrorResponse = ErrorResponse
    return modules


class Routes(unittest.TestCase):
    def setUp(self) -> None:
        patch = mock.patch.dict(sys.modules, played())
        patch.start()
        self.addCleanup(patch.stop)
        sys.modules.pop("rollout.serving", None)
        self.module = importlib.import_module("rollout.serving")
        self.asked: list[Any] = []

    def serving(self, **handlers: Any) -> Any:
        """Handlers as vLLM makes them: of the given names, and in its batch runner those of one kind of model."""
        serving = object.__new__(self.module.Serving)
        serving._adapters = {}
        serving._state = SimpleNamespace(**handlers)
        chat = "openai_serving_completion" in handlers

        def batch(request: Any) -> Any:
            return Model(of=request.url)

        serving._registry = {
            "completions": endpoint(lambda url: url == "/v1/chat/completions", batch if chat else None),
            "embeddings": endpoint(lambda url: url == "/v1/embeddings", None if chat else batch),
            "score": endpoint(lambda url: url.endswith("/score"), None if chat else batch),
            "rerank": endpoint(lambda url: url.endswith("/rerank"), None if chat else batch),
        }
        return serving

    def handler(self, answer: Any) -> Any:
        async def handle(request: Any) -> Any:
            self.asked.append(request)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return SimpleNamespace(create_completion=handle, create_responses=handle, __call__=handle)

    def generating(self, answer: Any = None) -> Any:
        handler = self.handler(answer)
        return self.serving(openai_serving_completion=handler, openai_serving_responses=handler)

    def ask(self, serving: Any, url: str, **body: Any) -> tuple[int, Any]:
        row = {"custom_id": "c", "method": "POST", "url": url, "body": body}
        response = asyncio.run(serving.answer("m", row))
        return response.status, json.loads(response.body)

    def test_a_route_is_reported_if_the_model_has_its_handler(self) -> None:
        generate = ["/v1/chat/completions", "/v1/completions", "/v1/responses"]
        self.assertEqual(self.generating().routes(), generate)
        pooling = self.serving(serving_pooling=self.handler(None))
        scores = ["/v1/embeddings", "/v1/score", "/v1/rerank", "/score", "/rerank"]
        self.assertEqual(pooling.routes(), [*scores, "/pooling"])
        # As vLLM leaves it for a model that only generates.
        none = self.serving(openai_serving_completion=self.handler(None), openai_serving_responses=None)
        self.assertNotIn("/v1/responses", none.routes())

    def test_every_reported_route_answers_and_no_other_does(self) -> None:
        for serving in [self.generating(Model(said=1)), self.serving(serving_pooling=self.handler(Model(said=1)))]:
            reported = serving.routes()
            for url in [*self.module.BATCH, *self.module.SERVER]:
                if url.startswith("/v1/audio"):
                    continue
                status, _ = self.ask(serving, url)
                self.assertEqual(status, 200 if url in reported else 400, url)
        with self.assertRaises(self.module.RowError) as raised:
            self.ask(self.generating(), "/v1/images/generations")
        self.assertEqual(raised.exception.code, "UNKNOWN_URL")

    def test_a_response_has_the_names_of_the_server_and_is_not_kept(self) -> None:
        status, body = self.ask(self.generating(Model(said=1)), "/v1/responses", input="x", store=True)
        self.assertEqual((status, body), (200, {"said": 1, "aliases": True}))
        self.assertFalse(self.asked[0].store)
        self.assertEqual(self.ask(self.generating(Model(said=1)), "/v1/completions")[1], {"said": 1})

    def test_streams_and_background_requests_are_refused_before_they_begin(self) -> None:
        for url, more in [("/v1/responses", "stream"), ("/v1/responses", "background"), ("/v1/completions", "stream")]:
            status, body = self.ask(self.generating(Model()), url, **{more: True})
            self.assertEqual(status, 400)
            self.assertIn(more, body["error"]["message"])
        self.assertEqual(self.asked, [])

    def test_errors_and_ready_made_responses_keep_their_status(self) -> None:
        self.assertEqual(self.ask(self.generating(ErrorResponse(error="gone")), "/v1/responses")[0], 404)
        status, body = self.ask(self.generating(ValueError("refused")), "/v1/completions")
        self.assertEqual((status, body["error"]), (404, "refused"))
        pooling = self.serving(serving_pooling=self.handler(JSONResponse(200, b'{"data":[]}')))
        self.assertEqual(self.ask(pooling, "/pooling", input="x"), (200, {"data": []}))
        stream = self.serving(serving_pooling=self.handler(iter(())))
        self.assertEqual(self.ask(stream, "/pooling", input="x")[0], 400)


if __name__ == "__main__":
    unittest.main()
