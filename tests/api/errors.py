"""Each error of the API is the exception that the stock client has for it, and is repeated only if a repeat helps."""

import openai

from calls import CountingClient, checked, client, create, eventually, fails, lines, upload

REQUEST = {"input_file_id": "file-none", "endpoint": "/v1/chat/completions", "completion_window": "24h"}


def wrong_requests():
    """400, 401, 403 and 404."""
    at = client()
    unknown_key = "rk_00000000_" + "0" * 43
    fails(openai.AuthenticationError, 401, "invalid_api_key", client(key=unknown_key).files.list)
    fails(openai.AuthenticationError, 401, "invalid_api_key", client(key="sk-proj-1").batches.list)
    viewer = client(key="viewer")
    assert checked(viewer.batches.with_raw_response.list()).data is not None
    fails(openai.PermissionDeniedError, 403, "permission_denied", viewer.batches.create, **REQUEST)
    fails(openai.PermissionDeniedError, 403, "permission_denied", viewer.files.delete, "file-none")
    for call, name in (
        (at.files.retrieve, "file-none"), (at.files.content, "file-none"), (at.files.delete, "file-none"),
        (at.batches.retrieve, "batch_none"), (at.batches.cancel, "batch_none"),
    ):
        error = fails(openai.NotFoundError, 404, "not_found", call, name)
        assert name in error.message, error
    fails(openai.NotFoundError, 404, "unknown_url", at.post, "/nothing", cast_to=object)
    file = upload(at, lines(1))
    for call in (client(key="team").files.retrieve, client(key="team").files.content):
        fails(openai.NotFoundError, 404, "not_found", call, file)
    for fields, code, param in (
        ({}, "invalid_value", "input_file_id"),
        ({"input_file_id": file, "endpoint": "/v1/moderations"}, "invalid_url", "endpoint"),
        ({"input_file_id": file, "completion_window": "soon"}, "invalid_value", "completion_window"),
        ({"input_file_id": file, "metadata": {"k": "v" * 513}}, "invalid_value", "metadata"),
        ({"input_file_id": file, "extra_body": {"rollout": {"weight": 0}}}, "invalid_value", "rollout"),
        ({"input_file_id": file, "extra_body": {"stream": True}}, "streaming_unsupported", "stream"),
    ):
        error = fails(openai.BadRequestError, 400, code, at.batches.create, **{**REQUEST, **fields})
        assert error.param == param, error
    wrong = {"file": ("a", b"1"), "purpose": "vision"}
    error = fails(openai.BadRequestError, 400, "invalid_value", at.files.create, **wrong)
    assert error.param == "purpose", error


def conflicts():
    """409 and 422 are sent once."""
    counting = CountingClient()
    at = counting.client
    batch = create(at, lines(100, model="slow"))
    before = counting.sent
    fails(openai.ConflictError, 409, "file_in_use", at.files.delete, batch.input_file_id)
    assert counting.sent == before + 1, "the client repeated a conflict"
    at.batches.cancel(batch.id)
    eventually("the end", lambda: at.batches.retrieve(batch.id).status == "cancelled")
    assert at.files.delete(batch.input_file_id).deleted
    keyed = {"purpose": "user_data", "extra_headers": {"Idempotency-Key": "k"}}
    at.files.create(file=("a", b"1"), **keyed)
    before = counting.sent
    other = {"file": ("a", b"2"), **keyed}
    fails(openai.UnprocessableEntityError, 422, "idempotency_key_reused", at.files.create, **other)
    assert counting.sent == before + 1


def limits():
    """429: the client waits as long as the answer says, unless a repeat is useless."""
    once = client(key="slow", max_retries=0)

    def refused():
        try:
            once.files.list()
        except openai.RateLimitError as error:
            return error
        return None

    error = eventually("a refusal", refused)
    assert (error.status_code, error.code) == (429, "rate_limit_exceeded"), error
    assert int(error.response.headers["retry-after-ms"]) > 0, error.response.headers
    counting = CountingClient(key="slow")
    for _ in range(3):
        counting.client.files.list()
    assert counting.sent > 3, "it was over its rate, so the client waited and repeated"
    limited = CountingClient(key="limited")
    at = limited.client
    batch = create(at, lines(100, model="slow"))
    before = limited.sent
    request = {**REQUEST, "input_file_id": batch.input_file_id}
    fails(openai.RateLimitError, 429, "batch_limit_exceeded", at.batches.create, **request)
    assert limited.sent == before + 1, "the client repeated a request that a repeat cannot change"
    at.batches.cancel(batch.id)
    eventually("the end", lambda: at.batches.retrieve(batch.id).status == "cancelled")
    at.batches.cancel(at.batches.create(**request).id)
