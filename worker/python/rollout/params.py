"""Owns: a row's sampling parameters: the model's own, except its bound of tokens, overridden by the run's, overridden
by the row's.

Invariant: parameters reach vLLM with vLLM's types, so a wrong type fails the row and does not kill the engine.
Absent: bounds, which vLLM checks itself, except those that it does not check.
"""

from __future__ import annotations

import typing
from typing import Any

import msgspec
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from rollout.failures import RowError
from rollout.template import KEY, object_of

# Set by the host, or by vLLM itself.
CLOSED = {"output_kind", "skip_clone", "output_text_buffer_length", "detokenize", "flat_logprobs", "stream_interval"}


INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
FLOAT32_MAX = 3.4e38


class ParamsOf:
    """Makes parameters for rows of one model."""

    def __init__(self, defaults: dict[str, Any], room: int, vocabulary: int) -> None:
        # Without a model's `max_new_tokens`: the default here is the model's room.
        self._defaults = {name: value for name, value in defaults.items() if name != "max_tokens"}
        self._room = room
        self._vocabulary = vocabulary
        hints = typing.get_type_hints(SamplingParams)
        self._types = {name: kind for name, kind in hints.items() if name[0] != "_" and name not in CLOSED}

    def make(self, sampling: dict[str, Any], row: dict[str, Any], prompt_tokens: int) -> SamplingParams:
        """The parameters of a row; raises an error for invalid ones."""
        own = object_of(row.get("sampling_params"), "sampling_params")
        merged = {**self._defaults, **sampling, **own}
        merged.pop(KEY, None)
        fields = {name: self._typed(name, value) for name, value in merged.items() if value is not None}
        # vLLM's default would stop after 16.
        fields.setdefault("max_tokens", max(1, self._room - prompt_tokens))
        return SamplingParams(**fields, output_kind=RequestOutputKind.FINAL_ONLY)

    def _typed(self, name: str, value: Any) -> Any:
        if name == "structured_outputs" and isinstance(value, dict):
            return StructuredOutputsParams(**value)
        kind = self._types.get(name)
        if kind is None:
            raise RowError("UNKNOWN_PARAMETER", f"no sampling parameter {name!r}")
        try:
            typed = msgspec.convert(value, kind, str_keys=True)
        except (msgspec.ValidationError, OverflowError) as error:
            raise RowError("BAD_PARAMETER", f"{name}: {error}") from error
        check_number(name, typed)
        # vLLM does not check these, and its kernels write at these indices.
        if name == "stop_token_ids" and any(not 0 <= token < self._vocabulary for token in typed):
            raise RowError("BAD_PARAMETER", f"{name}: the model has {self._vocabulary} tokens")
        return typed


def check_number(name: str, value: Any) -> None:
    """Refuses a number that no tensor can hold: vLLM would detect it inside a step, and die."""
    if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
        raise RowError("BAD_PARAMETER", f"{name}: {value} is too large")
    if isinstance(value, float) and not abs(value) <= FLOAT32_MAX:
        raise RowError("BAD_PARAMETER", f"{name}: {value} is too large, or no number")
