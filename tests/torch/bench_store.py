"""Compares sets and gets of stores with TCPStore's: `bench_store.py CONTEXT GATEWAY SECONDS`. Figures are JSON
lines.

Each client is a thread with its own connection, and waits for each answer: 16-byte keys, 64-byte values. TCPStore
is torch's own, in memory, in this process, without TLS and without replicas. Its client expects no answer to a
set: sets come in batches, and each batch ends with a get, which is answered when all of them have taken effect.
"""

import datetime
import json
import sys
import threading
import time

import torch.distributed as dist

import rollout

LONG = datetime.timedelta(seconds=240)
VALUE = bytes(64)
# Sets before each get.
BATCH = 100
context, gateway, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])


def tcp(host, port, **more):
    return dist.TCPStore(host, int(port), timeout=LONG, wait_for_workers=False, **more)


def measure(client, operation, clients):
    """Calls per second and latencies, in microseconds; a set's latency is its share of its batch's."""
    stores = [client() for _ in range(clients)]
    for n, store in enumerate(stores):
        store.set(f"key-{n:012}", VALUE)
    begin, taken = threading.Barrier(clients), []

    def drive(n, store):
        key, mine = f"key-{n:012}", []
        def sets():
            for _ in range(BATCH):
                store.set(key, VALUE)
            store.get(key)

        act = {"set": sets, "get": lambda: store.get(key), "add": lambda: store.add(f"n-{key}", 1)}[operation]
        calls = BATCH if operation == "set" else 1
        begin.wait()
        until = time.perf_counter() + seconds
        while (at := time.perf_counter()) < until:
            act()
            mine.extend([(time.perf_counter() - at) / calls] * calls)
        taken.extend(mine)

    threads = [threading.Thread(target=drive, args=each) for each in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken.sort()
    micro = lambda share: round(taken[min(len(taken) - 1, int(len(taken) * share))] * 1e6)
    return {"per_second": round(len(taken) / seconds), "p50_us": micro(0.5), "p99_us": micro(0.99)}


server = tcp("127.0.0.1", 0, is_master=True)
host, port = gateway.rsplit(":", 1)
kinds = {
    "TCPStore": lambda: tcp("127.0.0.1", server.port, is_master=False),
    "rollout.Store": lambda: rollout.Store(context=context, job="train", timeout=LONG),
    "TCPStore through the gateway": lambda: tcp(host, port, is_master=False),
}
for operation in ("set", "get", "add"):
    for clients in (1, 8, 32):
        for kind, client in kinds.items():
            figures = measure(client, operation, clients)
            print(json.dumps({"store": kind, "operation": operation, "clients": clients, **figures}), flush=True)
