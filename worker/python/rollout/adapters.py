"""Owns: the LoRA adapters that rows may name, the arguments with which vLLM can load them, and the check that it does.

Invariant: an adapter always has the same number. A row that names an unknown adapter fails; an adapter that cannot be
loaded fails the start, because vLLM would detect it within a step and die.
Absent: which adapters are on the device; vLLM decides that.
"""

from __future__ import annotations

import json
import os
from typing import Any

from rollout import failures
from rollout.failures import RowError

# vLLM accepts only these ranks.
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
# Adapters in a batch, unless engine_args sets the number.
LORAS_AT_ONCE = 8


class Adapters:
    """Adapters by name."""

    def __init__(self, paths: dict[str, str]) -> None:
        self.paths = dict(sorted(paths.items()))
        self._requests: dict[str, Any] = {}

    def set_up(self, arguments: dict[str, Any]) -> None:
        """Completes vLLM's engine arguments for these adapters."""
        if not self.paths:
            return
        arguments.setdefault("enable_lora", True)
        arguments.setdefault("max_loras", loras_at_once(len(self.paths)))
        if "max_lora_rank" not in arguments:
            rank = max(rank_of(name, path) for name, path in self.paths.items())
            arguments["max_lora_rank"] = next((fit for fit in RANKS if fit >= rank), RANKS[-1])

    def load(self, engine: Any) -> None:
        """Has vLLM load each of them once. Raises an error for an adapter that vLLM refuses."""
        for name, path in self.paths.items():
            try:
                engine.add_lora(self.of(name))
            except Exception as error:
                if failures.is_fatal(error):
                    raise
                raise ValueError(f"vLLM does not load the adapter {name!r} of {path}: {error}") from error

    def of(self, name: Any) -> Any:
        """vLLM's name for an adapter; None for none."""
        if name is None:
            return None
        if name not in self.paths:
            raise RowError("UNKNOWN_LORA", f"no adapter {name!r} here")
        if name not in self._requests:
            from vllm.lora.request import LoRARequest

            number = 1 + list(self.paths).index(name)
            self._requests[name] = LoRARequest(name, number, self.paths[name])
        return self._requests[name]


def loras_at_once(count: int) -> int:
    """The default number of adapters in one batch."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        # vLLM's CPU kernels give a row without an adapter the last place's adapter, so that place stays empty.
        return count + 1
    return min(count, LORAS_AT_ONCE)


def rank_of(name: str, path: str) -> int:
    """The rank in an adapter's own configuration, for which vLLM must reserve room before it loads an adapter."""
    from vllm.lora.utils import get_adapter_absolute_path

    try:
        # An adapter on the hub is downloaded for this.
        with open(os.path.join(get_adapter_absolute_path(path), "adapter_config.json"), encoding="utf-8") as file:
            return int(json.load(file)["r"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"the adapter {name!r} of {path} says no rank, nor engine_args a max_lora_rank: {why}") from error
