#!/usr/bin/env bash
# Makes an environment with vLLM for the CPU, once: `setup.sh` prints its interpreter's path. Every package is locked
# by its hash. It takes about 6 GB and, with a fast connection, five minutes. ROLLOUT_VLLM_HOME sets the location.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
home="${ROLLOUT_VLLM_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/rollout-vllm}"
stamp="$(cat "$here"/*.lock | sha256sum | cut -c1-16)"
. "$here/../python_env.sh"
begin_env "$home" "$stamp"
"$env/bin/python" -m pip install --quiet --require-hashes --no-deps -r "$here/uv.lock"
# The cache and the environment are on one file system, so nothing is copied.
export UV_CACHE_DIR="$home/uv-cache"
"$env/bin/uv" pip install --quiet --python "$env/bin/python" --require-hashes -r "$here/requirements.lock"
"$env/bin/uv" pip install --quiet --python "$env/bin/python" --require-hashes --no-deps -r "$here/vllm.lock"
rm -rf "$UV_CACHE_DIR"
say "compiling bytecode, without which an import takes a minute"
env -u PYTHONDONTWRITEBYTECODE "$env/bin/python" -m compileall -q -j 0 "$env"/lib/python3*/site-packages >/dev/null || true
end_env
