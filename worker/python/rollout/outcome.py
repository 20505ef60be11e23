"""Owns: an engine's result for a row, in the form that the agent gets.

Invariant: `extra` is a JSON object's text or empty, and has no numbers that JSON lacks. A completion that vLLM
abandoned is not a completion.
Absent: failures of requests that never began.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from rollout.failures import RowError

# JSON has no infinity; the OpenAI API writes this value.
LEAST_LOGPROB = -9999.0
# vLLM's finish reasons of a completion that it abandoned: grammar failed, cache lost, or vLLM aborted the request.
# Requests aborted by the host do not end this way: vLLM forgets them. vLLM's own handlers make an error of the first.
GIVEN_UP = {"error", "abort"}


class Outcome(NamedTuple):
    """A row's end, in the order of the agent's protocol."""

    ticket: int
    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    extra: str


def as_json(extra: dict[str, Any]) -> str:
    """The text of extra fields; empty if there are none."""
    if not extra:
        return ""
    try:
        return json.dumps(extra, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise RowError("RESULT_NOT_FINITE", "the result has numbers that JSON lacks") from error


def of_completion(ticket: int, output: Any) -> Outcome:
    """A row's end from vLLM's final `RequestOutput`; raises an error if vLLM abandoned one of its completions."""
    extra: dict[str, Any] = {}
    every = sorted(output.outputs, key=lambda one: one.index)
    for one in every:
        if str(one.finish_reason) in GIVEN_UP:
            raise RowError("GENERATION_FAILED", f"vLLM aborted the completion: {one.finish_reason}", transient=True)
    if len(every) > 1:
        extra["completions"] = [completion(one) for one in every]
    first = every[0]
    if first.logprobs is not None:
        extra["logprobs"] = logprobs(first)
    if output.prompt_logprobs is not None:
        extra["prompt_logprobs"] = [prompt_position(at) for at in output.prompt_logprobs]
    return Outcome(
        ticket,
        first.text,
        str(first.finish_reason or ""),
        len(output.prompt_token_ids or ()),
        sum(len(one.token_ids) for one in every),
        as_json(extra),
    )


def completion(one: Any) -> dict[str, Any]:
    """One of several completions."""
    fields = {"index": one.index, "text": one.text, "finish_reason": str(one.finish_reason or "")}
    if one.stop_reason is not None:
        fields["stop_reason"] = one.stop_reason
    if one.logprobs is not None:
        fields["logprobs"] = logprobs(one)
    return fields


def logprobs(one: Any) -> dict[str, list[Any]]:
    """Log probabilities, as the OpenAI API returns them with a completion."""
    tokens, chosen, top, offsets, offset = [], [], [], [], 0
    for token_id, at in zip(one.token_ids, one.logprobs, strict=False):
        token = decoded(token_id, at)
        tokens.append(token)
        chosen.append(finite(at[token_id].logprob) if at and token_id in at else None)
        top.append({decoded(other, at): finite(found.logprob) for other, found in at.items()} if at else None)
        offsets.append(offset)
        offset += len(token)
    return {"text_offset": offsets, "token_logprobs": chosen, "tokens": tokens, "top_logprobs": top}


def prompt_position(at: Any) -> dict[str, Any] | None:
    """Log probabilities of one token of the prompt, as vLLM's server returns them; the first token has none."""
    if at is None:
        return None
    return {
        str(token_id): {"logprob": finite(one.logprob), "rank": one.rank, "decoded_token": one.decoded_token}
        for token_id, one in at.items()
    }


def decoded(token_id: int, at: Any) -> str:
    """A token's text, if vLLM has decoded it."""
    found = at.get(token_id) if at else None
    return found.decoded_token if found is not None and found.decoded_token is not None else f"token_id:{token_id}"


def finite(value: float) -> float | None:
    """A log probability that JSON can represent; null for NaN and positive infinity."""
    return max(value, LEAST_LOGPROB) if value < math.inf else None
