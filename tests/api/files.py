"""Files and uploads through the stock client."""

import asyncio
import hashlib
import random
from concurrent.futures import ThreadPoolExecutor

import openai

from calls import async_client, checked, client, fails, members


def files():
    """Files are created at any member, and every member lists, returns and deletes them."""
    clients = members()
    created = []
    for number in range(7):
        content = (f"{number}.jsonl", f'{{"n":{number}}}\n'.encode())
        raw = clients[number % len(clients)].files.with_raw_response.create(
            file=content, purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        file = checked(raw)
        assert (file.filename, file.bytes, file.purpose, file.status) == (content[0], 8, "batch", "processed")
        assert file.expires_at == file.created_at + 3600
        created.append(file.id)
    newest_first = sorted(created, reverse=True)
    for at in clients:
        pages = list(at.files.list(limit=3).iter_pages())
        assert [len(page.data) for page in pages] == [3, 3, 1], pages
        assert [file.id for file in at.files.list(limit=3)] == newest_first
        assert [file.id for file in at.files.list(limit=3, order="asc")] == newest_first[::-1]
        page = checked(at.files.with_raw_response.list(limit=3, purpose="batch"))
        assert page.has_more and [file.id for file in page.data] == newest_first[:3]
        assert not list(at.files.list(purpose="user_data"))
        for number, file in enumerate(created):
            assert checked(at.files.with_raw_response.retrieve(file)).id == file
            assert at.files.content(file).read() == f'{{"n":{number}}}\n'.encode()
        assert at.files.wait_for_processing(created[0]).status == "processed"
        part = at.files.with_raw_response.content(created[3], extra_headers={"Range": "bytes=1-3"})
        assert (part.status_code, part.content) == (206, b'"n"')
    for number, file in enumerate(created):
        deleted = checked(clients[number % len(clients)].files.with_raw_response.delete(file))
        assert deleted.deleted and deleted.id == file
        fails(openai.NotFoundError, 404, "not_found", clients[number % 2].files.retrieve, file)
    assert not list(clients[0].files.list())
    repeated_creation(clients)


def repeated_creation(clients):
    """A request with the same key creates one file, at whichever member it arrives."""
    headers = {"Idempotency-Key": "nightly"}
    request = {"file": ("a.jsonl", b"{}\n"), "purpose": "batch", "extra_headers": headers}
    ids = {at.files.create(**request).id for at in clients}
    assert len(ids) == 1, ids
    other = {**request, "file": ("a.jsonl", b"[]\n")}
    fails(openai.UnprocessableEntityError, 422, "idempotency_key_reused", clients[0].files.create, **other)


def uploads():
    """Parts that arrive at once, in any order and at any member become a file in the listed order."""
    clients = members()
    pieces = [bytes([65 + number]) * (100_000 + number) for number in range(5)]
    whole = b"".join(pieces)
    request = {"filename": "in.jsonl", "purpose": "batch", "mime_type": "application/jsonl"}
    upload = checked(clients[0].uploads.with_raw_response.create(bytes=len(whole), **request))
    assert (upload.status, upload.bytes, upload.file) == ("pending", len(whole), None)
    assert upload.expires_at == upload.created_at + 3600
    order = list(range(5))
    random.Random(7).shuffle(order)

    def add(number):
        at = clients[number % len(clients)]
        return checked(at.uploads.parts.with_raw_response.create(upload.id, data=pieces[number]))

    with ThreadPoolExecutor(len(order)) as pool:
        parts = dict(zip(order, pool.map(add, order)))
    assert {part.upload_id for part in parts.values()} == {upload.id}
    ids = [parts[number].id for number in range(5)]
    complete = {"part_ids": ids, "md5": hashlib.md5(whole).hexdigest()}
    completed = checked(clients[1].uploads.with_raw_response.complete(upload.id, **complete))
    assert (completed.status, completed.file.bytes) == ("completed", len(whole))
    assert clients[2].files.content(completed.file.id).read() == whole
    again = clients[2].uploads.complete(upload.id, part_ids=ids)
    assert again.file.id == completed.file.id
    chunked = clients[0].uploads.upload_file_chunked(
        file=whole, bytes=len(whole), part_size=150_000, **request
    )
    assert clients[1].files.content(chunked.file.id).read() == whole
    begun = clients[0].uploads.create(bytes=1, **request)
    assert checked(clients[1].uploads.with_raw_response.cancel(begun.id)).status == "cancelled"
    ended = fails(openai.ConflictError, 409, "upload_ended", clients[2].uploads.parts.create, begun.id, data=b"1")
    assert ended.response.headers["x-should-retry"] == "false"


def asynchronous_files():
    """The asynchronous client gets the same answers."""
    asyncio.run(_asynchronous_files())


async def _asynchronous_files():
    clients = [async_client(member) for member in range(3)]
    created = await asyncio.gather(
        *(clients[n % 3].files.create(file=(f"{n}.txt", b"12"), purpose="user_data") for n in range(5))
    )
    raw = await clients[0].files.with_raw_response.list(limit=2, purpose="user_data")
    assert len(checked(raw).data) == 2
    listed = [file.id async for file in clients[1].files.list(limit=2, purpose="user_data")]
    assert sorted(listed) == sorted(file.id for file in created)
    content = await clients[2].files.content(created[0].id)
    assert content.read() == b"12"
    await asyncio.gather(*(clients[0].files.delete(file.id) for file in created))
    for each in clients:
        await each.close()


def models():
    """The models of the fleet's workers."""
    for at in members():
        ids = [model.id for model in checked(at.models.with_raw_response.list()).data]
        assert ids == ["fast", "slow"], ids
        assert checked(at.models.with_raw_response.retrieve("fast")).owned_by == "rollout"
    fails(openai.NotFoundError, 404, "not_found", client().models.retrieve, "none/such")
