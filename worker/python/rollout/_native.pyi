"""The extension module; its documentation is in worker/python/src."""

PROTOCOL_VERSION: int

class Agent:
    slot: int
    options: str
    def __init__(self) -> None: ...
    def ready(self) -> None: ...
    def poll(
        self, limit: int, timeout_ms: int | None
    ) -> list[tuple[int, str, str, str, bytes] | int]: ...
    def finish(
        self,
        ticket: int,
        text: str,
        finish_reason: str,
        prompt_tokens: int,
        completion_tokens: int,
        extra: str,
    ) -> None: ...
    def fail(self, ticket: int, class_: str, code: str, message: str) -> None: ...
    def stopped(self, ticket: int) -> None: ...
    def progress(
        self,
        steps: int,
        tokens: int,
        steps_not_full: int,
        steps_hungry: int,
        admitted: int,
        admitted_beside: int,
        aborted: int,
        tokens_after_abort: int,
        waiting: int,
    ) -> None: ...
    def flush(self) -> None: ...

class CheckpointWriter:
    def __init__(self, store_url: str) -> None: ...
    def begin(
        self, prefix: str, step: int, trainer: str, files: list[tuple[str, bytes]]
    ) -> Writing: ...

class Writing:
    def done(self) -> bool: ...
    def wait(self, timeout_s: float | None = None) -> tuple[bytes, int, int, int]: ...

def restore_checkpoint(
    store_url: str, prefix: str, step: int, manifest: tuple[bytes, int]
) -> list[tuple[str, bytes]]: ...
