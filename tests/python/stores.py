"""A job's store in Python, without torch: `stores.py SCENARIO ...`. The test waits for the lines that it prints."""

import sys
import threading

import rollout

LONG_MS = 240_000
END = b"end"


def say(text):
    print(text, flush=True)


def store(job="train"):
    connection = rollout.Connection.find()
    return connection.cluster().store(connection.namespace, job, 0)


def timeout_of(act):
    try:
        act()
    except TimeoutError as error:
        return str(error)
    raise AssertionError("it did not time out")


def told():
    """A wait or a get that times out names the missing keys."""
    ours = store()
    ours.set([("here", b"1"), ("too", b"2")], LONG_MS)
    for act in (ours.wait, ours.get):
        said = timeout_of(lambda: act(["here", "never", "too", "nowhere"], 6000))
        assert "keys: never, nowhere (2 of 4 were seen)" in said, said
        assert "here," not in said, said
    said = timeout_of(lambda: ours.wait(["never"], 300))
    assert said == "wait timeout after 300ms: keys: never", said
    # A key that is set after another was seen is seen, too.
    late = threading.Timer(0, lambda: store().set([("never", b"3")], LONG_MS))
    late.start()
    ours.wait(["here", "never"], LONG_MS)
    late.join()
    assert ours.get(["never", "too"], LONG_MS) == [b"3", b"2"]


def gets(key):
    """Blocks until another client sets the key."""
    ours = store()
    say("waits")
    say(f"got {ours.get([key], LONG_MS)[0].decode()}")


def puts(key, value):
    store().set([(key, value.encode())], LONG_MS)


def meets(name, size):
    """Waits for the others at a barrier of the store."""
    ours = store()
    say("waits")
    ours.barrier("all", int(size), LONG_MS)
    say(f"passed {name}")


def pops(queue):
    """Pops until an end marker was pushed."""
    ours = store()
    say("waits")
    while (element := ours.queue_pop(queue, True, LONG_MS)) != END:
        say(f"popped {element.decode()}")


def pushes(queue, count, poppers):
    """Pushes different elements, one after the other, and an end marker for each popping client."""
    ours = store()
    for n in range(int(count)):
        ours.queue_push(queue, str(n).encode(), LONG_MS)
        say(f"pushed {n}")
    for _ in range(int(poppers)):
        ours.queue_push(queue, END, LONG_MS)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
    say("done")
