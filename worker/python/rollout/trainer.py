"""A trainer of a job: the shards that it reads, and its part of the job's checkpoints. `rollout.TrainingOrchestrator`
makes one; it needs no torch.

    with job.recover("node-0", world=["node-0", "node-1"], round=1) as trainer:
        state = fresh()
        if trainer.checkpoint:  # of a world of any size
            ranks = range(trainer.rank, len(trainer.checkpoint.ranks), trainer.world_size)
            state.load(trainer.checkpoint.step, [trainer.restore(rank) for rank in ranks])
        for shard in trainer.shards("pile", epoch=0):
            for batch in read(shard.uri, shard.first_sample, shard.end_sample):
                state.step(batch)
                shard.done(batch.end_sample)
                if state.steps % 1000 == 0:
                    trainer.save(state.steps, {"model": state.bytes()})  # the loop goes on
            shard.finish(state.steps)
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from rollout import _native
from rollout.contract import PATIENCE, milliseconds

# The cluster's errors for reports about a shard that this trainer does not hold, or not by this claim.
CLAIM_STALE = "RO-6107: the claim is not the shard's present one"

__all__ = ["Lineage", "RestoredFrom", "Saving", "Shard", "Trainer"]


@dataclass(frozen=True)
class Lineage:
    """A line of checkpoints, and the work done since the last of them."""

    number: int
    round: int
    checkpoint: int
    step: int
    world: list[str]


@dataclass(frozen=True)
class RestoredFrom:
    """The checkpoint that a job has recovered from, with its writers by rank."""

    number: int
    step: int
    ranks: list[str]


class Shard:
    """A part of a dataset that only this trainer reads: samples `first_sample` to `end_sample` (exclusive). It begins
    where the job's state ends: `shard_first_sample` is smaller if another trainer has read part of the shard."""

    def __init__(self, trainer: Trainer, claim: _native.Claim) -> None:
        self._trainer = trainer
        self._claim = claim
        self.dataset: str = claim.dataset
        self.epoch: int = claim.epoch
        self.shard: int = claim.shard
        self.first_sample: int = claim.first_sample
        self.end_sample: int = claim.end_sample
        self.shard_first_sample: int = claim.shard_first_sample
        self.uri: str = claim.uri
        self.format: str = claim.format
        self.seed: int = claim.seed
        self._next: int = claim.first_sample
        self._finished: bool | None = None

    @property
    def next_sample(self) -> int:
        """One past the last sample that is in the job's state."""
        return self._next

    def done(self, end_sample: int) -> None:
        """Reports that the samples before this one are in the job's state, and so in every checkpoint that begins from
        now on."""
        if not self._next <= end_sample <= self.end_sample:
            raise ValueError(f"shard {self.shard}: {end_sample} is not from {self._next} to {self.end_sample}")
        self._next = end_sample

    def finish(self, step: int) -> bool:
        """Reports that all its samples are in the job's state after `step`. Returns True if this finishes the epoch.
        Repeating it changes nothing."""
        if self._finished is None:
            self._next = self.end_sample
            self._finished = self._trainer._finish(self, step)
        return self._finished

    def release(self, step: int, end_sample: int | None = None) -> None:
        """Gives it back; the samples reported by `done`, or those before `end_sample`, are in the job's state after
        `step`."""
        self._trainer._release(self, self._next if end_sample is None else end_sample, step)


class Saving:
    """A checkpoint in progress: this rank's part is written and reported in the background."""

    def __init__(self, native: _native.Saving) -> None:
        self._native = native
        self.number: int = native.number
        self.step: int = native.step

    def done(self) -> bool:
        """Whether this rank's part is reported, or never will be: then `reported` raises the reason."""
        return self._native.done()

    def reported(self, timeout: timedelta | None = None) -> None:
        """Waits until this rank's part is durable and reported. Raises OSError if the store refused."""
        self._native.reported(None if timeout is None else timeout.total_seconds())

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until all ranks have reported: only then can the job recover from it. Returns False if it will never
        be complete, because a later one was complete first or it was aborted, or if it is pruned by now
        (`keep_checkpoints`)."""
        return self._native.wait(None if timeout is None else timeout.total_seconds())


class Trainer:
    """A process of the job that reads, in a lineage of it. Threads of the extension keep it alive until `leave`, or
    the end of a `with`; if it dies, or its `with` ends by an error, it is lost. HasToRecover means that the job
    continues without this trainer's work."""

    def __init__(self, native: _native.Trainer, name: str) -> None:
        self._native = native
        self.name = name
        self.lineage = Lineage(*native.lineage)
        found = native.checkpoint
        self.checkpoint: RestoredFrom | None = RestoredFrom(*found) if found else None
        #: The epochs in progress when it joined, and the shards of them that it gets first.
        self.assigned: dict[tuple[str, int], list[int]] = {(d, e): shards for d, e, shards in native.assigned}
        self._lock = threading.Lock()
        self._held: dict[tuple[str, int, int], Shard] = {}
        self._saving: list[Saving] = []

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error its state is unknown: it is lost, as if its process had died.
        try:
            if kind is None:
                self.leave()
        finally:
            # A trainer that could not leave must not continue either, because nothing else would stop its keep-alives.
            # After a successful leave, this changes nothing.
            self._native.abandon()

    @property
    def rank(self) -> int:
        """Its rank in the lineage's world."""
        return self.lineage.world.index(self.name)

    @property
    def world_size(self) -> int:
        """The number of trainers in the lineage."""
        return len(self.lineage.world)

    @property
    def lost(self) -> bool:
        """Whether the cluster has answered that the job must recover, or has recovered without this trainer."""
        return self._native.lost

    def get_shard(self, dataset: str, epoch: int, *, timeout: timedelta = PATIENCE) -> Shard | None:
        """The next shard for this trainer, once there is one; None if the epoch is finished. TimeoutError: other
        trainers hold the rest."""
        claim = self._native.claim(dataset, epoch, milliseconds(timeout))
        if claim is None:
            return None
        shard = Shard(self, claim)
        with self._lock:
            self._held[claim.dataset, claim.epoch, claim.shard] = shard
        return shard

    def shards(self, dataset: str, epoch: int, *, timeout: timedelta = PATIENCE) -> Iterator[Shard]:
        """This trainer's shards until the epoch is finished. Finish or release each one before the next."""
        while (shard := self.get_shard(dataset, epoch, timeout=timeout)) is not None:
            yield shard

    def save(
        self, step: int, files: Mapping[str, bytes], *, label: str = "", timeout: timedelta = PATIENCE
    ) -> Saving:
        """Begins the checkpoint of a step, or finds it, and returns: this rank's files are written and reported in the
        background, with the trainer's progress in the shards that it holds; this finishes shards that are done. Raises
        the error of an earlier failed checkpoint. Waits up to `timeout` for ranks that have not joined yet."""
        self._check_saved()
        with self._lock:
            held = list(self._held.values())
        for shard in held:
            if shard.next_sample == shard.end_sample:
                shard.finish(step)
        with self._lock:
            progress = [(s.dataset, s.epoch, s.shard, s.next_sample) for s in self._held.values()]
        begun = self._native.save(step, label, list(files.items()), progress, milliseconds(timeout))
        saving = Saving(begun)
        with self._lock:
            self._saving.append(saving)
        return saving

    def restore(self, rank: int | None = None) -> dict[str, bytes]:
        """The files of a rank, by default this trainer's own, of the checkpoint that was recovered from. Every byte is
        compared with what was reported. Raises OSError if anything is missing or differs from what was written; then
        recover from an earlier checkpoint. The world may have had another size: raises LookupError if it had no such
        rank."""
        return dict(self._native.restore(self.rank if rank is None else rank))

    def leave(self) -> None:
        """Waits for its own writes, and leaves. Its contribution stays: the others have it, or a checkpoint that was
        saved before. So a trainer whose state is its own must be in a complete checkpoint first. A shard that it still
        holds tears the lineage; so does the last trainer to leave if any work is in no checkpoint."""
        with self._lock:
            saving, self._saving = self._saving, []
        for each in saving:
            each.reported()
        self._native.leave()

    def _check_saved(self) -> None:
        with self._lock:
            done = [each for each in self._saving if each.done()]
            self._saving = [each for each in self._saving if each not in done]
        for each in done:
            each.reported()

    def _finish(self, shard: Shard, step: int) -> bool:
        with self._held_no_more_if_stale(shard):
            finished = self._native.finish(shard._claim, step)
        self._drop(shard)
        return finished

    def _release(self, shard: Shard, end_sample: int, step: int) -> None:
        with self._held_no_more_if_stale(shard):
            self._native.release(shard._claim, end_sample, step)
        self._drop(shard)

    @contextmanager
    def _held_no_more_if_stale(self, shard: Shard) -> Iterator[None]:
        """An unanswered release may have been applied, and the shard may now belong to another trainer: no checkpoint
        reports it any more. A release that is refused for its step or its samples leaves the shard in hand, or its
        progress would be forgotten."""
        try:
            yield
        except _native.RolloutError as error:
            if str(error).startswith(CLAIM_STALE):
                self._drop(shard)
            raise

    def _drop(self, shard: Shard) -> None:
        with self._lock:
            self._held.pop((shard.dataset, shard.epoch, shard.shard), None)
