"""Owns: the LoRA adapters that rows may name, and what vLLM must be told to load them.

Invariant: an adapter has one number, whoever asks for it. A name that the configuration lacks is the row's failure.
Absent: loading, which vLLM does when a row first names one.
"""

from __future__ import annotations

import json
import os
from typing import Any

from rollout.failures import RowError

# vLLM takes these ranks only.
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
# Adapters in a batch, unless engine_args says it.
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
        rank = max(rank_of(path) for path in self.paths.values())
        arguments.setdefault("max_lora_rank", next((fit for fit in RANKS if fit >= rank), RANKS[-1]))

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
    """Adapters that one batch may have, where nobody says."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        # vLLM's kernels for CPUs give a row without an adapter the last place's, so that place stays empty.
        return count + 1
    return min(count, LORAS_AT_ONCE)


def rank_of(path: str) -> int:
    """The rank that an adapter's own configuration says; the smallest where it cannot be read."""
    try:
        with open(os.path.join(path, "adapter_config.json"), encoding="utf-8") as file:
            return int(json.load(file).get("r", RANKS[0]))
    except (OSError, ValueError, TypeError, AttributeError):
        # A name of the hub, perhaps: vLLM says more when it is to be loaded.
        return RANKS[0]
