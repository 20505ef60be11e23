"""Owns: the arguments that a row passes to the model's chat template.

Invariant: the row's own override the run's, key by key. They are never sampling parameters, wherever they were set.
Absent: the template.
"""

from __future__ import annotations

from typing import Any

from rollout.failures import RowError

KEY = "chat_template_kwargs"


def template_arguments(sampling: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a row of a run with this sampling; raises an error for invalid ones."""
    own = object_of(row.get("sampling_params"), "sampling_params")
    return {**object_of({**sampling, **own}.get(KEY), KEY), **object_of(row.get(KEY), KEY)}


def object_of(value: Any, name: str) -> dict[str, Any]:
    """An object that may be missing."""
    if value is not None and not isinstance(value, dict):
        raise RowError("ROW_SHAPE", f"the row's {name} is no object")
    return value or {}
