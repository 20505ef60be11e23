"""`rollout.Store`: a torch.distributed.Store in the replicated ledger.

It has TCPStore's semantics, but any member of the cluster may die, and answered changes are durable. It needs torch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from rollout import torch_version

torch_version.check()

import torch.distributed as dist  # noqa: E402

from rollout._native import Cluster, JobStore  # noqa: E402
from rollout.connection import Connection  # noqa: E402

T = TypeVar("T")

# torch's C++ code calls methods of a store's Python object, so that object must live at least as long.
_open: dict[int, Store] = {}
_opening = threading.Lock()


class Store(dist.Store):
    """The store of a job, or of one round of its rendezvous.

    Store("c1:7420,c2:7420", job="llama-sft", context="client.toml")

    It stays open until `close`, though nobody refers to it any more. Under a PrefixStore torch forwards everything but
    queues and list_keys; `prefixed` has those too.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str] | None = None,
        *,
        job: str,
        round: int = 0,
        ticket: int = 0,
        timeout: timedelta = timedelta(seconds=300),
        cluster: Cluster | None = None,
        namespace: str | None = None,
        **connection: Any,
    ) -> None:
        """`connection` has the arguments of `Connection.find`; pass `cluster` instead to use an open one. Stores of
        one `cluster` share its connections: a leader holds 128 of their waits at a time, and more take turns. `ticket`
        is that of a member of the round: the cluster refuses the store once that member is lost, left or replaced.
        Waits until the cluster answers, at most `timeout`."""
        super().__init__()
        super().set_timeout(timeout)
        if cluster is None:
            listed = endpoints if isinstance(endpoints, str | None) else list(endpoints)
            found = Connection.find(listed, namespace=namespace, **connection)
            cluster, namespace = found.cluster(), found.namespace
        self._cluster = cluster
        self._name = (namespace or "default", job, round, ticket)
        # As in torch's TCPStore client, so that both use the same name for a key.
        self._prefix = "/"
        self._native: JobStore = cluster.store(*self._name)
        _translated(self._native.connect, self._ms())
        with _opening:
            _open[id(self)] = self

    def close(self) -> None:
        """Closes the store for torch. Its stored values stay."""
        with _opening:
            _open.pop(id(self), None)

    def clone(self) -> Store:
        """The same store over separate connections."""
        cluster = self._cluster.fresh()
        namespace, job, round, ticket = self._name
        clone = Store(
            job=job, round=round, ticket=ticket, timeout=self.timeout, cluster=cluster, namespace=namespace
        )
        clone._prefix = self._prefix
        return clone

    def prefixed(self, prefix: str) -> Store:
        """The same store with `prefix/` before every key, as with PrefixStore."""
        clone = self.clone()
        clone._prefix = f"{self._prefix}{prefix}/"
        return clone

    def set(self, key: str, value: str | bytes) -> None:
        self._call(self._native.set, [(self._key(key), _bytes(value))])

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        if len(keys) != len(values):
            raise ValueError(f"{len(keys)} keys and {len(values)} values")
        self._call(self._native.set, [(self._key(k), _bytes(v)) for k, v in zip(keys, values)])

    def get(self, key: str) -> bytes:
        return self._call(self._native.get, [self._key(key)])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self._call(self._native.get, [self._key(key) for key in keys])

    def add(self, key: str, value: int) -> int:
        return self._call(self._native.add, self._key(key), value)

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        return self._call(self._native.compare_set, self._key(key), _bytes(expected_value), _bytes(desired_value))

    def append(self, key: str, value: str | bytes) -> None:
        self._call(self._native.append, self._key(key), _bytes(value))

    def delete_key(self, key: str) -> bool:
        return self._call(self._native.delete_key, self._key(key))

    def check(self, keys: Sequence[str]) -> bool:
        return self._call(self._native.check, [self._key(key) for key in keys])

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        _translated(self._native.wait, [self._key(key) for key in keys], self._ms(timeout))

    def num_keys(self) -> int:
        return self._call(self._native.num_keys)

    def list_keys(self) -> list[str]:
        keys = self._call(self._native.list_keys)
        return [key.removeprefix(self._prefix) for key in keys if key.startswith(self._prefix)]

    def queue_push(self, key: str, value: str | bytes) -> None:
        self._call(self._native.queue_push, self._key(key), _bytes(value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        popped = self._call(self._native.queue_pop, self._key(key), block)
        if popped is None:
            raise dist.QueueEmptyError(f"queue {key} is empty")
        return popped

    def queue_len(self, key: str) -> int:
        return self._call(self._native.queue_len, self._key(key))

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        _translated(self._native.barrier, self._key(key), world_size, self._ms(timeout))

    def has_extended_api(self) -> bool:
        return True

    # torch's C++ code calls these two by these names; the others are for similar callers.
    deleteKey = delete_key
    getNumKeys = num_keys
    hasExtendedApi = has_extended_api
    compareSet = compare_set
    multiGet = multi_get
    multiSet = multi_set
    queuePush = queue_push
    queuePop = queue_pop
    queueLen = queue_len
    listKeys = list_keys

    def _key(self, key: str) -> str:
        return self._prefix + key

    def _ms(self, timeout: timedelta | None = None) -> int:
        # The base class keeps the timeout, because torch's C++ code sets it there.
        return max(0, round((self.timeout if timeout is None else timeout) / timedelta(milliseconds=1)))

    def _call(self, operation: Callable[..., T], *args: object) -> T:
        return _translated(operation, *args, self._ms())


def _bytes(value: str | bytes | bytearray | memoryview) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _translated(operation: Callable[..., T], *args: object) -> T:
    """Raises the exceptions of torch's own stores."""
    try:
        return operation(*args)
    except TimeoutError as error:
        raise dist.DistStoreError(str(error)) from None
    except ConnectionError as error:
        raise dist.DistNetworkError(str(error)) from None
