"""`rollout.submit_batch` against a cluster with workers: `batch.py CONTEXT PROGRAM DIR`."""

import json
import signal
import sys
import threading
from pathlib import Path

import rollout

context, program, directory = sys.argv[1], sys.argv[2], Path(sys.argv[3])
common = {"model": "mock/model", "context": context, "program": program}

rows = [{"id": f"r{n}", "prompt": f"row {n} \"é\""} for n in range(50)]
run = rollout.submit_batch(rows, output=directory / "good", sampling={"max_tokens": 8}, name="from-python", **common)
assert run.name == "from-python"
assert run.wait()
completions = [json.loads(line) for line in (directory / "good" / "completions.jsonl").read_text().splitlines()]
assert [row["id"] for row in completions] == [row["id"] for row in rows]
assert completions[7]["completion"] == 'MOCK:row 7 "é"'
# Submitting the same again finds the same run.
again = rollout.submit_batch(rows, output=directory / "good", sampling={"max_tokens": 8}, name="from-python", **common)
assert sorted(row["id"] for row in again.results(follow=True)) == sorted(row["id"] for row in rows)
# Other rows under that name make another run, with its own results.
others = [{"id": f"s{n}", "prompt": f"other {n}"} for n in range(5)]
other = rollout.submit_batch(others, output=directory / "good", sampling={"max_tokens": 8}, name="from-python", **common)
assert other.name == "from-python.r2", other.name
assert other.wait()
completions = [json.loads(line) for line in (directory / "good" / "completions.jsonl").read_text().splitlines()]
assert [row["id"] for row in completions] == [row["id"] for row in others]
assert sorted(row["id"] for row in other.results()) == sorted(row["id"] for row in others)

# The given rows belong to this run, although the directory's name reads as a pattern of another's.
for place, prompt in (("exp1", "of exp1"), ("exp[1]", "of exp[1]")):
    run = rollout.submit_batch([{"id": "x", "prompt": prompt}], output=directory / place, **common)
    assert run.wait()
    (line,) = (directory / place / "completions.jsonl").read_text().splitlines()
    assert json.loads(line)["completion"] == f"MOCK:{prompt}", line

# Results come from the run's location, which only the batch file names; no worker serves that namespace.
elsewhere = {"cluster": {"namespace": "other"}}
away = rollout.submit_batch(others, output=directory / "away", name="away", config=elsewhere, **common)
assert list(away.results()) == []

# A cancelled run is not a run with failed rows: nothing was written.
cancel = {"namespace": "other", "name": "away", "action": "RUN_ACTION_CANCEL", "reason": "enough"}
caller = rollout.Connection.find(context=context).cluster()
cancelling = threading.Timer(
    1.0, lambda: caller.call("Runs/ControlRun", json.dumps(cancel), timeout_ms=240_000)
)
cancelling.start()
try:
    away.wait()
except rollout.BatchError as error:
    assert error.status == 1 and "was cancelled" in str(error), error
else:
    raise AssertionError("a cancelled run has ended")
cancelling.join()
assert not (directory / "away" / "completions.jsonl").exists()

# However much it prints meanwhile, the rows come.
chatty = directory / "chatty"
chatty.write_text("#!/bin/sh\nhead -c 300000 /dev/zero | tr '\\0' w >&2\necho '{\"id\": 1}'\n")
chatty.chmod(0o755)
signal.alarm(60)
assert list(rollout.BatchRun("r", directory, directory / "none.toml", (str(chatty),), {}).results()) == [{"id": 1}]
signal.alarm(0)

bad = rollout.submit_batch([{"prompt": "MOCK_FAIL_INVALID please"}], output=directory / "bad", **common)
assert not bad.wait()
assert (directory / "bad" / "errors.jsonl").exists()
try:
    rollout.submit_batch([{"nothing": 1}], output=directory / "refused", **common)
except rollout.BatchError as error:
    assert error.status == 2 and "prompt" in str(error), error
else:
    raise AssertionError("a row without a prompt was submitted")

# Any call of the contract, in JSON.
cluster = rollout.Connection.find(context=context).cluster()
runs = json.loads(cluster.call("Runs/ListRuns", "{}", timeout_ms=240_000))
assert any(each["name"] == "from-python" for each in runs["runs"]), runs
for method, request in (("Runs/Nothing", "{}"), ("Runs/WatchRun", "{}"), ("Runs/ListRuns", '{"nothing": 1}')):
    try:
        cluster.call(method, request, timeout_ms=1000)
    except ValueError:
        continue
    raise AssertionError(f"{method} {request} was asked")
print("done", flush=True)
