"""Calls of the stock `openai` client at the members of a fleet.

Each JSON answer is loaded once more through the client's own types, in strict mode: the client itself accepts any JSON.
"""

import itertools
import json
import os
import time

import pydantic
from openai import AsyncOpenAI, DefaultHttpxClient, OpenAI

# Written by the test that started the fleet: the base URLs of the members, and API keys by their names.
CONFIG = json.load(open(os.environ["ROLLOUT_API_TEST"], encoding="utf-8"))
MEMBERS = CONFIG["members"]
PATIENCE_S = 120
# Fields that OpenAI's lists have, and the client's type does not.
FIELDS_OF_PAGES = {"object", "first_id", "last_id"}


def options(member, key):
    return {"base_url": MEMBERS[member % len(MEMBERS)], "api_key": CONFIG["keys"].get(key, key), "timeout": PATIENCE_S}


def client(member=0, key="user", **more):
    """A client of one member. `key` is the name of a key in the configuration, or its text."""
    return OpenAI(**options(member, key), **more)


def async_client(member=0, key="user"):
    return AsyncOpenAI(**options(member, key))


def members():
    """A client of each member."""
    return [client(member) for member in range(len(MEMBERS))]


class CountingClient:
    """A client that counts what it sends, repeats included."""

    def __init__(self, **how):
        self.sent = 0
        hooks = {"request": [self._count]}
        self.client = client(http_client=DefaultHttpxClient(event_hooks=hooks), **how)

    def _count(self, _request):
        self.sent += 1


def checked(raw):
    """The answer of a call with `with_raw_response`, after a comparison of its JSON with the client's types."""
    assert raw.headers["x-request-id"].startswith("req_"), raw.headers
    answer = raw.parse()
    strict(type(answer), raw.text)
    return answer


def strict(model, text):
    """Loads JSON as a type of the client's. No field may have another type, and none may be unknown."""
    loaded = model.model_validate_json(text, strict=True)
    unknown = set(extras(loaded))
    assert unknown <= FIELDS_OF_PAGES, f"{model.__name__} has no {unknown}: {text}"
    return loaded


def extras(value):
    """The names of all fields in an object that its types do not have."""
    if isinstance(value, pydantic.BaseModel):
        yield from value.model_extra or ()
        for name in type(value).model_fields:
            yield from extras(getattr(value, name))
    elif isinstance(value, list):
        for each in value:
            yield from extras(each)


def fails(kind, status, code, call, *args, **named):
    """Calls, and returns the error, which has the form of OpenAI's errors."""
    try:
        call(*args, **named)
    except kind as error:
        assert (type(error), error.status_code, error.code) == (kind, status, code), error
        assert error.request_id.startswith("req_"), error
        body = error.body
        assert set(body) == {"message", "type", "param", "code"}, body
        assert body["message"] and isinstance(body["type"], str), body
        assert body["param"] is None or isinstance(body["param"], str), body
        return error
    raise AssertionError(f"expected {kind.__name__}")


def eventually(what, condition):
    """Waits until a condition gives a value that is true, and returns it."""
    end = time.monotonic() + PATIENCE_S
    for _ in itertools.count():
        if value := condition():
            return value
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.1)


def lines(count, model="fast", url="/v1/chat/completions", **body):
    """An input file for a batch, as bytes."""
    made = []
    for row in range(count):
        asked = body or {"messages": [{"role": "user", "content": f"say {row}"}]}
        request = {"custom_id": f"row-{row}", "method": "POST", "url": url, "body": {"model": model, **asked}}
        made.append(json.dumps(request) + "\n")
    return "".join(made).encode()


def upload(at, content, filename="in.jsonl"):
    """Creates a file for a batch, and returns its id."""
    return checked(at.files.with_raw_response.create(file=(filename, content), purpose="batch")).id


def create(at, content, **more):
    """Creates a batch of these lines."""
    request = {
        "input_file_id": upload(at, content),
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        **more,
    }
    return checked(at.batches.with_raw_response.create(**request))


def rows(at, file):
    """The lines of an output file."""
    return [json.loads(line) for line in at.files.content(file).text.splitlines()]
