"""A trainer that torchrun starts: `train.py STEPS` all-reduces this many times, or until the file TEST_STOP exists
and all have seen it. With TEST_TRIES, a trainer whose all-reduce failed tries to join again at its old address,
until that file exists. With TEST_WORKS_ON it has work of its own after that, until that file exists. The test
waits for the lines that it prints."""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist


def say(line):
    """Writes in one piece: two trainers share the output."""
    os.write(1, f"{line}\n".encode())


def join(seconds):
    """Joins at MASTER_ADDR and MASTER_PORT: at the store of the round for which it was started."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=seconds))
    rank, world = dist.get_rank(), dist.get_world_size()
    name = f"{os.environ['TEST_AGENT']} rank {rank} of {world} pid {os.getpid()}"
    say(f"joined {name} of store {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}")
    return rank, world, name


def try_again():
    """An orphan that does not give up. If it joins, it says so and exits."""
    dist.destroy_process_group()
    while os.path.exists(test) and not os.path.exists(tries):
        try:
            join(3)
        except RuntimeError as error:
            say(f"tried pid {os.getpid()}: {type(error).__name__}")
            time.sleep(0.2)
        else:
            break
    sys.exit("it is an orphan")


steps, stop = int(sys.argv[1]), os.environ.get("TEST_STOP", "")
test, tries = f"/proc/{os.environ['TEST_PID']}", os.environ.get("TEST_TRIES", "")
# An orphan may wait for another orphan that is never ended: it must finish before the test times out.
rank, world, name = join(100 if tries else 240)
orphaned = False
for step in range(1, steps + 1):
    if not os.path.exists(test):
        sys.exit("the test is gone")
    stops = float(bool(stop) and os.path.exists(stop))
    total = torch.tensor([1.0, rank, step, stops])
    try:
        dist.all_reduce(total)
    except RuntimeError:
        if not tries:
            raise
        orphaned = True
    if orphaned:
        # Not within `except`: the exception holds the old group, and with it the connections at which others wait.
        try_again()
    assert total.tolist()[:3] == [world, world * (world - 1) / 2, step * world], total
    if step % 10 == 0:
        say(f"step {step} of world {world} {name}")
    if total[3] > 0:
        break
    time.sleep(0.02)
dist.barrier()
dist.destroy_process_group()
if alone := os.environ.get("TEST_WORKS_ON", ""):
    say(f"works on {name}")
    while not os.path.exists(alone):
        if not os.path.exists(test):
            sys.exit("the test is gone")
        time.sleep(0.05)
say(f"finished {name}")
