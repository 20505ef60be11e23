"""The entry point `rollout` of the group `torchrun.handlers`, which torchrun loads.

torch loads it while its own modules are being imported, perhaps because `rollout.rendezvous` imports them. So nothing
of torch, and nothing that needs torch, is imported before a handler is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


def get_handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """The function that makes handlers."""
    return _create


def _create(params: RendezvousParameters) -> RendezvousHandler:
    from rollout import torch_version

    torch_version.check()
    from rollout.rendezvous import create_handler

    return create_handler(params)
