"""Workers of a job and its barriers, through `rollout.TrainingOrchestrator`: `barriers.py SCENARIO CONTEXT ...`.
The test waits for the lines that it prints."""

import os
import signal
import sys
import time
from datetime import timedelta

import rollout

LONG = timedelta(seconds=240)


def say(text):
    print(text, flush=True)


def orchestrator(context):
    listed = [f"grpc://{each}" for each in rollout.Connection.find(context=context).endpoints]
    return rollout.TrainingOrchestrator(coordinator_url=",".join(listed), job="barriers", context=context)


def passes(context, name, others, go):
    """Two generations of a barrier; at the first, the last worker comes when the file `go` exists."""
    job = orchestrator(context)
    members = sorted([name, *others.split(",")])
    with job.register_worker(name):
        say("registered")
        while name == members[-1] and not os.path.exists(go):
            time.sleep(0.05)
        say("arrives")
        passed = job.barrier("warmed-up", members=members, timeout=LONG)
        assert sorted(passed) == members, passed
        say("passed 1")
        assert sorted(job.barrier("warmed-up", count=len(members), timeout=LONG)) == members
        say("passed 2")


def errs(context, name, others):
    """Arrives twice with another definition of the barrier than the waiting workers, then with theirs: it passes
    the generation at which they wait."""
    job = orchestrator(context)
    members = sorted([name, *others.split(",")])
    with job.register_worker(name):
        say("registered")
        while not any(each["arrived"] for each in listed(job)):
            time.sleep(0.05)
        for _ in range(2):
            try:
                job.barrier("warmed-up", count=len(members) + 1, timeout=LONG)
            except rollout.RolloutError as refused:
                assert "RO-6006" in str(refused), refused
            else:
                raise AssertionError("it was let in with another count")
        say("refused")
        passed = job.barrier("warmed-up", members=members, timeout=LONG)
        assert sorted(passed) == members, passed
        say("passed 1")
        assert sorted(job.barrier("warmed-up", count=len(members), timeout=LONG)) == members
        say("passed 2")


def listed(job):
    return job.call("Barrier/List", {"job": job.job_name})["barriers"]


def interrupted(context, name, other):
    """Is interrupted while it waits for a worker that is not there yet, and comes again: both pass the first
    generation."""
    job = orchestrator(context)

    def interrupt(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    with job.register_worker(name):
        members = sorted([name, other])
        signal.alarm(2)
        try:
            job.barrier("epoch", members=members, timeout=LONG)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("it passed alone")
        say("interrupted")
        assert sorted(job.barrier("epoch", members=members, timeout=LONG)) == members
        assert [each["generation"] for each in listed(job)] == [1], listed(job)
        say("passed 1")


def comes_late(context, name, go):
    """Comes to a barrier after the cluster has given it up."""
    job = orchestrator(context)
    job.register_worker(name, keep_alive_interval=timedelta(milliseconds=500))
    say("registered")
    while not os.path.exists(go):
        time.sleep(0.001)
    try:
        job.barrier("epoch", members=[name, "nobody"], timeout=LONG)
    except rollout.ParticipantLost as lost:
        assert name in str(lost), lost
    else:
        raise AssertionError("it passed")
    say("lost")


def passes_so_often(context, name, other, times, then):
    """Passes a barrier with another worker; `then` it leaves, or stays until it is killed."""
    job = orchestrator(context)
    # The killed worker must not count as lost before it is back.
    worker = job.register_worker(name, keep_alive_interval=timedelta(seconds=60))
    for at in range(int(times)):
        passed = job.barrier("epoch", members=sorted([name, other]), timeout=LONG)
        assert sorted(passed) == sorted([name, other]), passed
        say(f"passed {at + 1}")
    if then == "stays":
        time.sleep(LONG.total_seconds())
    worker.leave()


def dies(context, name):
    """Does not arrive, and dies."""
    job = orchestrator(context)
    job.register_worker(name, keep_alive_interval=timedelta(seconds=1))
    say("registered")
    time.sleep(LONG.total_seconds())


def fails(context, name, other):
    """Waits for a worker that dies, gets an error that names it, and continues without it."""
    job = orchestrator(context)
    with job.register_worker(name):
        while not any(each["name"] == other for each in job.workers()):
            time.sleep(0.05)
        say("waits")
        try:
            job.barrier("epoch", members=[name, other], timeout=LONG)
        except rollout.BarrierFailed as failed:
            assert failed.why == "lost" and failed.participant == other and failed.host, vars(failed)
            assert other in str(failed) and failed.heard_wall_ms > 0, vars(failed)
        else:
            raise AssertionError("it passed")
        say("failed")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
    say("done")
