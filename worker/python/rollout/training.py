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
# The cluster's error for a participant that it no longer counts.
TICKET_VOID = "RO-6004"
# The default job.
JOB = "default"


class BarrierFailed(RuntimeError):
    """This generation of a barrier failed for all. `why` is lost, left, timed_out or aborted; for lost and left,
    `participant`, `host` and `heard_wall_ms` (when it was last heard, 0 if unknown) describe the participant."""

    def __init__(self, failed: dict[str, Any]) -> None:
        super().__init__(failed["message"] or failed["why"])
        self.why: str = failed["why"]
        self.participant: str = failed["participant"]
        self.host: str = failed["host"]
        self.heard_wall_ms: int = failed["heard_wall_ms"]
        self.missing: list[str] = failed["missing"]


class ParticipantLost(RuntimeError):
    """The cluster no longer counts this process: it was silent for too long, or another process took its name."""


@dataclass(frozen=True)
class Dataset:
    """The data that training jobs read: a number of samples, cut into shards of equal size (the last may be
    smaller)."""

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
    """A checkpoint of a job: `state` is open, complete or going, and recovery uses only complete ones."""

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
    """A store by which several processes agree, such as a `torch.distributed.Store`."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Sets a missing key if nothing is expected; returns the value that it has afterward."""


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
        """Why the cluster no longer counts it; empty if it does."""
        return self._native.gone

    def leave(self) -> None:
        """Leaves: barriers that wait for it fail, or continue without it."""
        if not self._left:
            self._left = True
            self._native.leave(milliseconds(PATIENCE))

    def check(self) -> None:
        """Raises ParticipantLost once the cluster no longer counts it."""
        if self.gone:
            raise ParticipantLost(f"{self.name} is gone from {self._job}: {self.gone}")


class TrainingOrchestrator:
    """A training job of a cluster, `default` if none is named. Settings missing from `coordinator_url` and
    `connection` are found as in every `rollout` command (`rollout.Connection.find`); the URL may name several members,
    separated by commas."""

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
        #: By barrier that this process has reached: the generation that it reaches next.
        self._generations: defaultdict[str, int] = defaultdict(lambda: 1)
        self._trainers: dict[str, Trainer] = {}
        #: By name whose last start was unanswered: its request and instance. A repeat with them is the same trainer.
        self._starting: dict[str, tuple[dict[str, Any], int]] = {}
        self._joining = threading.Lock()

    def call(self, method: str, request: dict[str, Any], timeout: timedelta | None = None) -> dict[str, Any]:
        """Makes any API call with a single answer."""
        return call(self.cluster, method, request, timeout) if timeout else call(self.cluster, method, request)

    def register_worker(
        self,
        name: str | None = None,
        *,
        keep_alive_interval: timedelta = timedelta(seconds=5),
        keep_alive_attempts: int = 3,
    ) -> Worker:
        """Makes this process a participant of the job under a unique name. It is lost if it is silent for
        `keep_alive_interval * keep_alive_attempts`. Generations of barriers that have ended by now do not count for
        it, even if a process of its name had arrived at them."""
        name = name or f"{self.addr}_{os.getpid()}"
        worker = Worker(self, name, keep_alive_interval, keep_alive_attempts)
        # Not before: a generation that ends during the registration would count for it.
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
        """By barrier of the job: the generation that waits, or the one after the last."""
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
        """Makes a dataset of the namespace, or finds it: the same name and spec are the same dataset, and it never
        changes. `{shard:5}` in the URI is a shard's number in five digits. Only the reader interprets the format.
        Without `shuffle`, epochs go through the shards by number."""
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
        """The datasets of the namespace, by name."""
        return [Dataset._told(each) for each in self.call("Datasets/ListDatasets", {"namespace": self.namespace})["datasets"]]

    def delete_dataset(self, name: str) -> None:
        """Deletes the cluster's record of it; refused while a job reads it. The data that it names stays."""
        self.call("Datasets/DeleteDataset", {"namespace": self.namespace, "name": name})

    def join(
        self, name: str | None = None, *, keep_alive: timedelta = timedelta(seconds=15), timeout: timedelta = PATIENCE
    ) -> Trainer:
        """Makes this process a trainer in the job's present lineage, or creates the job. Raises HasToRecover if the
        lineage lost work. A trainer that is silent for `keep_alive` is lost."""
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
        """Begins a new lineage of the job, or joins the others in it: every trainer of `world`, by rank, calls it with
        the same world and the same `round`, which is above that of the previous lineage (a rendezvous counts one). It
        begins at the last complete checkpoint, or at the named one: `trainer.checkpoint` has it, and
        `trainer.assigned` the shards. Later work is open again, and trainers left behind get HasToRecover. If the
        store lacks a part of the checkpoint, no lineage begins: RO-5001 names the part, and another checkpoint. With
        `continue_on_loss`, the shards of a lost trainer go to others at once: they are read at least once, no longer
        exactly once. Repeat an unanswered call with the same `world` and `round`, by the same orchestrator and before
        `keep_alive` is over: it is then the same trainer, which does not count as lost."""
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
        """A `round` for `recover` that is above the present lineage's and the same for all callers with the same
        store, such as that of a rendezvous' round. Rounds of a rendezvous restart under another `--rdzv-id`, those of
        a job's lineages do not. To recover again within one round, all callers use the next `attempt`."""
        asked = {"namespace": self.namespace, "job": self.job}
        present = [each["lineage"]["round"] for each in self.call("Shards/ListJobs", asked)["jobs"]]
        wanted = str(max(present, default=0) + 1)
        key = f"rollout/{self.namespace}/{self.job}/lineage/{attempt}"
        return int(store.compare_set(key, "", wanted))

    def _trainer(self, name: str | None, keep_alive: timedelta, timeout: timedelta, **lineage: Any) -> Trainer:
        name = name or f"{self.addr}_{os.getpid()}"
        asked, instance = self._starting.get(name, (None, 0))
        if asked != lineage:
            # Never 0, which means none.
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
        # It is answered: another start is another trainer.
        self._starting.pop(name, None)
        trainer = self._trainers[name] = Trainer(native, name)
        return trainer

    def get_shard_for_worker(
        self, dataset_id: str, worker_id: str, epoch: int, *, timeout: timedelta = PATIENCE
    ) -> Shard | None:
        """The next shard of a dataset for a worker, which no other has; None if the epoch is finished. The trainer of
        that name that this orchestrator made last claims it; if there is none, the worker joins the job: then call
        `trainer(worker_id).leave()` at the end. TimeoutError: other trainers hold the rest."""
        with self._joining:
            trainer = self._trainers.get(worker_id)
            if trainer is None:
                trainer = self.join(worker_id, timeout=timeout)
        return trainer.get_shard(dataset_id, epoch, timeout=timeout)

    def trainer(self, name: str) -> Trainer:
        """The trainer of that name that this orchestrator made last. Raises KeyError if it made none."""
        return self._trainers[name]

    def checkpoints(self) -> list[Checkpoint]:
        """The job's checkpoints, by number, without their ranks."""
        listed = self.call("Checkpoints/ListCheckpoints", {"job": self.job_name})
        return [Checkpoint._told(each) for each in listed["checkpoints"]]

    def latest_checkpoint(self) -> Checkpoint | None:
        """The last complete checkpoint of the job's lineage, from which `recover` begins."""
        found = self.call("Checkpoints/LatestCheckpoint", {"job": self.job_name}).get("checkpoint")
        return Checkpoint._told(found) if found else None

    def label_checkpoint(self, number: int, label: str) -> None:
        """Labels a checkpoint, which is then kept however many there are; an empty label removes the label."""
        self.call("Checkpoints/LabelCheckpoint", {"job": self.job_name, "number": number, "label": label})

    def keep_checkpoints(self, last: int) -> list[int]:
        """How many complete checkpoints the job keeps from now on, beside labeled ones and the one that recovery
        would use (0: all). Returns those that are removed."""
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
        """Waits until all have arrived, and returns their names in order of arrival. All are `members`, by name, or
        any `count` participants, or else the members of the job's round. A lost participant fails it (BarrierFailed),
        or with `shrink` no longer counts. ParticipantLost: this process itself was lost. Without a `generation`, this
        process counts those that it has seen end, from the one that waited when it registered, or the one after the
        last. So the processes of a restarted job wait for each other again, and a process that was refused,
        interrupted or not answered reaches the same generation again."""
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
            # The keep-alive has not reported it yet.
            if str(error).startswith(TICKET_VOID):
                raise ParticipantLost(f"{self.worker.name} is gone from {self.job}: {error}") from error
            raise
        # The cluster ends the barrier in time; this only ends the wait for an unreachable cluster.
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
        """Fails a waiting generation (0: the one that waits now) for all present and future arrivals."""
        barrier = {"job": self.job_name, "barrier": name}
        self.call("Barrier/Abort", {"barrier": barrier, "generation": generation, "reason": reason})
