"""The cluster's own API calls, for the Python part of this package: names and meanings are those of the API."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from rollout._native import Cluster

# How long the leader holds a request before it answers that nothing has changed.
HELD_MS = 10_000
PATIENCE = timedelta(seconds=120)


def call(cluster: Cluster, method: str, request: dict[str, Any], timeout: timedelta = PATIENCE) -> dict[str, Any]:
    """Makes one call. A change is repeated under one request ID until it is answered; after a TimeoutError it may
    still take effect."""
    answer: dict[str, Any] = json.loads(cluster.call(method, json.dumps(request), timeout_ms=milliseconds(timeout)))
    return answer


def held(cluster: Cluster, method: str, request: dict[str, Any], timeout: timedelta) -> dict[str, Any]:
    """Makes one call that the leader holds until something has changed."""
    asked = {**request, "wait_ms": HELD_MS}
    told = cluster.call(method, json.dumps(asked), timeout_ms=milliseconds(timeout), hold_ms=HELD_MS)
    answer: dict[str, Any] = json.loads(told)
    return answer


def milliseconds(time: timedelta) -> int:
    return max(0, round(time / timedelta(milliseconds=1)))
