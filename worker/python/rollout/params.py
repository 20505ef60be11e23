"""Owns: a row's sampling parameters: the model's own, over them the run's, over them the row's.

Invariant: what reaches vLLM has vLLM's types, so that a wrong one is the row's failure and not the engine's death.
Absent: bounds, which vLLM checks itself.
"""

from __future__ import annotations

import typing
from typing import Any

import msgspec
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from rollout.failures import RowError
from rollout.template import KEY, object_of

# The host's affair, or vLLM's own.
CLOSED = {"output_kind", "skip_clone", "output_text_buffer_length", "detokenize", "flat_logprobs", "stream_interval"}


class ParamsOf:
    """Makes parameters for rows of one model."""

    def __init__(self, defaults: dict[str, Any], room: int) -> None:
        self._defaults = defaults
        self._room = room
        hints = typing.get_type_hints(SamplingParams)
        self._types = {name: kind for name, kind in hints.items() if name[0] != "_" and name not in CLOSED}

    def make(self, sampling: dict[str, Any], row: dict[str, Any], prompt_tokens: int) -> SamplingParams:
        """The parameters of a row; raises for what is none."""
        own = object_of(row.get("sampling_params"), "sampling_params")
        merged = {**self._defaults, **sampling, **own}
        merged.pop(KEY, None)
        fields = {name: self._typed(name, value) for name, value in merged.items() if value is not None}
        # vLLM would stop after 16; what is meant is the model's room.
        fields.setdefault("max_tokens", max(1, self._room - prompt_tokens))
        return SamplingParams(**fields, output_kind=RequestOutputKind.FINAL_ONLY)

    def _typed(self, name: str, value: Any) -> Any:
        if name == "structured_outputs" and isinstance(value, dict):
            return StructuredOutputsParams(**value)
        kind = self._types.get(name)
        if kind is None:
            raise RowError("UNKNOWN_PARAMETER", f"no sampling parameter {name!r}")
        try:
            return msgspec.convert(value, kind, str_keys=True)
        except msgspec.ValidationError as error:
            raise RowError("BAD_PARAMETER", f"{name}: {error}") from error
