#!/usr/bin/env bash
# Builds the wheel with the Python package (one for every Python from 3.11 on) and the four programs. Installs it in a
# fresh environment of each version, imports it, checks its entry points and starts the programs. Checks that it uses
# only CPython's stable ABI, its platform tag and its size; mypy checks a program that uses it: `check.sh WHEELS`.
# PYTHONS names the versions that must be present; 3.14 is tried if it is present.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
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
  find_python "$1" || { echo "wheel: Python $1 is not here; set PYTHONS to the versions to test" >&2; exit 1; }
}
if [ -z "${PYTHONS:-}" ]; then
  if find_python 3.14 >/dev/null; then
    versions="$versions 3.14"
  else
    echo "NOT RUN: the wheel in Python 3.14, which is not on this machine"
  fi
fi
first="$(interpreter "${versions%% *}")"
# limited_api.sh reads them after the build, which takes long.
headers="$("$first" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
[ -f "$headers/Python.h" ] ||
  { echo "wheel: $headers/Python.h is missing; on Debian, install python3-dev" >&2; exit 1; }

# As `make release-binaries`: with the commit, and searched for seeded bugs.
# Build scripts that compile C run again for each value of SOURCE_DATE_EPOCH. No program contains that time.
(cd "$root" && env -u SOURCE_DATE_EPOCH cargo xtask release --build-only)
programs="$(cd "$root" && realpath "${CARGO_TARGET_DIR:-target}/release/rollout-programs")"
commit="${ROLLOUT_COMMIT:-$(git -C "$root" rev-parse HEAD || true)}"
# One extension module serves all versions, so the oldest one builds it.
bash "$here/build.sh" "$wheels" "$first" "$programs"
wheel="$(echo "$wheels"/*.whl)"
case "$wheel" in
  *-cp311-abi3-*.whl) ;;
  *) echo "wheel: expected one wheel for all versions, found: $wheel" >&2; exit 1 ;;
esac
bash "$here/limited_api.sh" "$wheel" "$first" 0x030B0000

# The wheel's tag states on which systems it runs. It must be the one that auditwheel finds for its content.
"$first" -m venv "$work/audit"
"$work/audit/bin/python" -m pip install --quiet --require-hashes --no-deps -r "$here/auditwheel.lock"
"$work/audit/bin/auditwheel" show --json "$wheel" >"$work/audit.json"
"$first" - "$wheel" "$work/audit.json" <<'PYTHON'
import json, pathlib, sys, zipfile
wheel, audit = map(pathlib.Path, sys.argv[1:])
tag = json.loads(audit.read_text())["overall_tag"]
assert tag in wheel.stem.rpartition("-")[2].split("."), f"auditwheel finds {tag}"
size = wheel.stat().st_size
(program,) = [
    each for each in zipfile.ZipFile(wheel).infolist() if each.filename.endswith("/rollout/_bin/rollout-programs")
]
print(f"wheel: {wheel.name}: {size:,} bytes; the executable in it: {program.file_size:,} bytes")
assert size < 60_000_000, "the wheel is too large"
PYTHON

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
found = {(each.group, each.name): each for each in importlib.metadata.distribution("rollout-ml").entry_points}
programs = ("rollout", "rolloutctl", "rollout-worker", "rollout-coordinator")
assert found.keys() == {
    ("torchrun.handlers", "rollout"), ("vllm.general_plugins", "rollout"),
    *(("console_scripts", name) for name in programs)}, found
create = found["torchrun.handlers", "rollout"].load()()
assert callable(create) and "torch" not in sys.modules
try:
    create(None)
except ImportError as error:
    assert "need torch 2.13 or newer" in str(error), error
else:
    raise AssertionError("a handler without torch")
assert callable(found["vllm.general_plugins", "rollout"].load())
files = {str(file) for file in importlib.metadata.files("rollout-ml")}
names = ("LICENSE-APACHE", "LICENSE-MIT", "THIRD-PARTY-LICENSES")
licenses = {f"rollout_ml-{rollout.__version__}.dist-info/licenses/{name}" for name in names}
assert {"rollout/py.typed", "rollout/_native.pyi", "rollout/_bin/rollout-programs", *licenses} <= files, files
PYTHON
  "$python" -m unittest discover --quiet -s "$root/worker/python/tests"
  # Without the variables and programs of this machine's user.
  mkdir "$work/programs-$version"
  (cd "$work" && env -i PATH=/nowhere HOME="$work/programs-$version" \
    "$python" "$here/programs.py" "$work/programs-$version" "$commit")
  echo "wheel: $(basename "$wheel") works in Python $version"
done

# The package is typed: mypy checks a program against the installed wheel, and finds its errors.
"$work/${versions%% *}/bin/python" -m pip install --quiet --require-hashes -r "$here/mypy.lock"
(cd "$work" && "$work/${versions%% *}/bin/mypy" --strict --cache-dir "$work/mypy" "$here/typed.py")
echo "wheel: mypy reads its types"
