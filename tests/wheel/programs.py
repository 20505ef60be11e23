"""Checks the four programs that an installed wheel brings: `programs.py DIRECTORY COMMIT`. Its interpreter is that of
the wheel's environment, which is not activated. No program is on PATH: the programs start each other without it. Their
files go into DIRECTORY. COMMIT is empty if the build knew none."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import rollout
from rollout import _programs

NAMES = ("rollout", "rolloutctl", "rollout-worker", "rollout-coordinator")
BIN = Path(sys.executable).parent
DEV = Path(sys.argv[1]) / "dev"
PATIENCE = 180


def processes() -> list[int]:
    """The processes that run the wheel's executable."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.path.samefile(process / "exe", _programs.EXECUTABLE):
                found.append(int(process.name))
        except OSError:
            continue  # It has ended, or belongs to another user.
    return found


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal. Before that, the signal ends it."""
    (caught,) = re.findall(r"^SigCgt:\s*([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return bool(int(caught, 16) >> (number - 1) & 1)


def call(*command: object) -> str:
    ran = subprocess.run([str(each) for each in command], capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0, ran
    return ran.stdout


def check_versions(commit: str) -> None:
    version = importlib.metadata.version("rollout-ml")
    for name in NAMES:
        expected = [f"{name} {version} ({commit}{dirty})\n" for dirty in ("", "-dirty")]
        if not commit:
            expected = [f"{name} {version}\n"]
        said = call(BIN / name, "--version")
        assert said in expected, (said, expected)


def check_cluster() -> None:
    """Three members, two workers and a batch need nothing but the wheel."""
    try:
        call(BIN / "rollout", "dev", "--detach", "--dir", DEV)
        # The command itself, members and workers. The workers' mock engines are further processes.
        assert len(processes()) >= 6, processes()
        run = rollout.submit_batch(
            [{"id": "a", "prompt": "What is a quorum?"}], model="any", output=DEV / "out", context=DEV / "client.toml"
        )
        assert run.wait()
        (row,) = (DEV / "out" / "completions.jsonl").read_text().splitlines()
        assert json.loads(row)["id"] == "a", row
    except BaseException:
        log = DEV / "logs" / "dev.log"
        sys.stderr.write(log.read_text() if log.is_file() else "")
        raise
    finally:
        call(BIN / "rollout", "dev", "stop", "--dir", DEV)
    assert not processes(), processes()


def check_signal() -> None:
    """SIGTERM to the process that a supervisor started stops the member: there is no other process."""
    command = [BIN / "rollout-coordinator", "--config", DEV / "config" / "c1.toml"]
    log = DEV / "logs" / "alone.log"
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as member:
        try:
            deadline = time.monotonic() + PATIENCE
            while not catches(member.pid, signal.SIGTERM):
                assert member.poll() is None and time.monotonic() < deadline, member.returncode
                time.sleep(0.05)
            assert processes() == [member.pid], (processes(), member.pid)
            member.send_signal(signal.SIGTERM)
            assert member.wait(PATIENCE) == 0, member.returncode
        except BaseException:
            member.kill()
            sys.stderr.write(log.read_text())
            raise


check_versions(sys.argv[2])
check_cluster()
check_signal()
