"""A signal handler that calls the package while a call of it waits. It needs no cluster: no server answers."""

import signal
import time

import rollout

cluster = rollout.Connection.find("127.0.0.1:1", insecure_plaintext=True).cluster()
seen = []


def ask(timeout_ms):
    try:
        cluster.call("Runs/ListRuns", "{}", timeout_ms=timeout_ms)
    except (TimeoutError, ConnectionError) as error:
        return error
    raise AssertionError("somebody has answered")


def handler(*_):
    seen.append(ask(100))


signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.2)
ask(2000)
assert len(seen) == 1, seen


# A handler that raises ends the wait.
def raising(*_):
    raise KeyError("enough")


signal.signal(signal.SIGALRM, raising)
signal.setitimer(signal.ITIMER_REAL, 0.2)
begun = time.monotonic()
try:
    ask(60_000)
except KeyError:
    assert time.monotonic() - begun < 30
else:
    raise AssertionError("the wait went on")
print("done", flush=True)
