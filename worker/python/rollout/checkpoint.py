"""A rank's part of a checkpoint: written in the background, read back with every byte compared.

The bytes are fixed when `CheckpointWriter.begin` is called. Nothing here contacts the cluster: `Written` has what a
report needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollout import _native

__all__ = ["CheckpointWriter", "Writing", "Written", "restore"]


@dataclass(frozen=True)
class Written:
    """The durable result: the manifest by its blake3, and the objects that it names."""

    digest: bytes
    manifest_size: int
    size: int
    objects: int


class Writing:
    """A rank's part while it is written."""

    def __init__(self, native: _native.Writing) -> None:
        self._native = native

    def done(self) -> bool:
        """Whether the write has ended."""
        return self._native.done()

    def wait(self, timeout_s: float | None = None) -> Written:
        """Waits until everything is durable. Raises OSError if the store refused, and TimeoutError after
        `timeout_s`."""
        return Written(*self._native.wait(timeout_s))


class CheckpointWriter:
    """Writes into the store with that URL: the cluster's, as `Checkpoint.store_url` names it."""

    def __init__(self, store_url: str) -> None:
        self._native = _native.CheckpointWriter(store_url)

    def begin(self, prefix: str, step: int, trainer: str, files: Mapping[str, bytes]) -> Writing:
        """Starts to write under a checkpoint's prefix, and returns at once."""
        return Writing(self._native.begin(prefix, step, trainer, list(files.items())))


def restore(
    store_url: str, prefix: str, step: int, digest: bytes, manifest_size: int
) -> dict[str, bytes]:
    """A rank's files, from its manifest. Raises OSError if anything is missing or differs from what was written."""
    return dict(_native.restore_checkpoint(store_url, prefix, step, (digest, manifest_size)))
