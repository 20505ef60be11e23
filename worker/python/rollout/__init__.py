"""What of rollout runs in Python: the process of a vLLM engine, and what training jobs use.

`python -m rollout.engine_host` is started by `rollout-worker`, never by a person. What needs torch is imported when it is
asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollout._native import RolloutError as RolloutError
    from rollout.batch import BatchError as BatchError
    from rollout.batch import BatchRun as BatchRun
    from rollout.batch import submit_batch as submit_batch
    from rollout.connection import Connection as Connection
    from rollout.rendezvous import RolloutRendezvousHandler as RolloutRendezvousHandler
    from rollout.store import Store as Store
    from rollout.training import BarrierFailed as BarrierFailed
    from rollout.training import ParticipantLost as ParticipantLost
    from rollout.training import TrainingOrchestrator as TrainingOrchestrator

__version__ = "0.1.0"
__all__ = [
    "BarrierFailed",
    "BatchError",
    "BatchRun",
    "Connection",
    "ParticipantLost",
    "RolloutError",
    "RolloutRendezvousHandler",
    "Store",
    "TrainingOrchestrator",
    "submit_batch",
]

_HOMES = {
    "BarrierFailed": "rollout.training",
    "BatchError": "rollout.batch",
    "BatchRun": "rollout.batch",
    "Connection": "rollout.connection",
    "ParticipantLost": "rollout.training",
    "RolloutError": "rollout._native",
    "RolloutRendezvousHandler": "rollout.rendezvous",
    "Store": "rollout.store",
    "TrainingOrchestrator": "rollout.training",
    "submit_batch": "rollout.batch",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
