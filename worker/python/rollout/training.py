"""`rollout.TrainingOrchestrator`: a process of a training job, as its cluster sees it. It needs no torch.

    orchestrator = rollout.TrainingOrchestrator(coordinator_url="grpc://c1:7420")
    orchestrator.register_dataset("pile", uri="s3://data/{shard:5}.tar", format="webdataset", samples=1_000_000, seed=42)
    with orchestrator.register_worker("worker-0"):
        orchestrator.barrier("warmed-up", count=4)

Shards and checkpoints are a trainer's: `rollout.trainer`. `get_shard_for_worker` is for loops that have no trainer in hand.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from rollout._native import RolloutError
from rollout.connection import Connection
from rollout.contract import HELD_MS, PATIENCE, call, held, milliseconds
from rollout.trainer import Shard, Trainer

if TYPE_CHECKING:
    from rollout.store import Store

BARRIER_TIMEOUT = timedelta(seconds=300)
# How the cluster refuses a participant that it does not count any more.
TICKET_VOID = "RO-6004"
# The job of whoever names none.
JOB = "default"


class BarrierFailed(RuntimeError):
    """Nobody passes this generation of a barrier. `why` is lost, left, timed_out or aborted; of who was lost or left
    `participant`, `host` and when it was last heard (`heard_wall_ms`, 0: not known) are told."""

    def __init__(self, failed: dict[str, Any]) -> None:
        super().__init__(failed["message"] or failed["why"])
        self.why: str = failed["why"]
        self.participant: str = failed["participant"]
        self.host: str = failed["host"]
        self.heard_wall_ms: int = failed["heard_wall_ms"]
        self.missing: list[str] = failed["missing"]


class ParticipantLost(RuntimeError):
    """The cluster does not count this process any more: it was silent for too long, or another has its name."""


@dataclass(frozen=True)
class Dataset:
    """What training jobs read: so many samples, cut into shards of equal size (the last may be smaller)."""

    name: str
    uri: str
    format: str
    samples: int
    shard_samples: int
    shards: int
    shuffle: bool
    seed: int
    metadata: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def _told(cls, dataset: Mapping[str, Any]) -> Dataset:
        spec = dataset["spec"]
        same = {key: spec[key] for key in ("uri", "format", "samples", "shard_samples", "seed", "metadata")}
        return cls(name=dataset["name"], shards=dataset["shards"], shuffle=not spec["in_order"], **same)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of a job: `state` is open, complete or going, and only a complete one is recovered from."""

    number: int
    step: int
    state: str
    label: str
    lineage: int
    bytes: int
    ranks: list[str]

    @classmethod
    def _told(cls, checkpoint: Mapping[str, Any]) -> Checkpoint:
        state = checkpoint["state"].removeprefix("CHECKPOINT_STATE_").lower()
        ranks = [rank["trainer"] for rank in checkpoint["ranks"]]
        same = {key: checkpoint[key] for key in ("number", "step", "label", "lineage", "bytes")}
        return cls(state=state, ranks=ranks, **same)


class Agreeing(Protocol):
    """What several processes agree by: a `torch.distributed.Store`, say."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Sets a key that is not there, where nothing is expected; answers the value that it has then."""


class Worker:
    """A participant of a job, kept alive by threads of the extension until `leave`, or the end of a `with`."""

    def __init__(self, orchestrator: TrainingOrchestrator, name: str, interval: timedelta, attempts: int) -> None:
        self.name = name
        self._job = orchestrator.job
        self.participant: dict[str, Any] = {
            "name": name,
            "host": socket.gethostname(),
            "addr": orchestrator.addr,
            "keep_alive_interval_ms": milliseconds(interval),
            "keep_alive_attempts": attempts,
        }
        self._native = orchestrator.cluster.participate(
            orchestrator.namespace,
            self._job,
            name,
            socket.gethostname(),
            orchestrator.addr,
            milliseconds(interval),
            attempts,
            milliseconds(PATIENCE),
        )
        self.ticket: int = self._native.ticket
        self._left = False

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    @property
    def gone(self) -> str:
        """Why the cluster does not count it any more; empty: it does."""
        return self._native.gone

    def leave(self) -> None:
        """Goes: barriers that wait for it fail, or go on without it."""
        if not self._left:
            self._left = True
            self._native.leave(milliseconds(PATIENCE))

    def check(self) -> None:
        """Raises ParticipantLost once the cluster does not count it any more."""
        if self.gone:
            raise ParticipantLost(f"{self.name} is gone from {self._job}: {self.gone}")


class TrainingOrchestrator:
    """A training job of a cluster, `default` if none is named. What `coordinator_url` and `connection` leave open is found
    as by every `rollout` command (`rollout.Connection.find`); the URL may name several members, with commas between them."""

    def __init__(
        self,
        coordinator_url: str | Sequence[str] | None = None,
        *,
        job: str = JOB,
        addr: str | None = None,
        **connection: Any,
    ) -> None:
        listed = coordinator_url if isinstance(coordinator_url, str | None) else list(coordinator_url)
        found = Connection.find(listed, **connection)
        self.cluster = found.cluster()
        self.namespace = found.namespace
        self.job = job
        self.job_name = {"namespace": found.namespace, "job": job}
        self.addr = addr or socket.gethostname()
        self.worker: Worker | None = None
        #: Of each barrier that this process has come to: the generation that it comes to next.
        self._generations: defaultdict[str, int] = defaultdict(lambda: 1)
        self._trainers: dict[str, Trainer] = {}
        #: Of a name whose last start was not answered: what was asked, and who asked. Asked again, it is the same trainer.
        self._starting: dict[str, tuple[dict[str, Any], int]] = {}
        self._joining = threading.Lock()

    def call(self, method: str, request: dict[str, Any], timeout: timedelta | None = None) -> dict[str, Any]:
        """Any call of the contract with one answer."""
        return call(self.cluster, method, request, timeout) if timeout else call(self.cluster, method, request)

    def register_worker(
        self,
        name: str | None = None,
        *,
        keep_alive_interval: timedelta = timedelta(seconds=5),
        keep_alive_attempts: int = 3,
    ) -> Worker:
        """Makes this process a participant of the job under a name that no other has. One that is silent for
        `keep_alive_interval * keep_alive_attempts` is lost. Generations of barriers that have ended by now are none of its
        own, though a process of its name may have arrived at them."""
        name = name or f"{self.addr}_{os.getpid()}"
        worker = Worker(self, name, keep_alive_interval, keep_alive_attempts)
        # Not before: what ends while it registers would be taken for its own.
        try:
            generations = self._generations_to_come()
        except BaseException:
            worker.leave()
            raise
        self._generations.clear()
        self._generations.update(generations)
        self.worker = worker
        return worker

    def _generations_to_come(self) -> dict[str, int]:
        """Of each barrier of the job: the generation that waits, or the one after the last."""
        generations, after, more = {}, "", True
        while more:
            answer = self.call("Barrier/List", {"job": self.job_name, "after": after})
            for each in answer["barriers"]:
                after = each["barrier"]["barrier"]
                generations[after] = each["generation"] + (each["state"] != "waiting")
            more = answer["more"]
        return generations

    def workers(self) -> list[dict[str, Any]]:
        """The participants of the job, by name."""
        return list(self.call("Rendezvous/Describe", {"job": self.job_name})["participants"])

    def register_dataset(
        self,
        name: str,
        *,
        uri: str,
        samples: int,
        format: str = "",
        shard_samples: int = 10_000,
        shuffle: bool = True,
        seed: int = 42,
        metadata: Mapping[str, str] | None = None,
    ) -> Dataset:
        """Makes a dataset of the namespace, or finds it: the same name and the same of everything else is the same
        dataset, and it never changes. `{shard:5}` in the URI is a shard's number in five digits. The format is the
        reader's business. Without `shuffle`, epochs go through the shards by number."""
        spec = {
            "uri": uri,
            "format": format,
            "samples": samples,
            "shard_samples": shard_samples,
            "in_order": not shuffle,
            "seed": seed,
            "metadata": dict(metadata or {}),
        }
        made = self.call("Datasets/CreateDataset", {"namespace": self.namespace, "name": name, "spec": spec})
        return Dataset._told(made["dataset"])

    def dataset(self, name: str) -> Dataset:
        """One dataset of the namespace."""
        return Dataset._told(
            self.call("Datasets/DescribeDataset", {"namespace": self.namespace, "name": name})["dataset"]
        )

    def datasets(self) -> list[Dataset]:
        """Those of the namespace, by name."""
        return [Dataset._told(each) for each in self.call("Datasets/ListDatasets", {"namespace": self.namespace})["datasets"]]

    def delete_dataset(self, name: str) -> None:
        """Forgets it; refused while a job reads it. What it names stays where it is."""
        self.call("Datasets/DeleteDataset", {"namespace": self.namespace, "name": name})

    def join(
        self, name: str | None = None, *, keep_alive: timedelta = timedelta(seconds=15), timeout: timedelta = PATIENCE
    ) -> Trainer:
        """Makes this process a trainer in the job's present lineage, or makes the job. HasToRecover: the lineage lost
        work. One that is silent for `keep_alive` is lost."""
        return self._trainer(name, keep_alive, timeout)

    def recover(
        self,
        name: str | None = None,
        *,
        world: Sequence[str],
        round: int,
        checkpoint: int = 0,
        continue_on_loss: bool = False,
        keep_alive: timedelta = timedelta(seconds=15),
        timeout: timedelta = PATIENCE,
    ) -> Trainer:
        """Begins a new lineage of the job, or joins the others in it: every trainer of `world`, by rank, asks with the
        same world and the same `round`, which is above that of the lineage before (a rendezvous counts one). It begins at
        the last complete checkpoint, or at the one that is named: `trainer.checkpoint` has it, and `trainer.assigned` the
        shards; what was finished later is open again, and whoever was left behind gets HasToRecover. Of a checkpoint of
        which the store lacks something no lineage begins: RO-5001 names it, and another checkpoint. With
        `continue_on_loss` the shards of a trainer that is lost are given to others at once: at least once, no longer
        exactly once. One that was not answered is asked again with the same `world` and `round`, by the same orchestrator
        and before `keep_alive` is over: it is the same trainer then, which nobody has lost."""
        if not world:
            raise ValueError("a lineage has trainers: name all of them, by rank")
        return self._trainer(
            name,
            keep_alive,
            timeout,
            world=list(world),
            round=round,
            checkpoint=checkpoint,
            continue_on_loss=continue_on_loss,
        )

    def next_round(self, store: Agreeing, attempt: int = 0) -> int:
        """A `round` for `recover` that is above the present lineage's, the same for everybody who asks with the same store:
        that of a rendezvous' round, say. Rounds of a rendezvous count anew under another `--rdzv-id`, those of a job's
        lineages do not. To recover once more within one round, all ask for the next `attempt`."""
        asked = {"namespace": self.namespace, "job": self.job}
        present = [each["lineage"]["round"] for each in self.call("Shards/ListJobs", asked)["jobs"]]
        wanted = str(max(present, default=0) + 1)
        key = f"rollout/{self.namespace}/{self.job}/lineage/{attempt}"
        return int(store.compare_set(key, "", wanted))

    def _trainer(self, name: str | None, keep_alive: timedelta, timeout: timedelta, **lineage: Any) -> Trainer:
        name = name or f"{self.addr}_{os.getpid()}"
        asked, instance = self._starting.get(name, (None, 0))
        if asked != lineage:
            # Never 0, which says nothing.
            instance = secrets.randbits(64) | 1
        self._starting[name] = (lineage, instance)
        native = self.cluster.trainer(
            self.namespace,
            self.job,
            name,
            socket.gethostname(),
            milliseconds(keep_alive),
            milliseconds(timeout),
            instance=instance,
            **lineage,
        )
        # Answered: whoever starts it once more is another.
        self._starting.pop(name, None)
        trainer = self._trainers[name] = Trainer(native, name)
        return trainer

    def get_shard_for_worker(
        self, dataset_id: str, worker_id: str, epoch: int, *, timeout: timedelta = PATIENCE
    ) -> Shard | None:
        """The next shard of a dataset for a worker, which no other has; None: the epoch is finished. It is asked for by the
        trainer of that name that this orchestrator made last, and where it made none the worker joins the job: then
        `trainer(worker_id).leave()` when it is done. TimeoutError: others have what is left."""
        with self._joining:
            trainer = self._trainers.get(worker_id)
            if trainer is None:
                trainer = self.join(worker_id, timeout=timeout)
        return trainer.get_shard(dataset_id, epoch, timeout=timeout)

    def trainer(self, name: str) -> Trainer:
        """The trainer of that name that this orchestrator made last. KeyError: it made none."""
        return self._trainers[name]

    def checkpoints(self) -> list[Checkpoint]:
        """The job's checkpoints, by number, without their ranks."""
        listed = self.call("Checkpoints/ListCheckpoints", {"job": self.job_name})
        return [Checkpoint._told(each) for each in listed["checkpoints"]]

    def latest_checkpoint(self) -> Checkpoint | None:
        """The last complete one of the job's lineage: what `recover` begins with."""
        found = self.call("Checkpoints/LatestCheckpoint", {"job": self.job_name}).get("checkpoint")
        return Checkpoint._told(found) if found else None

    def label_checkpoint(self, number: int, label: str) -> None:
        """Labels a checkpoint, which keeps it however many there are; an empty label takes it away."""
        self.call("Checkpoints/LabelCheckpoint", {"job": self.job_name, "number": number, "label": label})

    def keep_checkpoints(self, last: int) -> list[int]:
        """How many complete checkpoints the job keeps from now on, beside labelled ones and the one that recovery would
        give (0: all). Answers those that go."""
        kept = {"job": self.job_name, "keep_last": last, "now": False}
        return list(self.call("Checkpoints/PruneCheckpoints", kept)["pruned"])

    def store(self, round: int = 0, **options: Any) -> Store:
        """The job's shared store. This needs torch."""
        from rollout.store import Store

        return Store(job=self.job, round=round, cluster=self.cluster, namespace=self.namespace, **options)

    def barrier(
        self,
        name: str,
        *,
        generation: int | None = None,
        members: Sequence[str] = (),
        count: int = 0,
        shrink: bool = False,
        timeout: timedelta = BARRIER_TIMEOUT,
    ) -> list[str]:
        """Waits until all have arrived, and names them in that order. All are `members`, by name, or `count` of
        whomever, or else the members of the job's round. One that is lost fails it (BarrierFailed), or with `shrink` is
        waited for no more. ParticipantLost: this process itself was. Without a `generation`, this process counts those that
        it has seen end, from the one that waited when it registered, or the one after the last: so the processes of a job
        that is started again wait for each other again, and whoever was refused, interrupted or not answered comes to the
        same one again."""
        if self.worker is None:
            raise RuntimeError("register_worker first: a barrier waits for workers")
        counted = generation is None
        if generation is None:
            generation = self._generations[name]
        barrier = {"job": self.job_name, "barrier": name}
        arrival = {
            "barrier": barrier,
            "generation": generation,
            "ticket": self.worker.ticket,
            "participant": self.worker.participant,
            "set": {"members": list(members), "count": count},
            "policy": "BARRIER_POLICY_SHRINK" if shrink else "BARRIER_POLICY_FAIL",
            "timeout_ms": milliseconds(timeout),
        }
        self.worker.check()
        try:
            self.call("Barrier/Arrive", arrival)
        except RolloutError as error:
            # Before its keep-alive has told it.
            if str(error).startswith(TICKET_VOID):
                raise ParticipantLost(f"{self.worker.name} is gone from {self.job}: {error}") from error
            raise
        # The cluster ends it in time; this only ends the waiting for a cluster that is not there.
        until = time.monotonic() + timeout.total_seconds() + HELD_MS / 1000 + 60
        while True:
            left = timedelta(seconds=max(0.001, until - time.monotonic()))
            asked = {"barrier": barrier, "generation": generation}
            outcome = held(self.cluster, "Barrier/Wait", asked, left)
            if counted and (outcome.get("open") or outcome.get("failed")):
                self._generations[name] = generation + 1
            if outcome.get("open"):
                return list(outcome["open"]["members"])
            if outcome.get("failed"):
                raise BarrierFailed(outcome["failed"])
            self.worker.check()

    def abort_barrier(self, name: str, reason: str, generation: int = 0) -> None:
        """Fails a generation that waits (0: the one that does) for all who are there and all who come."""
        barrier = {"job": self.job_name, "barrier": name}
        self.call("Barrier/Abort", {"barrier": barrier, "generation": generation, "reason": reason})
