#!/usr/bin/env bash
# Installs the wheel in clean Debian roots that have Python and nothing else, and runs a batch there:
#   check.sh WHEEL DIRECTORY
# Three times, each in a root without caches. From `pip install` to the batch's last row may take a minute in the
# median, and `rollout dev` two seconds. Then the leader is killed during a second batch. Makes the roots in DIRECTORY and
# removes them.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
wheel="$(realpath "$1")"
limit_ms=60000 dev_limit_ms=2000
what="the wheel in clean Debian roots"
. "$here/../debian_root.sh"
make_work "$2"
needs_root
needs_mmdebstrap
debian_root "$work/base" python3,python3-venv

# A batch that does not end must not hang.
root_limit_s=300
# Runs a script in a root, with this machine's network.
#   within ROOT SCRIPT
within() { in_root "$1" bash -euc "$2"; }

times=() dev_times=()
median() { printf '%s\n' "$@" | sort -n | sed -n 2p; }
for try in 1 2 3; do
  root="$work/$try"
  cp -a "$work/base" "$root"
  cp "$wheel" "$root/root/"
  begun=$(date +%s%N)
  # shellcheck disable=SC2016 # the inner shell's variables
  within "$root" '
    cd /root
    python3 -m venv env && . env/bin/activate
    pip install --quiet ./*.whl
    seq -f "{\"prompt\": \"What is %g times 7?\"}" 1000 > prompts.jsonl
    start=$(date +%s%N)
    rollout dev --detach --latency-ms 5:50 2>dev.log || { cat dev.log; exit 1; }
    echo "rollout dev: $((($(date +%s%N) - start) / 1000000))"
    export ROLLOUT_CONTEXT=/root/.rollout/dev/client.toml
    rollout infer batch --quiet --model any --input prompts.jsonl --output out
    [ "$(wc -l < out/completions.jsonl)" = 1000 ]' >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  took=$((($(date +%s%N) - begun) / 1000000))
  dev="$(sed -n 's/^rollout dev: //p' "$work/log")"
  times+=("$took") dev_times+=("$dev")
  echo "-- try $try: from pip install to the last row: $took ms; rollout dev: $dev ms"
  # The namespace has ended, and its processes with it. Start the cluster again and kill its leader in a batch.
  if [ "$try" = 3 ]; then
    # shellcheck disable=SC2016 # the inner shell's variables
    within "$root" '
      cd /root && . env/bin/activate
      rollout dev --detach --latency-ms 500:1500 2>dev.log || { cat dev.log; exit 1; }
      export ROLLOUT_CONTEXT=/root/.rollout/dev/client.toml
      rollout infer batch --quiet --model any --input prompts.jsonl --output killed --name killed &
      until [ -e killed/run-id ]; do kill -0 $!; sleep 0.1; done
      rollout dev kill leader
      [ ! -e killed/completions.jsonl ] || { echo "the batch ended before its leader was killed"; exit 1; }
      wait $!
      rollout verify killed --output killed
      rollout dev stop' || { echo "install: FAILED with a killed leader" >&2; exit 1; }
  fi
  rm -rf --one-file-system "$root"
done
took="$(median "${times[@]}")" dev="$(median "${dev_times[@]}")"
echo "-- medians: $took ms; rollout dev: $dev ms"
[ "$took" -lt "$limit_ms" ] || { echo "install: it takes longer than $limit_ms ms" >&2; exit 1; }
[ "$dev" -lt "$dev_limit_ms" ] || { echo "install: rollout dev takes longer than $dev_limit_ms ms" >&2; exit 1; }
