#!/usr/bin/env bash
# Makes an environment with the `openai` client, once: `setup.sh` prints its interpreter's path. Every package is locked
# by its hash. ROLLOUT_OPENAI_HOME sets the location.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
home="${ROLLOUT_OPENAI_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/rollout-openai}"
stamp="$(sha256sum "$here/requirements.lock" | cut -c1-16)"
. "$here/../python_env.sh"
begin_env "$home" "$stamp"
"$env/bin/python" -m pip install --quiet --require-hashes --no-deps --only-binary :all: \
  -r "$here/requirements.lock" >&2
end_env
