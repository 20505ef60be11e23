"""How `BatchRun.wait` interprets the program's exit status. It needs no cluster."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

import played_native

played_native.play()

from rollout.batch import BatchError, BatchRun  # noqa: E402


class ExitStatuses(unittest.TestCase):
    def wait(self, script: str) -> bool:
        with tempfile.TemporaryDirectory() as directory:
            program = Path(directory) / "program"
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
            return BatchRun("r", Path(directory), Path(directory) / "batch.toml", (str(program),), {}).wait()

    def test_failed_rows_are_told_from_a_failed_command(self) -> None:
        self.assertTrue(self.wait("exit 0"))
        self.assertFalse(self.wait("exit 10"))
        # An earlier program ended with 1 in both cases, and printed the reason if the command had failed.
        self.assertFalse(self.wait("echo 'run r: 2 rows' >&2; exit 1"))
        for script in ("echo 'error: the disk is full' >&2; exit 1", "exit 2", "exit 130"):
            with self.assertRaises(BatchError):
                self.wait(script)


if __name__ == "__main__":
    unittest.main()
