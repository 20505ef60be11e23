"""torch's own test classes for stores and rendezvous backends, run against rollout's.

They are downloaded from where they are published, at one commit, and each class must have the digest below; they
are kept in a cache and never committed. If they are not available, our own classes with the same checks run
instead, and the last line says so. `borrowed.py CONTEXT`: a context file of the cluster.
"""

from __future__ import annotations

import ast
import hashlib
import http.client
import os
import sys
import unittest
import urllib.request
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, Optional, cast

import torch.distributed as dist
from torch.distributed import DistStoreError
from torch.distributed.elastic.rendezvous import RendezvousStateError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend, Token

import equivalents
import rollout

LONG = timedelta(seconds=300)
PUBLISHED = "https://raw.githubusercontent.com/pytorch/pytorch/{commit}/{path}"
CLASSES = {
    "StoreTestBase": (
        "f34fa1515024423a239ce26f33a8b65ea9252502",
        "test/distributed/test_store.py",
        "d3a7143a091b107510f14a26722ac98daaccfb10da5039425ba88e2992600d35",
    ),
    "RendezvousBackendTestMixin": (
        "0d1c57049213012edeb532f8f962effb7134154e",
        "test/distributed/elastic/rendezvous/rendezvous_backend_test.py",
        "229c6392b807254af01cb40d6781f7ff1faabba516e199e5f76ed1ecff53b387",
    ),
}
not_run: list[str] = []


def published(name: str) -> type:
    """torch's class, or our replacement."""
    commit, path, digest = CLASSES[name]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollout-torch" / f"{name}-{digest[:16]}.py"
    if cache.exists():
        source = cache.read_text()
    else:
        url = PUBLISHED.format(commit=commit, path=path)
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                text = answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            # Any failure of the download: refused, too slow, or broken off.
            not_run.append(f"the tests {name} of torch, because {url} could not be downloaded: {error}")
            return getattr(equivalents, name)
        tree = ast.parse(text)
        node = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
        source = ast.get_source_segment(text, node) or ""
    found = hashlib.sha256(source.encode()).hexdigest()
    if found != digest:
        raise SystemExit(f"{name} at {commit} has the digest {found}, not {digest}")
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(source)
    names = dict(globals())
    exec(compile(source, name, "exec"), names)
    return names[name]


context = sys.argv[1]
connection = rollout.Connection.find(context=context)
cluster = connection.cluster()
gateways = []


def native() -> dist.Store:
    return rollout.Store(job=f"borrowed-{uuid.uuid4().hex}", timeout=LONG, context=context)


def through_a_gateway() -> dist.Store:
    job = f"borrowed-{uuid.uuid4().hex}"
    gateway = cluster.gateway(connection.namespace, job, 0, 0, 240_000)
    gateways.append(gateway)
    return dist.TCPStore(gateway.host, gateway.port, is_master=False, timeout=LONG, wait_for_workers=False)


StoreTestBase = published("StoreTestBase")
Mixin = published("RendezvousBackendTestMixin")


class StoreTest(StoreTestBase, unittest.TestCase):
    def _create_store(self):
        return native()


class PrefixedStoreTest(StoreTestBase, unittest.TestCase):
    """Under torch's PrefixStore: through the C++ trampoline."""

    def _create_store(self):
        return dist.PrefixStore("prefix", native())


class OurPrefixTest(StoreTestBase, unittest.TestCase):
    def _create_store(self):
        return native().prefixed("prefix")


class GatewayTest(StoreTestBase, unittest.TestCase):
    def _create_store(self):
        return through_a_gateway()


class BackendTest(Mixin, unittest.TestCase):
    make = staticmethod(native)

    def setUp(self):
        self.store = self.make()
        self._backend = C10dRendezvousBackend(self.store, "dummy_run_id")

    def _corrupt_state(self):
        self.store.set("torch.rendezvous.dummy_run_id", "non_base64")


class GatewayBackendTest(BackendTest):
    make = staticmethod(through_a_gateway)


if __name__ == "__main__":
    ran = unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result
    for what in not_run:
        print(f"NOT RUN: {what}. Our own version of these tests ran instead.", flush=True)
    if not ran.wasSuccessful():
        sys.exit(1)
    print("borrowed done", flush=True)
