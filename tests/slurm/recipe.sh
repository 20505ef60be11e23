#!/usr/bin/env bash
# On the machine of machine.sh: does what deploy/slurm/README.md says, and stops workers in each way while a batch runs.
set -euo pipefail
export PATH="/opt/rollout/bin:$PATH"
rows=400
cd

failed() {
  echo "slurm: FAILED: $*" >&2
  tail -n 15 rollout-worker-*.log batch.log >&2
  exit 1
}
#   eventually SECONDS WHAT COMMAND...
eventually() {
  local what=$2 deadline=$((SECONDS + $1))
  shift 2
  until "$@"; do
    [ "$SECONDS" -lt "$deadline" ] || failed "it never came true: $what"
    sleep 0.2
  done
}
ready() { [ "$(rolloutctl -o jsonl worker list | jq -r .data.state | grep -c '^ready$')" = "$1" ]; }
done_rows() { rolloutctl -o json run describe batch | jq -r .data.run.counts.done; }
has_done() { [ "$(done_rows)" -ge "$1" ]; }
is_submitted() { rolloutctl run describe batch >/dev/null 2>&1; }
# job TASK REGEX: `2_0` is task 0 of array 2.
job() { scontrol --oneliner show job "$1" | grep -qE "$2"; }
submit() { # prints the array's number
  sbatch --parsable --array=0-1 /opt/rollout/slurm/rollout-workers.sbatch
}
# stop TASK REGEX COMMAND...: the command stops the task's worker, and then `scontrol show job` prints a line like that.
# The worker must have finished its running rows and left, before KillWait is over.
stop() {
  local task=$1 state=$2 log="rollout-worker-$1.log" start before after
  shift 2
  before="$(wc -l <"$log")"
  eventually 30 "the worker of $task is busy" has_done $(($(done_rows) + 12))
  start=$SECONDS
  "$@"
  eventually 85 "$task has $state" job "$task" "$state"
  after="$(tail -n +$((before + 1)) "$log" | grep '^{' | jq -r '.fields | "\(.message) \(.running // "")"')"
  grep -q '^draining [1-9]' <<<"$after" || failed "the worker of $task did not drain while rows ran"
  grep -q '^deregistered' <<<"$after" || failed "the worker of $task did not leave the cluster"
  ! grep 'the engine was ended' <<<"$after" || failed "an engine of $task did not finish its rows"
  has_done "$rows" && failed "the batch was over before $task stopped"
  echo "-- $*: after $((SECONDS - start)) s, $(done_rows) rows done"
}

rollout dev --workers 0 --detach --dir dev 2>dev.log || { cat dev.log; exit 1; }
export ROLLOUT_CONTEXT=$PWD/dev/admin.toml ROLLOUT_HOME=$PWD/home
mkdir -p "$ROLLOUT_HOME/bin"
cp /opt/rollout/bin/rollout-worker "$ROLLOUT_HOME/bin/"
for n in 0 1; do rolloutctl cert issue worker "slurm-$n" --ca-dir dev/ca --out-dir "$ROLLOUT_HOME" >/dev/null; done
# As the recipe's comment says: the endpoints and the engine are edited.
sed "s|^endpoints = .*|$(grep '^endpoints = ' dev/client.toml)|; /^\[\[engine\]\]/,\$d" /opt/rollout/slurm/worker.toml \
  >"$ROLLOUT_HOME/worker.toml"
cat >>"$ROLLOUT_HOME/worker.toml" <<TOML
[[engine]]
kind = "mock"
process = true
slots = 2
concurrency = 4
latency_ms_min = 1000
latency_ms_max = 3000
side_file = "$PWD/executions"
TOML

first="$(submit)"
eventually 60 "two workers are ready" ready 2
seq -f '{"prompt": "What is %g times 7?"}' "$rows" >prompts.jsonl
# The label is one that the script sets.
cat >batch.toml <<TOML
[model]
uri = "any"
[input]
glob = "$PWD/prompts.jsonl"
[output]
dir = "$PWD/out"
[workers]
labels = { partition = "main" }
TOML
rollout infer batch --quiet --config batch.toml --name batch >batch.log 2>&1 &
batch=$!
eventually 60 "the batch is submitted" is_submitted
stop "${first}_0" JobState=CANCELLED scancel "${first}_0"
stop "${first}_1" "JobState=RUNNING .*Restarts=1 " scontrol requeue "${first}_1"
eventually 60 "the requeued worker is ready" ready 1
# The script's --signal then comes at once: Slurm checks time limits every 30 s, and signals up to 60 s early.
stop "${first}_1" JobState=COMPLETED scontrol update "JobId=${first}_1" TimeLimit=2
ready 0 || failed "a worker is left"
second="$(submit)"
eventually 60 "two workers are ready again" ready 2
stop "${second}_0" JobState=COMPLETED scancel --batch --signal=TERM "${second}_0"
wait "$batch" || failed "the batch: status $?"
rollout verify batch --output out
[ "$(grep -c '"completion":"MOCK:' out/completions.jsonl)" = "$rows" ] || failed "not every row has a completion"
executed="$(grep -c ' started$' executions)"
[ "$executed" = "$rows" ] || failed "rows were executed more than once: $executed executions"
rollout dev stop --dir dev >/dev/null 2>&1
echo "-- $rows rows, each executed once; slurm: passed"
