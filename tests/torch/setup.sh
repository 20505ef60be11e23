#!/usr/bin/env bash
# Makes an environment with torch, once: `setup.sh` prints its interpreter's path. Every package is locked by its
# hash. It takes about 5 GB, because PyPI's torch includes CUDA's libraries, which are not used. ROLLOUT_TORCH_HOME
# sets the location.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
home="${ROLLOUT_TORCH_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/rollout-torch}"
uv_lock="$here/../vllm/uv.lock"
stamp="$(cat "$here/requirements.lock" "$uv_lock" | sha256sum | cut -c1-16)"
. "$here/../python_env.sh"
begin_env "$home" "$stamp"
"$env/bin/python" -m pip install --quiet --require-hashes --no-deps -r "$uv_lock"
# The cache and the environment are on one file system, so nothing is copied.
export UV_CACHE_DIR="$home/uv-cache"
"$env/bin/uv" pip install --quiet --python "$env/bin/python" --require-hashes -r "$here/requirements.lock"
rm -rf "$UV_CACHE_DIR"
say "compiling bytecode, without which an import takes a minute"
env -u PYTHONDONTWRITEBYTECODE "$env/bin/python" -m compileall -q -j 0 "$env"/lib/python3*/site-packages >/dev/null || true
end_env
