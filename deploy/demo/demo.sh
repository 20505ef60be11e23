#!/usr/bin/env bash
# Runs 2,000 prompts with three members and four workers, and kills the leader with SIGKILL halfway.
#   demo.sh DIRECTORY-OF-BINARIES
# All files are in a temporary directory. The script stops all processes and removes it at the end.
set -euo pipefail

bin=$1
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d -t rollout-demo-XXXXXX)
dev=$work/dev
rows=2000
batch_pid=

finish() {
  [ -n "$batch_pid" ] && kill "$batch_pid" 2>/dev/null || true
  "$bin/rollout" dev stop --dir "$dev" >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap finish EXIT

say() { printf '\n== %s\n' "$*"; }

say "a local cluster: three members, four workers with the mock engine, mTLS"
"$bin/rollout" dev --dir "$dev" --members 3 --workers 4 --slots 1 --engine mock \
  --latency-ms 40:120 --concurrency 8 --no-restart --detach
export ROLLOUT_CONTEXT=$dev/admin.toml
"$bin/rolloutctl" status

say "$rows prompts"
seq 1 $rows | awk '{printf "{\"id\": \"row-%d\", \"prompt\": \"What is %d times %d?\", \"tag\": %d}\n", $1, $1, $1, $1 % 7}' \
  >"$work/prompts.jsonl"
cat >"$work/batch.toml" <<TOML
[model]
uri = "mock/tiny"
[sampling]
temperature = 0.7
max_tokens = 64
[input]
glob = "$work/prompts.jsonl"
[output]
dir = "$work/out"
TOML
"$bin/rollout" infer batch --config "$work/batch.toml" --name demo >"$work/batch.log" 2>&1 &
batch_pid=$!

field() { # a field of JSON on standard input
  python3 -c 'import json, sys; v = json.load(sys.stdin)["data"]
for key in sys.argv[1].split("."): v = v[key]
print(v)' "$1"
}

say "when half of it is done, the leader is killed with SIGKILL"
for _ in $(seq 600); do
  done_rows=$("$bin/rolloutctl" -o json run describe demo 2>/dev/null | field run.counts.done 2>/dev/null || echo 0)
  [ "$done_rows" -ge $((rows / 2)) ] && break
  kill -0 "$batch_pid" || { cat "$work/batch.log"; exit 1; }
  sleep 0.05
done
echo "$done_rows of $rows rows are done"
"$bin/rollout" dev kill leader --dir "$dev"

if ! wait "$batch_pid"; then
  batch_pid=
  cat "$work/batch.log"
  exit 1
fi
batch_pid=
say "output of rollout infer batch"
cat "$work/batch.log"
say "state of the cluster"
"$bin/rolloutctl" status || true
"$bin/rolloutctl" run list

say "verification"
"$bin/rollout" verify demo --output "$work/out"
python3 "$here/check.py" "$work/prompts.jsonl" "$work/out/completions.jsonl"
