#!/usr/bin/env bash
# Builds one wheel with the Python package, for every Python from 3.11 on, and the four programs:
# `build.sh WHEELS PYTHON PROGRAMS`. PYTHON runs the tools; PROGRAMS is the executable `rollout-programs`, which comes
# into the wheel without its symbols. Other wheels in WHEELS are removed.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
package="$here/../../worker/python"
wheels="$1" python="$2" programs="$3"
work="$(mktemp -d)"
# maturin adds the content of the folder `MODULE-NAME.data` beside pyproject.toml to the wheel, if there is one. It must
# not stay: each later build of the package would get this executable. `platlib` is the folder of installed packages.
data="$package/rollout._native.data"
licenses="$package/THIRD-PARTY-LICENSES"
trap 'rm -rf "$work" "$data" "$licenses"' EXIT

rm -rf "$data"
install -D -m 755 -s "$programs" "$data/platlib/rollout/_bin/rollout-programs"
"$python" "$here/../../release/licenses.py" > "$licenses"
"$python" -m venv "$work/env"
"$work/env/bin/python" -m pip install --quiet --require-hashes --no-deps -r "$here/maturin.lock" \
  -r "$here/auditwheel.lock"
# The tag `linux` promises nothing. To choose a better one, maturin would examine the extension module only, although
# the executable may need a newer glibc. Unset SOURCE_DATE_EPOCH, or build scripts compile their C libraries again.
# auditwheel sets the times of the files in the wheel.
env -u SOURCE_DATE_EPOCH "$work/env/bin/maturin" build --quiet --release --locked --interpreter "$work/env/bin/python" \
  --manifest-path "$package/Cargo.toml" --compatibility linux --out "$work/wheels"
built="$(echo "$work"/wheels/*.whl)"

# auditwheel examines both, and says which tag is true of the wheel. `repair` names the wheel so. With no patcher it
# fails instead of changing a program, for example to add a library.
mkdir -p "$wheels"
rm -f "$wheels"/*.whl
tag="$("$work/env/bin/auditwheel" show --json "$built" |
  "$python" -c 'import json, sys; print(json.load(sys.stdin)["overall_tag"])')"
case "$tag" in
  linux_*)
    "$work/env/bin/auditwheel" show "$built"
    echo "wheel: no tag of auditwheel fits what this system has built: the wheel is for systems like this one" >&2
    cp "$built" "$wheels"
    ;;
  *) "$work/env/bin/auditwheel" repair --patcher none --only-plat --plat "$tag" --wheel-dir "$wheels" "$built" ;;
esac
