"""A program for mypy that is never run: what the package's types promise to users without torch."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import assert_type

import rollout


def job() -> rollout.TrainingOrchestrator:
    return rollout.TrainingOrchestrator(coordinator_url="grpc://c1:7420,c2:7420")


def shards(orchestrator: rollout.TrainingOrchestrator) -> Iterator[int]:
    dataset = orchestrator.register_dataset("pile", uri="s3://b/{shard:5}.tar", samples=1000, format="webdataset")
    assert_type(dataset, rollout.Dataset)
    with orchestrator.recover("node-0", world=["node-0"], round=1) as trainer:
        assert_type(trainer, rollout.Trainer)
        assert_type(trainer.restore(), dict[str, bytes])
        for shard in trainer.shards(dataset.name, epoch=0):
            assert_type(shard, rollout.Shard)
            yield from range(shard.first_sample, shard.end_sample)
            assert_type(shard.finish(1), bool)
        saving = trainer.save(1, {"model": b"weights"}, label="best")
        assert_type(saving.wait(timedelta(minutes=5)), bool)


def one_shard(orchestrator: rollout.TrainingOrchestrator) -> int:
    shard = orchestrator.get_shard_for_worker("pile", "worker-0", 0)
    assert_type(shard, rollout.Shard | None)
    return -1 if shard is None else shard.first_sample


def barrier(orchestrator: rollout.TrainingOrchestrator) -> list[str]:
    with orchestrator.register_worker("worker-0"):
        try:
            return orchestrator.barrier("warmed-up", count=4)
        except rollout.BarrierFailed as failed:
            assert_type(failed.host, str)
            assert_type(failed.missing, list[str])
            return []


def checkpoint(orchestrator: rollout.TrainingOrchestrator) -> int:
    latest = orchestrator.latest_checkpoint()
    assert_type(latest, rollout.Checkpoint | None)
    return 0 if latest is None else latest.step


class Store:
    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return desired.encode()


def agreed(orchestrator: rollout.TrainingOrchestrator) -> int:
    return orchestrator.next_round(Store())


def wrong(orchestrator: rollout.TrainingOrchestrator) -> None:
    # Each of these must be an error: `--warn-unused-ignores` reports those that are not.
    orchestrator.register_dataset("pile")  # type: ignore[call-arg]
    orchestrator.barrier("warmed-up", count="4")  # type: ignore[arg-type]
    orchestrator.join().save("1", {})  # type: ignore[arg-type]
    rollout.TrainingOrchestrator(job=7)  # type: ignore[arg-type]
