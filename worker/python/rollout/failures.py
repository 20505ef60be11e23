"""Owns: what an exception means for a row or for the engine, decided by its class alone.

Absent: the agent's conclusions (`worker/src/engine/evidence.rs`).
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from typing import Any

MESSAGE_BYTES_MAX = 12_288
# Replaces the rest of a message that was cut, and the maximum length of texts beside one.
CUT = "…"
NAME_MAX = 256
CRASH_VERSION = 1
CRASH_FILE_ENV = "ROLLOUT_CRASH_FILE"

# A row that raises one of these would raise it again. These are names, so that comparing needs no imports.
INVALID = {
    "vllm.exceptions.VLLMClientError",
    "pydantic_core._pydantic_core.ValidationError",
    "msgspec.ValidationError",
    "jinja2.exceptions.TemplateError",
    "ValueError",
    "TypeError",
    "NotImplementedError",
}
# Memory ran out.
OUT_OF_MEMORY = {"MemoryError", "torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError"}
# The engine's state cannot be trusted after these, wherever they were raised.
FATAL = OUT_OF_MEMORY | {
    "torch.AcceleratorError",
    "vllm.v1.engine.exceptions.EngineDeadError",
}


class RowError(Exception):
    """A row that no engine can run, or that this engine cannot run now; `code` is one word for programs."""

    def __init__(self, code: str, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.transient = transient


def name_of(cls: type) -> str:
    """A class's name with its module; built-in classes have no module."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def names_of(error: BaseException) -> set[str]:
    """The names of an exception's class and of all its base classes."""
    return {name_of(cls) for cls in type(error).__mro__}


def is_fatal(error: BaseException) -> bool:
    """Whether the engine must end because of it."""
    return not isinstance(error, Exception) or bool(names_of(error) & FATAL)


def classify(error: Exception) -> tuple[str, str, str]:
    """Class, code and message of a row that was refused."""
    message = shortened(str(error) or name_of(type(error)))
    if isinstance(error, RowError):
        return ("transient" if error.transient else "invalid"), error.code, message
    if names_of(error) & INVALID:
        return "invalid", type(error).__name__, message
    return "transient", type(error).__name__, message


def shortened(text: str) -> str:
    """The beginning of a text, within the size limit of a message."""
    encoded = text.encode("utf-8", "replace")[:MESSAGE_BYTES_MAX]
    return encoded.decode("utf-8", "ignore")


def shortened_answer(answer: str) -> str:
    """The text `{"response": {…, "body": {"error": {…}}}}` within the size limit of a message. It cuts the error's own
    message, and omits other long fields, so that the result is still an answer."""
    if len(answer.encode("utf-8", "replace")) <= MESSAGE_BYTES_MAX:
        return answer
    told = json.loads(answer)
    body = told["response"]["body"]
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        error = {"message": as_text(body)}
    message = str(error.get("message"))
    kept = {name: error[name] for name in ("type", "param", "code") if name in error}
    kept = {name: value for name, value in kept.items() if len(as_text(value)) <= NAME_MAX}
    told["response"]["body"] = {"error": {"message": CUT, **kept}}
    spare = MESSAGE_BYTES_MAX - bytes_of(told)
    # Each letter is one byte or more.
    over = bytes_of(message) - bytes_of("") - spare
    if over > 0:
        message = message[: max(0, len(message) - over)] + CUT
    told["response"]["body"]["error"]["message"] = message
    return as_text(told)


def as_text(value: Any) -> str:
    """A value's JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def bytes_of(value: Any) -> int:
    """The bytes of a value's JSON."""
    return len(as_text(value).encode("utf-8", "replace"))


def leave_crash_file(error: BaseException, child: int | None = None) -> None:
    """Reports to the agent why this process dies. `child` is how a process of vLLM's own, without which this one is
    useless, ended: its exit status, or a signal's number below zero. The first report counts; but if a child was
    killed, the others' exceptions are its consequence, unless memory had run out."""
    path = os.environ.get(CRASH_FILE_ENV)
    if not path:
        return
    killed = child is not None and child < 0
    crash = {
        "version": CRASH_VERSION,
        "exception": name_of(type(error)),
        "message": shortened(str(error)),
        "child_exit_code": child if child is not None and child >= 0 else None,
        "child_signal": -child if child is not None and killed else None,
    }
    mine = f"{path}.{os.getpid()}.{threading.get_ident()}"
    try:
        with open(mine, "w", encoding="utf-8") as file:
            json.dump(crash, file)
        place(mine, path, killed)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(mine)
    except OSError:
        # The report cannot be written; the exit status remains.
        pass


def place(mine: str, path: str, killed: bool) -> None:
    """Makes a file the crash file, unless there already is one that counts. Of several concurrent processes one is the
    first."""
    try:
        os.link(mine, path)
    except FileExistsError:
        if killed and not is_last_word(path):
            os.replace(mine, path)
    except OSError:
        # The file system does not support links.
        if not os.path.exists(path):
            os.replace(mine, path)


def is_last_word(path: str) -> bool:
    """Whether a crash file describes more than the consequence of another process's end."""
    try:
        with open(path, encoding="utf-8") as file:
            crash = json.load(file)
    except (OSError, ValueError):
        return False
    return crash.get("child_signal") is not None or crash.get("exception") in OUT_OF_MEMORY
