"""A trainer of a job in Python, without torch: `trainer.py SCENARIO ...`. The test waits for the lines that it
prints. Its state is the list of samples that went in, so that a duplicate or missing sample shows."""

import json
import signal
import sys
import threading
import time
from datetime import timedelta

import rollout

LONG = timedelta(seconds=240)
DATASET = "pile"
HAS_TO_RECOVER = 17


def say(text):
    print(text, flush=True)


def orchestrator(job):
    listed = [f"grpc://{each}" for each in rollout.Connection.find().endpoints]
    return rollout.TrainingOrchestrator(coordinator_url=",".join(listed), job=job)


def register(samples):
    """Creates the dataset twice; another spec under its name is refused."""
    job = orchestrator("any")
    spec = {"uri": "file:///data/{shard:4}.tar", "format": "webdataset", "samples": int(samples), "shard_samples": 10}
    made = job.register_dataset(DATASET, **spec, metadata={"license": "ours"})
    assert (made.shards, made.seed, made.shuffle) == (int(samples) // 10, 42, True), made
    assert job.register_dataset(DATASET, **spec, metadata={"license": "ours"}) == made
    assert job.dataset(DATASET) == made and job.datasets() == [made]
    try:
        job.register_dataset(DATASET, **{**spec, "samples": 7})
    except rollout.RolloutError as error:
        say(f"refused: {error}")
    else:
        raise AssertionError("another dataset under the same name")


def state_of(trainer):
    """In a world of n, rank r takes over the states of ranks r, r + n, ... of the previous world."""
    if trainer.checkpoint is None:
        return {"step": 0, "samples": []}
    ranks = range(trainer.rank, len(trainer.checkpoint.ranks), trainer.world_size)
    parts = [json.loads(trainer.restore(rank)["state"]) for rank in ranks]
    return {"step": trainer.checkpoint.step, "samples": [sample for part in parts for sample in part["samples"]]}


class Feed:
    """Samples of an epoch, a few per step. It does not wait for others: they may wait for this one's steps."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.shard = None
        self.over = False

    def take(self, count):
        if self.shard is None and not self.over:
            try:
                self.shard = self.trainer.get_shard(DATASET, 0, timeout=timedelta(milliseconds=200))
                self.over = self.shard is None
            except TimeoutError:
                pass
        if self.shard is None:
            return []
        assert self.shard.uri == f"file:///data/{self.shard.shard:04}.tar", self.shard.uri
        first = self.shard.next_sample
        end = min(self.shard.end_sample, first + count)
        self.shard.done(end)
        return list(range(first, end))

    def stepped(self, step):
        if self.shard is not None and self.shard.next_sample == self.shard.end_sample:
            self.shard.finish(step)
            self.shard = None


def train(job, name, world, round, steps, pause, checkpoint="0"):
    """Steps with a checkpoint at every fourth, until enough steps were taken and the epoch is over."""
    job = orchestrator(job)
    keep_alive = timedelta(seconds=30)
    recovering = {"world": world.split(","), "round": int(round), "checkpoint": int(checkpoint)}
    try:
        with job.recover(name, **recovering, keep_alive=keep_alive) as trainer:
            assert trainer.rank == recovering["world"].index(name), trainer.lineage
            state, feed = state_of(trainer), Feed(trainer)
            say(f"begins at step {state['step']}")
            saving = None
            while state["step"] < int(steps):
                state["samples"] += feed.take(3)
                state["step"] += 1
                feed.stepped(state["step"])
                time.sleep(float(pause))
                if state["step"] % 4 == 0:
                    saving = trainer.save(state["step"], {"state": json.dumps(state).encode()}, timeout=LONG)
            assert feed.over, "the epoch takes more steps"
            assert saving.wait(LONG), "the last checkpoint was given up"
            latest = job.latest_checkpoint()
            assert (latest.number, latest.step, latest.state) == (saving.number, int(steps), "complete"), latest
    except rollout.HasToRecover as error:
        say(f"has to recover: {error}")
        sys.exit(HAS_TO_RECOVER)
    say("ends")


def alone(samples):
    """It takes only a URL: workers by their names, each shard at one of them, all of the epoch."""
    listed = ",".join(f"grpc://{each}" for each in rollout.Connection.find().endpoints)
    job = rollout.TrainingOrchestrator(coordinator_url=listed)
    assert job.job == "default", job.job
    workers, given = ["worker-0", "worker-1"], []
    shards = [job.get_shard_for_worker(DATASET, worker, 0) for worker in workers]
    again = job.get_shard_for_worker(dataset_id=DATASET, worker_id="worker-0", epoch=0)
    for worker, shard in [*zip(workers, shards), ("worker-0", again)]:
        assert job.trainer(worker).name == worker
        given.append((shard.first_sample, shard.end_sample))
        shard.finish(1)
    while (shard := job.get_shard_for_worker(DATASET, workers[len(given) % 2], 0)) is not None:
        given.append((shard.first_sample, shard.end_sample))
        shard.finish(1)
    assert all(job.get_shard_for_worker(DATASET, worker, 0) is None for worker in workers)
    read = sorted(sample for first, end in given for sample in range(first, end))
    assert read == list(range(int(samples))), given
    for worker in workers:
        job.trainer(worker).leave()
    try:
        job.trainer("nobody")
    except KeyError:
        say(f"{len(given)} shards")


class RoundStore:
    """The store of a rendezvous' round, as `next_round` takes it."""

    def __init__(self, rendezvous, round):
        connection = rollout.Connection.find()
        self.native = connection.cluster().store(connection.namespace, rendezvous, round)

    def compare_set(self, key, expected, desired):
        return self.native.compare_set(key, expected.encode(), desired.encode(), 240_000)


def restarted(job, samples):
    """Two rendezvous ids, one after the other: the second's rounds count from 1 again, the lineage's do not."""
    orchestrated = orchestrator(job)

    def read(trainer, state, shards, finish):
        for _ in range(shards):
            shard = trainer.get_shard(DATASET, 0, timeout=LONG)
            if shard is None:
                return False
            state["samples"] += range(shard.first_sample, shard.end_sample)
            state["step"] += 1
            if finish:
                shard.finish(state["step"])
        return True

    def save(trainer, state):
        assert trainer.save(state["step"], {"state": json.dumps(state).encode()}, timeout=LONG).wait(LONG)

    rounds = []
    for rendezvous, round in (("first-id", 1), ("first-id", 2), ("second-id", 1)):
        store = RoundStore(rendezvous, round)
        asked = orchestrated.next_round(store)
        assert asked == orchestrated.next_round(RoundStore(rendezvous, round)), "all of a round agree"
        rounds.append(asked)
        trainer = orchestrated.recover("t0", world=["t0"], round=asked)
        state = state_of(trainer)
        say(f"{rendezvous} {round} begins at step {state['step']}")
        if rendezvous == "second-id":
            break
        read(trainer, state, 2, True)
        save(trainer, state)
        # Some shards are finished but in no checkpoint, and some begun: the process ends here.
        read(trainer, state, 1, True)
        read(trainer, state, 1, False)
        trainer._native.abandon()
    assert rounds == [1, 2, 3], rounds
    # The new id's round is already over for the job, and so refused; the lineage continues.
    for stale in (1, 2):
        try:
            orchestrated.recover("t0", world=["t0"], round=stale)
        except rollout.RolloutError as error:
            assert "RO-6102" in str(error), error
        else:
            raise AssertionError("a round that is over")
    while read(trainer, state, 1, True):
        pass
    save(trainer, state)
    assert sorted(state["samples"]) == list(range(int(samples))), state
    trainer.leave()


def twice(job):
    """A rank reports once what a checkpoint has of it: a different save of the same step is an error, an identical
    one is not."""
    trainer = orchestrator(job).recover("t0", world=["t0"], round=1)
    assert trainer.save(5, {"state": b"a"}, timeout=LONG).wait(LONG)
    assert trainer.save(5, {"state": b"a"}, timeout=LONG).wait(LONG)
    other = trainer.save(5, {"state": b"b"}, timeout=LONG)
    try:
        other.wait(LONG)
    except rollout.RolloutError as error:
        assert "RO-6109" in str(error), error
    else:
        raise AssertionError("what was saved is not in the checkpoint")


class Deaf:
    """A cluster that starts a trainer and loses the answer."""

    def __init__(self, cluster):
        self.cluster = cluster

    def trainer(self, *args, **lineage):
        self.cluster.trainer(*args, **lineage).abandon()
        raise TimeoutError("no answer")


def unheard(job):
    """A recovery whose answer was lost can be repeated without tearing the lineage; a release tells no checkpoint
    of the shard."""
    orchestrated = orchestrator(job)
    first = orchestrated.recover("t0", world=["t0"], round=1, keep_alive=LONG)
    assert first.save(5, {"state": b"a"}, timeout=LONG).wait(LONG)
    answering = orchestrated.cluster
    orchestrated.cluster = Deaf(answering)
    try:
        orchestrated.recover("t0", world=["t0"], round=2, keep_alive=LONG)
    except TimeoutError:
        orchestrated.cluster = answering
    trainer = orchestrated.recover("t0", world=["t0"], round=2, keep_alive=LONG)
    assert trainer.checkpoint.step == 5, trainer.checkpoint
    shard = trainer.get_shard(DATASET, 0, timeout=LONG)
    try:
        shard.release(6, shard.end_sample + 1)
    except rollout.RolloutError:
        assert list(trainer._held.values()) == [shard], trainer._held
    else:
        raise AssertionError("more samples than there are")
    trainer._native.release(shard._claim, shard.next_sample, 6)
    try:
        shard.release(6)
    except rollout.RolloutError as error:
        assert "RO-6107" in str(error), error
        assert not trainer._held, "it may be another's by now"
    else:
        raise AssertionError("it was released already")
    assert trainer.save(7, {"state": b"b"}, timeout=LONG).wait(LONG)
    trainer.leave()


def grown(job):
    """A rank that the checkpoint's world did not have gets a clear error: nothing is damaged."""
    orchestrated = orchestrator(job)
    first = orchestrated.recover("t0", world=["t0"], round=1)
    assert first.save(5, {"state": b"a"}, timeout=LONG).wait(LONG)
    trainers = [orchestrated.recover(name, world=["t0", "t1"], round=2) for name in ("t0", "t1")]
    assert trainers[0].restore() == trainers[1].restore(0) == {"state": b"a"}
    try:
        trainers[1].restore()
    except LookupError as error:
        assert "nothing of rank 1" in str(error), error
    else:
        raise AssertionError("a rank that nobody wrote was restored")


def given_up(job, name):
    """A checkpoint is given up, and forgotten, while a slow rank writes: its part is not needed, however late it
    comes, and the next checkpoint works as usual."""
    world = ["t0", "t1"]
    with orchestrator(job).recover(name, world=world, round=1, keep_alive=timedelta(seconds=60)) as trainer:
        saving = trainer.save(4, {"state": b"4"}, timeout=LONG)
        say(f"saves checkpoint {saving.number}")
        assert saving.wait(LONG) is False, "it was given up"
        saving.reported(LONG)
        assert trainer.save(8, {"state": b"8"}, timeout=LONG).wait(LONG) is True


def damaged(job, name, steps):
    """The last checkpoint is damaged: recovery does not start from it, but from the oldest kept one."""
    orchestrated = orchestrator(job)
    with orchestrated.recover(name, world=[name], round=2) as trainer:
        bad = trainer.checkpoint.number
        try:
            trainer.restore()
        except OSError as error:
            say(f"refused: {error}")
        else:
            raise AssertionError("damaged bytes were restored")
    kept = [each.number for each in orchestrated.checkpoints() if each.state == "complete"]
    assert min(kept) < bad == max(kept), kept
    train(job, name, name, 3, steps, 0, checkpoint=min(kept))


def waits(job):
    """Waiting holds no lock and ends with Ctrl-C, and a request made meanwhile is not lost; a checkpoint waits for
    a missing rank no longer than its limit."""
    job = orchestrator(job)
    reading = job.join("reads")
    held = [reading.get_shard(DATASET, 0) for _ in range(job.dataset(DATASET).shards)]
    waiting = job.join("waits")

    def others_run():
        for _ in range(200):
            time.sleep(0.001)
        say("waits")

    try:
        threading.Thread(target=others_run, daemon=True).start()
        waiting.get_shard(DATASET, 0, timeout=LONG)
    except KeyboardInterrupt:
        say("interrupted")
    held.pop().release(1)
    assert waiting.get_shard(DATASET, 0, timeout=LONG) is not None
    recovered = job.recover("reads", world=["reads", "absent"], round=1)
    try:
        waiting.get_shard(DATASET, 0)
    except rollout.HasToRecover as error:
        say(f"left behind: {error}")
    begun = time.monotonic()
    try:
        recovered.save(1, {"state": b"{}"}, timeout=timedelta(seconds=1))
    except rollout.RolloutError as error:
        assert "absent" in str(error), error
        assert time.monotonic() - begun < 60
        say("did not wait for ever")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    globals()[sys.argv[1]](*sys.argv[2:])
    say("done")
