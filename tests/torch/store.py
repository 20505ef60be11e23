"""A job's operations on its store, through torch's own TCPStore client.

`store.py SCENARIO ADDR...`: each address is that of a gateway of one store; a context file of the cluster instead
uses the same store through `rollout.Store`. The test waits for the lines that it prints.
"""

import datetime
import sys
import threading
import time

import torch.distributed as dist

LONG = datetime.timedelta(seconds=240)


def connect(addr, timeout=LONG):
    if addr.endswith(".toml"):
        import rollout

        return rollout.Store(context=addr, job="train", timeout=timeout)
    host, port = addr.rsplit(":", 1)
    return dist.TCPStore(host, int(port), is_master=False, timeout=timeout, wait_for_workers=False)


def say(text):
    print(text, flush=True)


def raises(kind, act):
    try:
        act()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


def operations(one, other):
    """Every operation, by two clients at two gateways."""
    a, b = connect(one), connect(other)
    before = a.num_keys()
    a.set("key", "value")
    assert a.get("key") == b"value"
    assert b.get("key") == b"value"
    assert a.num_keys() == before + 1
    assert a.add("n", 5) == 5
    assert b.add("n", -7) == -2
    assert a.get("n") == b"-2"
    assert a.compare_set("cas", "", "first") == b"first"
    assert b.compare_set("cas", "other", "second") == b"first"
    assert b.compare_set("cas", "first", "second") == b"second"
    # As in torch: a missing key returns the expected value, and stays missing.
    assert a.compare_set("absent", "expected", "new") == b"expected"
    assert not a.check(["absent"])
    assert a.check(["key", "n"])
    assert not a.check(["key", "nowhere"])
    assert a.delete_key("cas")
    assert not b.delete_key("cas")
    assert not b.check(["cas"])
    a.append("log", "one,")
    a.append("log", "two")
    assert a.get("log") == b"one,two"
    a.multi_set(["m1", "m2"], ["v1", ""])
    assert b.multi_get(["m1", "m2", "key"]) == [b"v1", b"", b"value"]
    assert {"key", "n", "m1", "m2", "log"} <= set(b.list_keys())
    big = bytes(range(256)) * 4000
    a.set("big", big)
    assert b.get("big") == big
    say("values")

    a.queue_push("q", "1")
    a.queue_push("q", "2")
    assert a.queue_len("q") == 2
    assert b.queue_pop("q") == b"1"
    assert a.queue_pop("q") == b"2"
    raises(dist.QueueEmptyError, lambda: b.queue_pop("q", block=False))
    assert a.queue_len("nothing") == 0
    say("queues")

    prefixed = dist.PrefixStore("round/1", a)
    prefixed.set("rank", "0")
    assert prefixed.get("rank") == b"0"
    assert dist.PrefixStore("round/1", b).get("rank") == b"0"
    assert not b.check(["rank"])
    clone = a.clone()
    clone.set("cloned", "1")
    assert b.get("cloned") == b"1"
    say("prefixes")


def waits(one, other):
    """A wait is released by another client, and one that times out leaves its connection usable."""
    a, b = connect(one), connect(other)
    raises(dist.DistStoreError, lambda: a.wait(["never"], datetime.timedelta(milliseconds=300)))
    a.set("still", "here")
    assert a.get("still") == b"here"
    done = []

    def waiter():
        a.wait(["first", "second"], LONG)
        done.append(a.get("second"))

    thread = threading.Thread(target=waiter)
    thread.start()
    # Its own connection: a blocked wait blocks no other client.
    b.set("first", "1")
    assert b.get("first") == b"1"
    assert not done
    b.set("second", "2")
    thread.join()
    assert done == [b"2"]
    say("waits")

    # Two wait for an element each; both learn of the first, one gets it, the other keeps waiting.
    got = []
    poppers = [connect(addr) for addr in (one, other)]
    threads = [threading.Thread(target=lambda s=s: got.append(s.queue_pop("jobs"))) for s in poppers]
    for thread in threads:
        thread.start()
    b.queue_push("jobs", "x")
    while not got:
        pass
    b.queue_push("jobs", "y")
    for thread in threads:
        thread.join()
    assert sorted(got) == [b"x", b"y"]
    say("pops")

    passed = []
    stores = [connect(addr) for addr in (one, other, one)]

    def arrive(store):
        store.barrier("all", 3, LONG)
        passed.append(store)

    threads = [threading.Thread(target=arrive, args=(store,)) for store in stores]
    for thread in threads[:2]:
        thread.start()
    while b.get("all") != b"2":
        pass
    assert not passed
    threads[2].start()
    for thread in threads:
        thread.join()
    assert len(passed) == 3
    say("barrier")


def arrive(addr, key):
    """One of three at a barrier."""
    connect(addr).barrier(key, 3, LONG)
    say("passed")


def until(addr, key, value):
    """Waits until a key has this value."""
    store = connect(addr)
    while not store.check([key]) or store.get(key) != value.encode():
        time.sleep(0.05)


def adds(addr, key, count):
    """A series of additions: the answers rise."""
    store = connect(addr)
    last = 0
    for n in range(int(count)):
        now = store.add(key, 1)
        assert now > last, (now, last)
        last = now
        if n % 20 == 0:
            say(f"added {n}")
    say("all added")


def wait(addr, key):
    """Blocks until another client sets the key."""
    store = connect(addr)
    store.set(f"{key}/waits", "1")
    say("waiting")
    store.wait([key], LONG)
    assert store.get(key) == b"set"
    say("released")


def await_key(addr, key):
    connect(addr).wait([key], LONG)


def put(addr, key):
    connect(addr).set(key, "set")
    say("put")


def show(addr, key):
    say(f"value {connect(addr).get(key).decode()}")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
    say("done")
