"""`rollout.TrainingOrchestrator`: a process of a training job, as its cluster sees it. It needs no torch.

    orchestrator = rollout.TrainingOrchestrator(coordinator_url="grpc://c1:7420", job="llama-sft")
    with orchestrator.register_worker("worker-0"):
        orchestrator.barrier("warmed-up", count=4)
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rollout._native import RolloutError
from rollout.connection import Connection
from rollout.contract import HELD_MS, call, held, milliseconds

if TYPE_CHECKING:
    from rollout.store import Store

BARRIER_TIMEOUT = timedelta(seconds=300)


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


class Worker:
    """A participant of a job, kept alive by a thread until `leave`, or the end of a `with`."""

    def __init__(self, orchestrator: TrainingOrchestrator, name: str, interval: timedelta, attempts: int) -> None:
        self.name = name
        self._orchestrator = orchestrator
        self.participant = {
            "name": name,
            "host": socket.gethostname(),
            "addr": orchestrator.addr,
            "keep_alive_interval_ms": milliseconds(interval),
            "keep_alive_attempts": attempts,
        }
        joined = orchestrator.call("Rendezvous/Participate", {"job": orchestrator.job_name, "participant": self.participant})
        self.ticket: int = joined["ticket"]
        self.gone = ""
        self._left = threading.Event()
        every = joined["keep_alive_ms"] / 1000 / attempts
        self._thread = threading.Thread(target=self._keep_alive, args=(every,), name="rollout-keep-alive", daemon=True)
        self._thread.start()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Goes: barriers that wait for it fail, or go on without it."""
        if not self._left.is_set():
            self._left.set()
            self._thread.join()
            self._orchestrator.call("Rendezvous/Leave", {"job": self._orchestrator.job_name, "ticket": self.ticket})

    def check(self) -> None:
        """Raises ParticipantLost once the cluster does not count it any more."""
        if self.gone:
            raise ParticipantLost(f"{self.name} is gone from {self._orchestrator.job}: {self.gone}")

    def _keep_alive(self, every: float) -> None:
        kept = {"participants": [{"job": self._orchestrator.job_name, "ticket": self.ticket}]}
        while not self._left.wait(every):
            try:
                answer = self._orchestrator.call("Rendezvous/KeepAlive", kept, timedelta(seconds=every))["answers"][0]
            except (TimeoutError, ConnectionError):
                continue
            except RolloutError as error:
                self.gone = str(error)
                return
            if answer["gone"]:
                self.gone = answer["gone"]
                return


class TrainingOrchestrator:
    """A training job of a cluster. What `coordinator_url` and `connection` leave open is found as by every `rollout`
    command (`rollout.Connection.find`); the URL may name several members, with commas between them."""

    def __init__(
        self, coordinator_url: str | Sequence[str] | None = None, *, job: str, addr: str | None = None, **connection: Any
    ) -> None:
        listed = coordinator_url if isinstance(coordinator_url, str | None) else list(coordinator_url)
        found = Connection.find(listed, **connection)
        self.cluster = found.cluster()
        self.namespace = found.namespace
        self.job = job
        self.job_name = {"namespace": found.namespace, "job": job}
        self.addr = addr or socket.gethostname()
        self.worker: Worker | None = None
        self._generations: dict[str, itertools.count[int]] = {}

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
        `keep_alive_interval * keep_alive_attempts` is lost."""
        name = name or f"{self.addr}_{os.getpid()}"
        self.worker = Worker(self, name, keep_alive_interval, keep_alive_attempts)
        return self.worker

    def workers(self) -> list[dict[str, Any]]:
        """The participants of the job, by name."""
        return self.call("Rendezvous/Describe", {"job": self.job_name})["participants"]

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
        waited for no more. Without a `generation`, this process's calls count: 1, 2, ..."""
        if self.worker is None:
            raise RuntimeError("register_worker first: a barrier waits for workers")
        if generation is None:
            generation = next(self._generations.setdefault(name, itertools.count(1)))
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
        self.call("Barrier/Arrive", arrival)
        # The cluster ends it in time; this only ends the waiting for a cluster that is not there.
        until = time.monotonic() + timeout.total_seconds() + HELD_MS / 1000 + 60
        while True:
            left = timedelta(seconds=max(0.001, until - time.monotonic()))
            asked = {"barrier": barrier, "generation": generation}
            outcome = held(self.cluster, "Barrier/Wait", asked, left)
            if outcome.get("open"):
                return outcome["open"]["members"]
            if outcome.get("failed"):
                raise BarrierFailed(outcome["failed"])
            self.worker.check()

    def abort_barrier(self, name: str, reason: str, generation: int = 0) -> None:
        """Fails a generation that waits (0: the one that does) for all who are there and all who come."""
        barrier = {"job": self.job_name, "barrier": name}
        self.call("Barrier/Abort", {"barrier": barrier, "generation": generation, "reason": reason})
