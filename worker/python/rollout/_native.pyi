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
