"""Members of a job's rendezvous, without torch: `rendezvous.py SCENARIO ...`. The test waits for the lines that it
prints."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import rollout

LONG_MS = 240_000
KEEP_ALIVE_MS = 500
# A member learns of the others at once, and with each keep-alive.
WATCHED_S = 6 * KEEP_ALIVE_MS / 1000


def say(text):
    print(text, flush=True)


class Job:
    """Two members of a job, and the cluster's status of it."""

    def __init__(self, name):
        connection = rollout.Connection.find()
        self.cluster, self.name = connection.cluster(), name
        self.namespace = connection.namespace
        self.members = [
            self.cluster.rendezvous(self.namespace, name, member, "here", "here", KEEP_ALIVE_MS, 30)
            for member in ("done", "works")
        ]

    def meet(self):
        with ThreadPoolExecutor() as both:
            met = list(both.map(lambda member: member.next(2, 2, LONG_MS, 1000, LONG_MS), self.members))
        assert [outcome for outcome, _ in met] == ["completed", "completed"], met
        assert {round.world_size for _, round in met} == {2}, met
        return self.members

    def until_one_is_there(self):
        asked = json.dumps({"job": {"namespace": self.namespace, "job": self.name}})
        while True:
            found = json.loads(self.cluster.call("Rendezvous/Describe", asked, timeout_ms=LONG_MS))
            if len(found["participants"]) == 1:
                return
            time.sleep(0.05)


def closes():
    """A finished member closes the rendezvous and leaves: the round stays as it was for the other, because no new
    one can begin."""
    job = Job("closes")
    for member in job.members:
        assert member.is_closed(LONG_MS) is False, "nobody has closed a job that is not there yet"
    done, works = job.meet()
    assert works.is_closed(LONG_MS) is False
    done.close(LONG_MS)
    done.leave(LONG_MS)
    job.until_one_is_there()
    until = time.monotonic() + WATCHED_S
    while time.monotonic() < until:
        assert works.waiting() == 0, "a new round is asked for, and nobody can join it"
        time.sleep(0.01)
    assert works.is_closed(LONG_MS) is True
    # A participant that joins then gets a clear answer, not an error.
    assert works.next(2, 2, LONG_MS, 1000, LONG_MS) == ("closed", None)


def goes():
    """If a member leaves without closing the rendezvous, a new round is due, in which it is awaited."""
    job = Job("goes")
    done, works = job.meet()
    assert works.waiting() == 0
    done.leave(LONG_MS)
    while works.waiting() == 0:
        time.sleep(0.05)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
    say("done")
