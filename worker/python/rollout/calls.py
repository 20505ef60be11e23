"""Owns: rows that vLLM's handlers answer, as tasks of an event loop that runs between two steps.

Invariant: a row's task ends before the row is answered. An exception that the engine cannot survive is raised,
whatever a handler made of it. While the engine has rows to run, the loop never waits long; rows that handlers have not
yet passed to the engine get a few milliseconds per step.
Absent: what a handler does (`serving`).
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from rollout import failures
from rollout.client import HostClient
from rollout.failures import RowError
from rollout.outcome import Outcome, as_json
from rollout.serving import Serving

# Time per step for rows that are not in the engine yet.
PATIENCE_S = 0.003
# Time while the engine has nothing to run.
IDLE_WAIT_S = 0.005
# How long a cancelled task may take to end.
CANCEL_S = 5.0

Failed = tuple[int, str, str, str]


class Calls:
    """Rows in progress in handlers. The handlers are made first, and raise an error for a configuration that they
    refuse."""

    def __init__(self, client: HostClient, serving: Serving) -> None:
        self._client = client
        self._serving = serving
        self._loop = asyncio.new_event_loop()
        self._tasks: dict[int, asyncio.Task[Outcome]] = {}
        self._loop.run_until_complete(serving.build())

    def add(self, ticket: int, task: str, model: str, row: dict[str, Any]) -> None:
        """Starts a row."""
        self._tasks[ticket] = self._loop.create_task(self._answer(ticket, task, model, row))

    def running(self) -> bool:
        """Whether any row is in progress."""
        return bool(self._tasks)

    def stop(self, ticket: int) -> bool:
        """Stops a row; false if it is not here."""
        task = self._tasks.pop(ticket, None)
        if task is None:
            return False
        task.cancel()
        self._loop.run_until_complete(asyncio.wait([task], timeout=CANCEL_S))
        if task.done() and not task.cancelled():
            # The result is no longer wanted.
            task.exception()
        return True

    def run(self, engine_is_idle: bool) -> tuple[list[Outcome], list[Failed]]:
        """Runs the handlers; returns the rows that have ended."""
        self._spin()
        deadline = time.monotonic() + PATIENCE_S
        while len(self._tasks) > self._client.waiting() and time.monotonic() < deadline and not self._ended():
            self._spin()
        if engine_is_idle and self._tasks and not self._ended() and not self._client.waiting():
            some = asyncio.wait(self._tasks.values(), timeout=IDLE_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
            self._loop.run_until_complete(some)
        if self._client.fatal is not None:
            raise self._client.fatal
        done: list[Outcome] = []
        failed: list[Failed] = []
        for ticket in self._ended():
            try:
                done.append(self._tasks.pop(ticket).result())
            except Exception as error:
                if failures.is_fatal(error):
                    raise
                failed.append((ticket, *failures.classify(error)))
        return done, failed

    def _spin(self) -> None:
        self._loop.run_until_complete(asyncio.sleep(0))

    def _ended(self) -> list[int]:
        return [ticket for ticket, task in self._tasks.items() if task.done()]

    async def _answer(self, ticket: int, task: str, model: str, row: dict[str, Any]) -> Outcome:
        response = await self._serving.answer(model, request_of(task, row))
        body = json.loads(response.body)
        if response.status != 200:
            transient = response.status >= 500
            if task == "openai":
                raise RowError("ENGINE_REFUSED_ROW", failures.shortened_answer(response.as_extra()), transient=transient)
            told = body.get("error") or {}
            raise RowError(told.get("type") or "ENGINE_REFUSED_ROW", told.get("message") or "", transient=transient)
        usage = body.get("usage") or {}
        extra = response.as_extra() if task == "openai" else as_json(RESULT[task](body))
        # The second names are those of the route for responses.
        names = ("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens")
        tokens = [usage.get(one) or usage.get(other) or 0 for one, other in names]
        return Outcome(ticket, "", "stop", *tokens, extra)


def request_of(task: str, row: dict[str, Any]) -> dict[str, Any]:
    """A row as a request of the OpenAI format: its own, or one built from its fields."""
    if task == "openai":
        return row
    adapter = {"model": row["lora"]} if row.get("lora") is not None else {}
    if task == "score":
        url, body = "/score", {"queries": needed(row, "query"), "documents": needed(row, "document")}
    elif isinstance(row.get("prompt"), str):
        url, body = "/v1/embeddings", {"input": row["prompt"]}
    else:
        extra = row.get("chat_template_kwargs")
        url, body = "/v1/embeddings", {"messages": row.get("messages"), "chat_template_kwargs": extra}
    return {"custom_id": "row", "method": "POST", "url": url, "body": {**body, **adapter}}


def needed(row: dict[str, Any], name: str) -> str:
    """A required text of a row."""
    if not isinstance(row.get(name), str):
        raise RowError("ROW_SHAPE", f"the row's {name} is no text")
    return row[name]


def vector(body: dict[str, Any]) -> dict[str, Any]:
    """The one vector of an answer."""
    return {"embedding": body["data"][0]["embedding"]}


def score(body: dict[str, Any]) -> dict[str, Any]:
    """The one score of an answer."""
    return {"score": body["data"][0]["score"]}


RESULT = {"embed": vector, "score": score}
