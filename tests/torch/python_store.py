"""What `rollout.Store` must handle beyond a store's operations: `python_store.py SCENARIO CONTEXT ...`."""

import datetime
import gc
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

import rollout

LONG = datetime.timedelta(seconds=240)
SHORT = datetime.timedelta(milliseconds=300)


def say(text):
    print(text, flush=True)


def raises(kind, act, said=""):
    try:
        act()
    except kind as error:
        assert said in str(error), error
        return
    raise AssertionError(f"no {kind.__name__}")


def trampoline(context):
    """Calls through torch's C++ code, which knows the class only by its methods' names."""
    dist._test_python_store(rollout.Store(context=context, job="trampoline", timeout=LONG))
    # Only torch's C++ code refers to the Python object, and that does not keep it alive.
    prefixed = dist.PrefixStore("round/1", rollout.Store(context=context, job="prefixed", timeout=LONG))
    gc.collect()
    prefixed.set("key", "value")
    assert prefixed.get("key") == b"value"
    assert prefixed.add("n", 3) == 3
    assert prefixed.compare_set("cas", "", "x") == b"x"
    assert prefixed.check(["key", "n"]) and not prefixed.check(["nothing"])
    assert prefixed.num_keys() == 3
    assert prefixed.delete_key("cas") and not prefixed.delete_key("cas")
    assert prefixed.has_extended_api()
    prefixed.append("key", "s")
    prefixed.multi_set(["a", "b"], ["1", "2"])
    assert prefixed.multi_get(["a", "b", "key"]) == [b"1", b"2", b"values"]
    clone = prefixed.clone()
    del prefixed
    gc.collect()
    clone.set("cloned", "1")
    clone.wait(["cloned", "key"])
    clone.set_timeout(SHORT)
    raises(dist.DistStoreError, lambda: clone.get("nothing"), "timeout")
    raises(dist.DistStoreError, lambda: clone.wait(["nothing"], SHORT), "round/1/nothing")
    plain = rollout.Store(context=context, job="prefixed", timeout=LONG)
    assert plain.get("round/1/cloned") == b"1"
    ours = plain.prefixed("round/1")
    assert ours.get("cloned") == b"1" and "cloned" in ours.list_keys()
    ours.queue_push("q", "1")
    assert ours.queue_pop("q") == b"1" and not plain.check(["round/1/q"])
    say("trampoline")


def waits(context):
    """A wait blocks neither other threads nor Ctrl-C, and refusals are reported."""
    store = rollout.Store(context=context, job="waits", timeout=LONG)
    turns = []
    thread = threading.Thread(target=lambda: [turns.append(time.monotonic()) or time.sleep(0.01) for _ in range(50)])
    thread.start()
    raises(dist.DistStoreError, lambda: store.wait(["never"], datetime.timedelta(seconds=2)), "never")
    thread.join()
    assert max(b - a for a, b in zip(turns, turns[1:])) < 1.5, turns
    # A shell that starts a test in the background has it ignore SIGINT, which Python keeps.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    begun = time.monotonic()
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    raises(KeyboardInterrupt, lambda: store.wait(["never"]))
    assert time.monotonic() - begun < 60
    store.set("word", "no number")
    raises(rollout.RolloutError, lambda: store.add("word", 1))
    raises(rollout.RolloutError, lambda: store.set("big", bytes((1 << 20) + 1)))
    # One address without a listener, one with a scheme.
    found = rollout.Connection.find(context=context)
    known = ["127.0.0.1:1", f"grpc://{found.endpoints[0]}", *found.endpoints]
    other = rollout.Store(",".join(known), context=context, job="waits", timeout=LONG)
    assert other.get("word") == b"no number"
    raises(ValueError, lambda: rollout.Store("127.0.0.1:1", job="waits", ca_file="nowhere.pem"), "cert_file")
    child = os.fork()
    if child == 0:
        try:
            store.get("word")
        except RuntimeError as error:
            os._exit(0 if "fork" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    say("waits")


def gloo(context, rank):
    """A process group of two that meets in the store."""
    store = rollout.Store(context=context, job="gloo", timeout=LONG)
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=2)
    one = torch.ones(3)
    dist.all_reduce(one)
    assert one.tolist() == [2.0] * 3
    dist.barrier()
    dist.destroy_process_group()
    say("reduced")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
    say("done")
