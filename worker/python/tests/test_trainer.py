"""A trainer's behavior when the cluster refuses, with a fake cluster."""

from __future__ import annotations

import unittest
from typing import Any
from unittest import mock

import played_native

played_native.play()

from rollout import _native  # noqa: E402
from rollout.trainer import CLAIM_STALE, Shard, Trainer  # noqa: E402


def trainer() -> tuple[Trainer, Any]:
    native = mock.Mock(lineage=(1, 1, 0, 0, ["t0"]), checkpoint=None, assigned=[])
    return Trainer(native, "t0"), native


def claim() -> Any:
    numbers = {"epoch": 0, "shard": 3, "first_sample": 0, "end_sample": 10, "shard_first_sample": 0, "seed": 1}
    return mock.Mock(dataset="pile", uri="u", format="", **numbers)


class Leaving(unittest.TestCase):
    def test_one_that_cannot_leave_is_not_kept_alive(self) -> None:
        made, native = trainer()
        native.save.return_value.reported.side_effect = OSError("the disk is full")
        with self.assertRaisesRegex(OSError, "full"):
            with made:
                made.save(1, {})
        native.abandon.assert_called()
        native.leave.assert_not_called()


class Shards(unittest.TestCase):
    def refused(self, said: str) -> list[Any]:
        """The shards reported by a checkpoint that begins after that refusal."""
        made, native = trainer()
        native.claim.return_value = claim()
        shard = made.get_shard("pile", 0)
        assert isinstance(shard, Shard)
        native.release.side_effect = _native.RolloutError(said)
        with self.assertRaises(_native.RolloutError):
            shard.release(1)
        native.save.return_value.done.return_value = False
        made.save(2, {})
        return list(native.save.call_args.args[3])

    def test_no_checkpoint_is_told_of_one_that_is_not_its_own(self) -> None:
        self.assertEqual(self.refused(f"{CLAIM_STALE} (not applied)"), [])

    def test_one_whose_step_is_refused_stays_in_hand(self) -> None:
        self.assertEqual(self.refused("RO-6107: step 1 is before step 4"), [("pile", 0, 3, 0)])


if __name__ == "__main__":
    unittest.main()
