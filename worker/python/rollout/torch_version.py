"""Checks whether the store and the rendezvous work with this environment's torch.

An older one lacks names that they import and calls that they implement, and would fail in unexpected places.
"""

from __future__ import annotations

import re

OLDEST = (2, 13)
_NEEDED = ".".join(map(str, OLDEST))


class TorchTooOld(ImportError):
    """torch is missing, or older than `rollout.Store` and torchrun's backend need."""


def check() -> None:
    """Raises TorchTooOld, which names the installed and the required version."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise TorchTooOld(f"rollout's store and rendezvous need torch {_NEEDED} or newer: {error}") from error
    found = str(torch.__version__)
    parts = re.match(r"(\d+)\.(\d+)", found)
    if parts is not None and (int(parts[1]), int(parts[2])) < OLDEST:
        raise TorchTooOld(
            f"rollout's store and rendezvous need torch {_NEEDED} or newer, this is {found}: "
            f"pip install 'torch>={_NEEDED}'"
        )
