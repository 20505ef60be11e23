"""Batches through the stock client."""

import asyncio

import openai
from openai.types import CreateEmbeddingResponse
from openai.types.chat import ChatCompletion

from calls import async_client, checked, client, create, eventually, fails, lines, members, rows, upload

TIMES = ["completed_at", "failed_at", "expired_at", "cancelled_at"]


def until(batch, status):
    """Waits until a batch has ended as `status`. Each answer, from a member in turn, is checked."""
    clients = members()
    answers = iter(range(1_000_000))

    def ended():
        at = clients[next(answers) % len(clients)]
        found = checked(at.batches.with_raw_response.retrieve(batch))
        assert found.status == status or not any(getattr(found, time) for time in TIMES), found
        return found if found.status == status else None

    found = eventually(f"{batch} is {status}", ended)
    assert getattr(found, f"{status}_at") >= found.created_at
    counts = found.request_counts
    assert counts.completed + counts.failed == counts.total, found
    return found


def completed():
    """A batch runs to its end, and its output has the answers in the order of the input."""
    at = client()
    options = {"metadata": {"team": "a"}, "extra_body": {"rollout": {"priority": 7}, "unknown": 1}}
    batch = create(at, lines(50), output_expires_after={"anchor": "created_at", "seconds": 3600}, **options)
    assert batch.status in ("validating", "in_progress", "finalizing", "completed"), batch
    assert batch.expires_at == batch.created_at + 24 * 60 * 60
    found = until(batch.id, "completed")
    assert (found.request_counts.total, found.request_counts.failed) == (50, 0), found
    assert found.in_progress_at <= found.finalizing_at <= found.completed_at
    assert (found.model, found.metadata, found.errors, found.error_file_id) == ("fast", {"team": "a"}, None, None)
    assert found.usage.total_tokens == found.usage.input_tokens + found.usage.output_tokens > 0
    for each in members():
        output = rows(each, found.output_file_id)
        assert [row["custom_id"] for row in output] == [f"row-{row}" for row in range(50)]
    for number, row in enumerate(output):
        assert set(row) == {"id", "custom_id", "response", "error"} and row["error"] is None, row
        assert row["response"]["status_code"] == 200 and row["response"]["request_id"], row
        answer = ChatCompletion.model_validate(row["response"]["body"])
        assert answer.choices[0].message.content == f"MOCK:say {number}", answer
    file = checked(at.files.with_raw_response.retrieve(found.output_file_id))
    assert (file.purpose, file.expires_at) == ("batch_output", file.created_at + 3600), file
    ended = fails(openai.ConflictError, 409, "batch_state_conflict", at.batches.cancel, batch.id)
    assert ended.response.headers["x-should-retry"] == "false"
    assert at.files.delete(batch.input_file_id).deleted


def other_endpoints():
    """Rows of another endpoint of the workers."""
    at = client()
    batch = create(at, lines(3, url="/v1/embeddings", input="a text"), endpoint="/v1/embeddings")
    for row in rows(at, until(batch.id, "completed").output_file_id):
        answer = CreateEmbeddingResponse.model_validate(row["response"]["body"])
        assert answer.data[0].embedding, answer


def failed_rows():
    """Rows that fail are in the error file. If all do, the batch says why it has no output file."""
    at = client()
    bad = lines(3, messages="none")
    found = until(create(at, bad).id, "completed")
    assert (found.request_counts.failed, found.output_file_id) == (3, None), found
    assert [error.code for error in found.errors.data] == ["no_request_succeeded"], found
    for row in rows(at, found.error_file_id):
        failed_with_response = row["response"] and row["response"]["status_code"] >= 300
        assert failed_with_response or row["error"]["code"], row
    some = bad.splitlines(keepends=True)[:1] + lines(3).splitlines(keepends=True)[1:]
    found = until(create(at, b"".join(some)).id, "completed")
    assert (found.request_counts.completed, found.request_counts.failed, found.errors) == (2, 1, None), found
    assert [row["custom_id"] for row in rows(at, found.output_file_id)] == ["row-1", "row-2"]
    assert [row["custom_id"] for row in rows(at, found.error_file_id)] == ["row-0"]


def invalid_file():
    """Faults of the content appear in the batch, with line and code, and no row runs."""
    at = client()
    content = lines(2) + b"no JSON\n" + lines(1)
    found = until(create(at, content).id, "failed")
    faults = {(error.code, error.line) for error in found.errors.data}
    assert faults == {("invalid_json_line", 3), ("duplicate_custom_id", 4)}, found
    assert (found.output_file_id, found.error_file_id, found.request_counts.total) == (None, None, 0), found


def cancelled():
    """A cancelled batch keeps the rows that have run. A repeat of the cancellation changes nothing."""
    at = client()
    batch = create(at, lines(100, model="slow"))
    eventually("a row has run", lambda: at.batches.retrieve(batch.id).request_counts.completed)
    for each in members():
        found = checked(each.batches.with_raw_response.cancel(batch.id))
        assert found.status in ("cancelling", "cancelled") and found.cancelling_at, found
    found = until(batch.id, "cancelled")
    unfinished(at, found, "batch_cancelled")
    assert checked(at.batches.with_raw_response.cancel(batch.id)) == found


def expired():
    """The same for a batch whose completion window has passed."""
    at = client()
    found = until(create(at, lines(100, model="slow"), completion_window="10s").id, "expired")
    assert found.expires_at == found.created_at + 10 and found.expired_at >= found.expires_at, found
    unfinished(at, found, "batch_expired")


def unfinished(at, found, code):
    counts = found.request_counts
    assert 0 < counts.completed < counts.total == 100, found
    output, errors = rows(at, found.output_file_id), rows(at, found.error_file_id)
    assert (len(output), len(errors)) == (counts.completed, counts.failed), found
    assert {(row["response"], row["error"]["code"]) for row in errors} == {(None, code)}
    assert sorted(row["custom_id"] for row in output + errors) == sorted(f"row-{row}" for row in range(100))


def repeated():
    """A repeated request gets the first batch, at whichever member it arrives."""
    clients = members()
    file = upload(clients[0], lines(1))
    request = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    for named in ({"extra_headers": {"Idempotency-Key": "k1"}}, {"metadata": {"rollout.key": "nightly"}}):
        ids = {checked(at.batches.with_raw_response.create(**request, **named)).id for at in clients}
        assert len(ids) == 1, ids
        other = {**request, **named, "completion_window": "1h"}
        fails(openai.UnprocessableEntityError, 422, "idempotency_key_reused", clients[1].batches.create, **other)
        until(ids.pop(), "completed")


def listed():
    """Every member lists the batches, the newest first, over several pages."""
    clients = members()
    file = upload(clients[0], lines(1))
    request = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    newest_first = [at.batches.create(**request).id for at in clients + clients[:2]][::-1]
    for at in clients:
        page = checked(at.batches.with_raw_response.list(limit=2))
        assert page.has_more and [batch.id for batch in page.data] == newest_first[:2], page
        pages = at.batches.list(limit=2).iter_pages()
        first_three = [batch.id for _, page in zip(range(3), pages) for batch in page.data]
        assert first_three[:5] == newest_first, first_three
        every = [batch.id for batch in at.batches.list(limit=2)]
        assert every[:5] == newest_first and len(every) == len(set(every))
    for batch in newest_first:
        until(batch, "completed")


def asynchronous_batches():
    """The asynchronous client gets the same answers."""
    asyncio.run(_asynchronous_batches())


async def _asynchronous_batches():
    at = async_client(1)
    file = await at.files.create(file=("in.jsonl", lines(2)), purpose="batch")
    request = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    made = await asyncio.gather(*(at.batches.create(**request) for _ in range(3)))
    raw = await at.batches.with_raw_response.list(limit=1)
    assert len(checked(raw).data) == 1
    listed_ids = [batch.id async for batch in at.batches.list(limit=1)]
    assert {batch.id for batch in made} <= set(listed_ids)
    for batch in made:
        found = await asyncio.to_thread(until, batch.id, "completed")
        content = await at.files.content(found.output_file_id)
        assert len(content.text.splitlines()) == 2
    await at.close()
