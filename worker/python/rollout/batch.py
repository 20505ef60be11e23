"""Batch runs from Python: `rollout.submit_batch`.

The program `rollout` submits, so a run is the same whether it comes from Python or from the command line. The run
belongs to the cluster: if the process ends or the laptop is closed, nothing is lost.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout import _programs

# The exit status of a command that succeeded although rows failed permanently.
_ROWS_FAILED = 10
# The same status of earlier programs, which also use it for a failed command and then print the reason.
_ROWS_FAILED_BEFORE = 1
# The beginning of the line that says why the command failed; failed rows have no such line.
_REFUSED = "error: "


class BatchError(RuntimeError):
    """`rollout` failed or was refused; the text is its message, `status` its exit status (docs/batch.md lists them)."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said.strip() or f"rollout ended with status {status}")
        self.status = status


@dataclass(frozen=True)
class BatchRun:
    """A submitted run."""

    name: str
    output: Path
    config: Path
    _program: tuple[str, ...]
    _environment: Mapping[str, str]

    def wait(self) -> bool:
        """Waits for the run's end and writes its output: `completions.jsonl`, and `errors.jsonl` if rows failed
        permanently. Returns True if none did, and False if some did but nothing else went wrong. BatchError: the
        output was not written, for example because the run was cancelled or the disk is full; `output` may then hold
        an earlier run's files. It may be called again, also by another process: `rollout infer batch --resume`."""
        arguments = ["infer", "batch", "--config", str(self.config), "--resume", self.name, "--quiet"]
        ran = subprocess.run([*self._program, *arguments], env=self._environment, capture_output=True, text=True)
        if _rows_failed(ran):
            return False
        _check(ran)
        return True

    def results(self, *, follow: bool = False) -> Iterator[dict[str, Any]]:
        """Rows that have their outcome; with `follow`, later ones too, until the run ends."""
        arguments = [*self._program, "run", "results", self.name, "--config", str(self.config), "--quiet"]
        # Its stderr goes to a file: an unread pipe would fill while rows are read, and block the program.
        with (
            tempfile.TemporaryFile("w+") as said,
            subprocess.Popen(
                [*arguments, *(["--follow"] if follow else [])],
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            ) as process,
        ):
            try:
                for line in process.stdout or ():
                    yield json.loads(line)
                status = process.wait()
            except GeneratorExit:
                process.terminate()
                raise
            if status != 0:
                said.seek(0)
                raise BatchError(status, said.read())


def submit_batch(
    rows: str | os.PathLike[str] | Iterable[Mapping[str, Any]],
    *,
    model: str,
    output: str | os.PathLike[str],
    name: str | None = None,
    sampling: Mapping[str, Any] | None = None,
    config: Mapping[str, Mapping[str, Any]] | None = None,
    context: str | os.PathLike[str] | None = None,
    program: str = "rollout",
) -> BatchRun:
    """Submits rows to be run by `model` and returns at once; `wait` on the returned run writes the output.

    `rows` is a file, a glob, a URL, or the rows themselves, which are then stored in `output`. `sampling` and the
    tables of `config` are those of batch.toml. Submitting the same again is the same run: nothing is executed twice.
    Other rows under the name of an existing run are a revision of it: the `name` of the returned run says which.
    `program` is a name on PATH or a path; for `rollout`, the program in the package's wheel comes first."""
    command = _command(program)
    directory = Path(output).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    if isinstance(rows, str | os.PathLike):
        text = os.fspath(rows)
        pattern = text if "://" in text else str(Path(text).absolute())
    else:
        # Exactly this file, even if its directory's name has glob characters.
        pattern = glob.escape(str(_kept(rows, directory / "input.jsonl")))
    tables = {key: dict(table) for key, table in (config or {}).items()}
    tables.setdefault("model", {})["uri"] = model
    tables.setdefault("input", {})["glob"] = pattern
    tables.setdefault("output", {})["dir"] = str(directory)
    if sampling is not None:
        tables.setdefault("sampling", {}).update(sampling)
    if name is not None:
        tables.setdefault("run", {})["name"] = name
    file = directory / "batch.toml"
    file.write_text("".join(f"[{key}]\n{_lines(table)}\n" for key, table in tables.items()))
    environment = dict(os.environ)
    if context is not None:
        environment["ROLLOUT_CONTEXT"] = os.fspath(context)
    arguments = [*command, "infer", "batch", "--config", str(file), "--detach", "--quiet"]
    submitted = subprocess.run(arguments, env=environment, capture_output=True, text=True)
    _check(submitted)
    # The name of the revision: other rows under a taken name are another run.
    return BatchRun(submitted.stdout.strip(), directory, file, command, environment)


def _command(program: str) -> tuple[str, ...]:
    """How to start the program. The wheel's `rollout` comes first: it is of the same build as this package."""
    packaged = _programs.packaged()
    if program == "rollout" and packaged is not None:
        return (packaged, program)
    found = shutil.which(program)
    if found is None:
        raise FileNotFoundError(
            f"no program {program}: install the wheel of `make wheel`, say where it is (program=), or put it on PATH"
        )
    return (found,)


def _rows_failed(ran: subprocess.CompletedProcess[str]) -> bool:
    """Whether the command succeeded although rows failed permanently."""
    if ran.returncode == _ROWS_FAILED:
        return True
    refused = any(line.startswith(_REFUSED) for line in ran.stderr.splitlines())
    return ran.returncode == _ROWS_FAILED_BEFORE and not refused


def _check(ran: subprocess.CompletedProcess[str]) -> None:
    if ran.returncode != 0:
        raise BatchError(ran.returncode, ran.stderr)


def _kept(rows: Iterable[Mapping[str, Any]], file: Path) -> Path:
    """Writes the file completely, or not at all."""
    partial = file.with_suffix(".partial")
    with partial.open("w") as out:
        for row in rows:
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
    return partial.replace(file)


def _lines(table: Mapping[str, Any]) -> str:
    return "".join(f"{_value(key)} = {_value(value)}\n" for key, value in table.items() if value is not None)


def _value(value: Any) -> str:
    """A value as TOML, which includes JSON's strings, lists and numbers."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_value(key)} = {_value(each)}" for key, each in value.items() if each is not None) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    return json.dumps(value, ensure_ascii=False)
