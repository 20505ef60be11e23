"""Waits until a job has this many participants: `participants.py CONTEXT JOB COUNT`."""

import json
import sys
import time

import rollout

context, job, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
connection = rollout.Connection.find(context=context)
cluster = connection.cluster()
asked = {"job": {"namespace": connection.namespace, "job": job}}
while True:
    try:
        found = json.loads(cluster.call("Rendezvous/Describe", json.dumps(asked), timeout_ms=240_000, hold_ms=10_000))
    except rollout.RolloutError as error:
        if "RO-6001" not in str(error):
            raise
        # No participant has joined yet, so there is no job; the caller's own time limit ends this.
        time.sleep(0.1)
        continue
    if len(found["participants"]) >= count:
        break
    asked.update(known_version=found["rendezvous"]["version"], wait_ms=10_000)
print("there", flush=True)
