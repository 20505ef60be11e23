"""torchrun's rendezvous in the replicated ledger: `torchrun --rdzv-backend=rollout --rdzv-endpoint=c1,c2,c3 ...`.

The cluster decides members, ranks and rounds; each round has its own store there, which the trainers reach through a
gateway in their agent. No process of the job hosts a TCPStore. It needs torch.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from rollout import torch_version

torch_version.check()

from torch.distributed import DistError
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from rollout._native import Cluster, Gateway, RolloutError
from rollout.connection import Connection
from rollout.store import Store

T = TypeVar("T")

BACKEND = "rollout"
# A participant that is gone for one of these reasons may return under the same name.
_AGAIN = ("lost", "unknown")
_joined = 0
# Options of `--rdzv-conf`.
_KEYS = {
    "context",
    "ca_file",
    "cert_file",
    "key_file",
    "insecure_plaintext",
    "namespace",
    "node",
    "gateway_port",
    "store_timeout",
    "join_timeout",
    "last_call_timeout",
    "close_timeout",
    "keep_alive_interval",
    "keep_alive_max_attempt",
}
# torchrun adds the first by itself. The others bound one keep-alive of torch's backends; here the extension sends
# keep-alives.
_UNUSED = {"timeout", "heartbeat_timeout"}

log = logging.getLogger(__name__)


class RolloutRendezvousHandler(RendezvousHandler):
    """One agent's part. Times are torch's: a round is complete when `max_nodes` have joined, or `last_call` after
    `min_nodes` have; a node that is silent for `keep_alive_interval * keep_alive_max_attempt` is lost."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        namespace: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        node: str | None = None,
        local_addr: str | None = None,
        join_timeout: timedelta = timedelta(seconds=600),
        last_call_timeout: timedelta = timedelta(seconds=30),
        close_timeout: timedelta = timedelta(seconds=30),
        keep_alive_interval: timedelta = timedelta(seconds=5),
        keep_alive_max_attempt: int = 3,
        store_timeout: timedelta = timedelta(seconds=300),
        gateway_port: int = 0,
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._run_id = run_id
        self._nodes = (min_nodes, max_nodes)
        self._join_ms = max(1, _ms(join_timeout))
        self._last_call_ms = max(1, _ms(last_call_timeout))
        self._close_ms = _ms(close_timeout)
        self._store_timeout = store_timeout
        self._port = gateway_port
        self._node = node or _node_name(local_addr)
        self._native = cluster.rendezvous(
            namespace,
            run_id,
            self._node,
            socket.gethostname(),
            local_addr or socket.getfqdn(),
            _ms(keep_alive_interval),
            keep_alive_max_attempt,
        )
        self._round: tuple[Store, Gateway] | None = None

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_run_id(self) -> str:
        return self._run_id

    def next_rendezvous(self) -> RendezvousInfo:
        self._end_round()
        while True:
            outcome, round = _translated(
                self._native.next, *self._nodes, self._join_ms, self._last_call_ms, self._join_ms
            )
            if outcome not in _AGAIN:
                break
            log.warning("node %s was gone (%s) while it joined %s, it joins again", self._node, outcome, self._run_id)
        if round is None:
            raise _refused(outcome, self._node, self._run_id)
        log.info(
            "node %s is rank %d of %d in round %d of %s",
            self._node, round.rank, round.world_size, round.round, self._run_id,
        )
        name = {"job": self._run_id, "round": round.round, "ticket": round.ticket, "namespace": self._namespace}
        store = _translated(Store, cluster=self._cluster, timeout=self._store_timeout, **name)
        gateway = _translated(
            self._cluster.gateway,
            self._namespace,
            self._run_id,
            round.round,
            self._port,
            self._join_ms,
            round.ticket,
        )
        self._round = (store, gateway)
        bootstrap = RendezvousStoreInfo(gateway.host, gateway.port)
        return RendezvousInfo(store, round.rank, round.world_size, bootstrap)

    def num_nodes_waiting(self) -> int:
        """Late arrivals, or members that are gone from the round: either requires a new round. It is 0 once the
        rendezvous is closed, because then there is no new round: an agent whose trainers have ended closes it and
        leaves, and the others continue."""
        return self._native.waiting()

    def is_closed(self) -> bool:
        return _translated(self._native.is_closed, self._close_ms)

    def set_closed(self) -> None:
        _translated(self._native.close, self._close_ms)

    def shutdown(self) -> bool:
        self._end_round()
        try:
            self.set_closed()
            _translated(self._native.leave, self._close_ms)
        except RendezvousError as error:
            log.warning("node %s could not close the rendezvous %s: %s", self._node, self._run_id, error)
            return False
        return True

    def _end_round(self) -> None:
        """After this, trainers of an ended round no longer reach its store."""
        if self._round is not None:
            store, gateway = self._round
            self._round = None
            gateway.close()
            store.close()


def create_handler(params: RendezvousParameters) -> RolloutRendezvousHandler:
    """A handler from torchrun's parameters. `--rdzv-conf` accepts context, ca_file, cert_file, key_file,
    insecure_plaintext, namespace, node, gateway_port and store_timeout (seconds), and torch's own join_timeout,
    last_call_timeout, close_timeout, keep_alive_interval (seconds) and keep_alive_max_attempt. Raises ValueError for
    an unknown option or an invalid value."""
    _check_keys(params)
    text = {key: params.get(key) for key in ("context", "ca_file", "cert_file", "key_file", "namespace")}
    connection = Connection.find(
        params.endpoint or None, insecure_plaintext=params.get_as_bool("insecure_plaintext"), **text
    )

    def seconds(key: str, default: int) -> timedelta:
        return timedelta(seconds=_positive(params, key, default))

    port = params.get_as_int("gateway_port", 0)
    if port is None or not 0 <= port < 1 << 16:
        raise ValueError(f"--rdzv-conf gateway_port={port} is no port")
    return RolloutRendezvousHandler(
        connection.cluster(),
        namespace=connection.namespace,
        run_id=params.run_id,
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        node=params.get("node"),
        local_addr=params.local_addr,
        join_timeout=seconds("join_timeout", 600),
        last_call_timeout=seconds("last_call_timeout", 30),
        close_timeout=seconds("close_timeout", 30),
        keep_alive_interval=seconds("keep_alive_interval", 5),
        keep_alive_max_attempt=_positive(params, "keep_alive_max_attempt", 3),
        store_timeout=seconds("store_timeout", 300),
        gateway_port=port,
    )


def _check_keys(params: RendezvousParameters) -> None:
    unknown = sorted(set(params.config) - _KEYS - _UNUSED)
    if unknown:
        near = difflib.get_close_matches(unknown[0], _KEYS, n=1)
        hint = f": did you mean {near[0]}?" if near else f": it takes {', '.join(sorted(_KEYS))}"
        raise ValueError(f"--rdzv-conf has no option {unknown[0]}{hint}")


def _positive(params: RendezvousParameters, key: str, default: int) -> int:
    value = params.get_as_int(key, default)
    if value is None or value <= 0:
        raise ValueError(f"--rdzv-conf {key}={value} has to be positive")
    return int(value)


def _node_name(local_addr: str | None) -> str:
    """Different for each agent, in the order of the hosts."""
    global _joined
    _joined += 1
    host = re.sub(r"[^A-Za-z0-9._-]", "-", local_addr or socket.getfqdn())[:80]
    return f"{host}_{os.getpid()}_{_joined - 1}"


def _ms(time: timedelta) -> int:
    return round(time / timedelta(milliseconds=1))


def _refused(outcome: str, node: str, run_id: str) -> RendezvousError:
    match outcome:
        case "redundant":
            return RendezvousGracefulExitError(f"{run_id} is closed, and {node} was not needed")
        case "closed":
            return RendezvousClosedError(f"the rendezvous {run_id} is closed")
        case "timed_out":
            return RendezvousTimeoutError(f"the rendezvous {run_id} did not complete in time")
        case "replaced":
            return RendezvousStateError(f"another agent has joined {run_id} as {node}: give each a name of its own")
    return RendezvousStateError(f"{node} is gone from {run_id}: {outcome}")


def _translated(operation: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    try:
        return operation(*args, **kwargs)
    except (TimeoutError, ConnectionError, DistError) as error:
        raise RendezvousConnectionError(str(error)) from error
    except RolloutError as error:
        raise RendezvousStateError(str(error)) from error
