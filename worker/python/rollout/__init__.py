"""The Python part of rollout: the process of a vLLM engine, and the API for training jobs.

`rollout-worker` starts `python -m rollout.engine_host`; users do not. Modules that need torch are imported on first
use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollout._native import HasToRecover as HasToRecover
    from rollout._native import RolloutError as RolloutError
    from rollout.batch import BatchError as BatchError
    from rollout.batch import BatchRun as BatchRun
    from rollout.batch import submit_batch as submit_batch
    from rollout.connection import Connection as Connection
    from rollout.rendezvous import RolloutRendezvousHandler as RolloutRendezvousHandler
    from rollout.store import Store as Store
    from rollout.trainer import Saving as Saving
    from rollout.trainer import Shard as Shard
    from rollout.trainer import Trainer as Trainer
    from rollout.training import BarrierFailed as BarrierFailed
    from rollout.training import Checkpoint as Checkpoint
    from rollout.training import Dataset as Dataset
    from rollout.training import ParticipantLost as ParticipantLost
    from rollout.training import TrainingOrchestrator as TrainingOrchestrator

__version__ = "0.1.0"
__all__ = [
    "BarrierFailed",
    "BatchError",
    "BatchRun",
    "Checkpoint",
    "Connection",
    "Dataset",
    "HasToRecover",
    "ParticipantLost",
    "RolloutError",
    "RolloutRendezvousHandler",
    "Saving",
    "Shard",
    "Store",
    "Trainer",
    "TrainingOrchestrator",
    "submit_batch",
]

_HOMES = {
    "BarrierFailed": "rollout.training",
    "BatchError": "rollout.batch",
    "BatchRun": "rollout.batch",
    "Checkpoint": "rollout.training",
    "Connection": "rollout.connection",
    "Dataset": "rollout.training",
    "HasToRecover": "rollout._native",
    "ParticipantLost": "rollout.training",
    "RolloutError": "rollout._native",
    "RolloutRendezvousHandler": "rollout.rendezvous",
    "Saving": "rollout.trainer",
    "Shard": "rollout.trainer",
    "Store": "rollout.store",
    "Trainer": "rollout.trainer",
    "TrainingOrchestrator": "rollout.training",
    "submit_batch": "rollout.batch",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
