#!/usr/bin/env bash
# Makes an environment with the `openai` client, once: `setup.sh` prints its interpreter's path. Every package is locked
# by its hash. ROLLOUT_OPENAI_HOME sets the location.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
home="${ROLLOUT_OPENAI_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/rollout-openai}"
stamp="$(sha256sum "$here/requirements.lock" | cut -c1-16)"
env="$home/env-$stamp"
say() { echo "setup: $*" >&2; }

mkdir -p "$home"
# Tests that run beside each other make it once.
exec 9>"$home/lock"
flock 9
if [ -f "$env/made" ]; then
  echo "$env/bin/python"
  exit 0
fi
python="${PYTHON:-}"
for candidate in "$python" python3.13 python3.12 python3.11 python3; do
  if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python="$candidate"
    break
  fi
done
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { say "Python 3.11 or newer is needed"; exit 1; }
say "making $env with $("$python" --version)"
rm -rf "$env"
"$python" -m venv "$env"
"$env/bin/python" -m pip install --quiet --require-hashes --no-deps --only-binary :all: \
  -r "$here/requirements.lock" >&2
touch "$env/made"
echo "$env/bin/python"
