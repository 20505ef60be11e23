"""The programs that the wheel brings: `rollout`, `rolloutctl`, `rollout-worker` and `rollout-coordinator`.

They are one executable, which runs as the program whose name it gets as argument zero. pip writes a script for each
program, which calls a function of this module. This module imports nothing of the package, because each start of a
program waits for it.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

EXECUTABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_bin", "rollout-programs")

# What shells use for a program that they do not find. The programs have other meanings for 1 and 2.
_NOT_STARTED = 127


def packaged() -> str | None:
    """The executable, or None if this installation has none: an editable one, or one without `make wheel`."""
    return EXECUTABLE if os.path.isfile(EXECUTABLE) else None


def rollout() -> NoReturn:
    _become("rollout")


def rolloutctl() -> NoReturn:
    _become("rolloutctl")


def rollout_worker() -> NoReturn:
    _become("rollout-worker")


def rollout_coordinator() -> NoReturn:
    _become("rollout-coordinator")


def _become(name: str) -> NoReturn:
    """Replaces this process by the program. A child process instead would not get the signals of a supervisor."""
    try:
        os.execv(EXECUTABLE, [name, *sys.argv[1:]])
    except OSError as error:
        why = f"cannot run {EXECUTABLE}: {error.strerror}" if packaged() else f"{EXECUTABLE} is missing"
    sys.stderr.write(
        f"error: cannot start {name}: {why}. Install the wheel that `make wheel` writes for this machine, or start the "
        f"{name} that `make release` writes by its path.\n"
    )
    sys.exit(_NOT_STARTED)
