#!/usr/bin/env bash
# Runs one fuzz target under libFuzzer, and prints the result in one line. It keeps the corpus in
# TARGET_DIRECTORY/fuzz/TARGET, from which the next run starts; a failing input goes to tests/fuzz/corpus/TARGET,
# which `cargo test -p rollout-fuzz` replays.
#   run.sh TARGET_DIRECTORY TARGET SECONDS [NUMBER]
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
directory=$1 target=$2 seconds=$3 number=${4:-1}
corpus="$directory/fuzz/$target" kept="$here/corpus/$target" log="$directory/fuzz/$target.log"
mkdir -p "$corpus" "$kept"
# Targets that read files write them to memory.
TMPDIR="$(mktemp -d -p "$([ -d /dev/shm ] && echo /dev/shm || echo "$directory")")"
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
begun=$SECONDS failed=0
ROLLOUT_FUZZ_TARGET="$target" "$directory/debug/rollout-fuzz" "$corpus" \
  -max_total_time="$seconds" -seed="$number" -max_len=16384 -timeout=5 -rss_limit_mb=2048 -print_final_stats=1 \
  -artifact_prefix="$kept/failed-" >"$log" 2>&1 || failed=1
rmdir --ignore-fail-on-non-empty "$kept"
executions="$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")"
last="$(grep -o 'cov: [0-9]* ft: [0-9]* corp: [0-9]*' "$log" | tail -1)"
echo "$target: $((SECONDS - begun)) s, ${executions:-no} executions, $last"
if [ $failed = 1 ]; then
  tail -30 "$log" >&2
  echo "$target failed: the input is in $kept" >&2
  exit 1
fi
