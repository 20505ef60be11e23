"""How the programs of the wheel are started. It needs none: bash, with its own argument zero, stands in for them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path
from unittest import mock

import played_native

played_native.play()

from rollout import _programs, batch  # noqa: E402

PROGRAMS = ("rollout", "rolloutctl", "rollout-worker", "rollout-coordinator")
BASH = shutil.which("bash") or "/bin/bash"
# Starts an entry point as a script of pip does.
START = """
import sys
from rollout import _programs
_programs.EXECUTABLE, name, *sys.argv[1:] = sys.argv[1:]
getattr(_programs, name)()
"""


def start(executable: str, function: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", START, executable, function, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(_programs.__file__).parents[1])}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Programs(unittest.TestCase):
    def test_a_program_replaces_the_process_and_gets_its_name_and_the_arguments(self) -> None:
        for program in PROGRAMS:
            with start(BASH, program.replace("-", "_"), "-c", 'echo "$$ $0"; exit 7') as process:
                said, _ = process.communicate()
            self.assertEqual((process.returncode, said), (7, f"{process.pid} {program}\n"))

    def test_a_missing_executable_is_an_error_that_says_what_to_do(self) -> None:
        with start("/nowhere/rollout-programs", "rolloutctl", "status") as process:
            _, said = process.communicate()
        self.assertEqual(process.returncode, 127)
        self.assertIn("error: cannot start rolloutctl: /nowhere/rollout-programs is missing", said)
        self.assertIn("make wheel", said)
        self.assertEqual(len(said.splitlines()), 1, said)

    def test_an_executable_that_cannot_run_is_an_error_with_the_reason(self) -> None:
        with tempfile.NamedTemporaryFile() as file, start(file.name, "rollout") as process:
            _, said = process.communicate()
        self.assertEqual(process.returncode, 127)
        self.assertIn(f"cannot run {file.name}: Permission denied", said)

    def test_a_start_loads_neither_the_extension_module_nor_the_rest_of_the_package(self) -> None:
        listed = "import sys, rollout._programs; print(*sorted(each for each in sys.modules if 'rollout' in each))"
        environment = {**os.environ, "PYTHONPATH": str(Path(_programs.__file__).parents[1])}
        command = [sys.executable, "-c", listed]
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        self.assertEqual(said.split(), ["rollout", "rollout._programs"])

    def test_each_program_has_an_entry_point(self) -> None:
        project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
        self.assertEqual(
            project["scripts"], {each: f"rollout._programs:{each.replace('-', '_')}" for each in PROGRAMS}
        )
        for each in PROGRAMS:
            self.assertTrue(callable(getattr(_programs, each.replace("-", "_"))))


class Batches(unittest.TestCase):
    def test_a_batch_uses_the_program_of_the_wheel_before_the_one_on_path(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            other = Path(directory) / "rollout"
            other.write_text("#!/bin/sh\n")
            other.chmod(0o755)
            with mock.patch.dict(os.environ, {"PATH": directory}):
                with mock.patch.object(_programs, "EXECUTABLE", BASH):
                    self.assertEqual(batch._command("rollout"), (BASH, "rollout"))
                    self.assertEqual(batch._command(str(other)), (str(other),))
                with mock.patch.object(_programs, "EXECUTABLE", "/nowhere/rollout-programs"):
                    self.assertEqual(batch._command("rollout"), (str(other),))
                    self.assertRaises(FileNotFoundError, batch._command, "rollout-missing")


if __name__ == "__main__":
    unittest.main()
