#!/usr/bin/env bash
# Builds the wheel of the Python package (one for every Python from 3.11 on), installs it in a fresh environment of each
# version and imports it: `check.sh WHEELS`. PYTHONS names the versions that have to be there.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
wheels="$1"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
versions="${PYTHONS:-3.11 3.12 3.13}"

# The interpreter of a version: the path's, else one of pyenv's.
interpreter() {
  local candidate
  for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1"*/bin/python; do
    if "$candidate" -c '' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "wheel: Python $1 is not here; PYTHONS says which versions are tried" >&2
  exit 1
}
first="$(interpreter "${versions%% *}")"

"$first" -m venv "$work/build"
"$work/build/bin/python" -m pip install --quiet --require-hashes --no-deps -r "$here/maturin.lock"
rm -rf "$wheels"
# The module must be the same for all of them: the oldest builds it.
"$work/build/bin/maturin" build --quiet --release --locked --interpreter "$work/build/bin/python" \
  --manifest-path "$here/../../worker/python/Cargo.toml" --out "$wheels"
wheel="$(echo "$wheels"/*.whl)"
case "$wheel" in
  *-cp311-abi3-*.whl) ;;
  *) echo "wheel: not one wheel for all versions: $wheel" >&2; exit 1 ;;
esac
for version in $versions; do
  found="$(interpreter "$version")"
  "$found" -m venv "$work/$version"
  python="$work/$version/bin/python"
  "$python" -m pip install --quiet --no-index --no-deps "$wheel"
  (cd "$work" && "$python" - "$version") <<'PYTHON'
import importlib.metadata, subprocess, sys
import rollout, rollout._native, rollout.failures, rollout.tokens
assert sys.version.startswith(sys.argv[1]), sys.version
assert importlib.metadata.version("rollout-ml") == rollout.__version__
assert rollout._native.PROTOCOL_VERSION >= 2
# Nobody started it: it says so and ends.
ran = subprocess.run([sys.executable, "-m", "rollout.engine_host"], capture_output=True, text=True)
assert ran.returncode == 2 and "no agent of rollout" in ran.stderr, ran
PYTHON
  "$python" -m unittest discover --quiet -s "$here/../../worker/python/tests"
  echo "wheel: $(basename "$wheel") works in Python $version"
done
