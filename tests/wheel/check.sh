#!/usr/bin/env bash
# Builds the wheel of the Python package (one for every Python from 3.11 on), installs it in a fresh environment of
# each version, imports it, and checks its entry points and that it uses only CPython's stable ABI; mypy checks a
# program that uses it: `check.sh WHEELS`. PYTHONS names the versions that must be present; 3.14 is tried if it is
# present.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
wheels="$1"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
versions="${PYTHONS:-3.11 3.12 3.13}"

# The interpreter of a version: the PATH's, or else one of pyenv's.
find_python() {
  local candidate
  for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1"*/bin/python; do
    if "$candidate" -c '' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  return 1
}
interpreter() {
  find_python "$1" || { echo "wheel: Python $1 is not here; PYTHONS says which versions are tried" >&2; exit 1; }
}
if [ -z "${PYTHONS:-}" ]; then
  if find_python 3.14 >/dev/null; then
    versions="$versions 3.14"
  else
    echo "wheel: Python 3.14 is not here: that the wheel works in it is not tried"
  fi
fi
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
bash "$here/limited_api.sh" "$wheel" "$first" 0x030B0000
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
# It was not started by an agent: it says so and exits.
ran = subprocess.run([sys.executable, "-m", "rollout.engine_host"], capture_output=True, text=True)
assert ran.returncode == 2 and "no agent of rollout" in ran.stderr, ran
# The entry points for torchrun and vLLM are in the wheel, and need neither until they are used.
found = {each.group: each for each in importlib.metadata.distribution("rollout-ml").entry_points}
assert {group: each.name for group, each in found.items()} == {
    "torchrun.handlers": "rollout", "vllm.general_plugins": "rollout"}, found
create = found["torchrun.handlers"].load()()
assert callable(create) and "torch" not in sys.modules
try:
    create(None)
except ImportError as error:
    assert "need torch 2.13 or newer" in str(error), error
else:
    raise AssertionError("a handler without torch")
assert callable(found["vllm.general_plugins"].load())
files = {str(file) for file in importlib.metadata.files("rollout-ml")}
assert {"rollout/py.typed", "rollout/_native.pyi"} <= files, files
PYTHON
  "$python" -m unittest discover --quiet -s "$here/../../worker/python/tests"
  echo "wheel: $(basename "$wheel") works in Python $version"
done

# The package is typed: mypy checks a program against the installed wheel, and finds its errors.
"$work/${versions%% *}/bin/python" -m pip install --quiet --require-hashes -r "$here/mypy.lock"
(cd "$work" && "$work/${versions%% *}/bin/mypy" --strict --cache-dir "$work/mypy" "$here/typed.py")
echo "wheel: mypy reads its types"
