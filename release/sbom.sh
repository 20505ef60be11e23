#!/usr/bin/env bash
# Writes NAME.cdx.json into DIRECTORY, which has the archives NAME.tar.gz and NAME-debug.tar.gz and the wheel of a
# release: the SBOM of the executables in the archive and the wheel. Then checks it against these executables, and the
# license texts against it.
#   sbom.sh DIRECTORY
# Needs Python 3.11 or newer, and cargo with the crates of Cargo.lock.
set -euo pipefail
umask 022
root="$(cd "$(dirname "$0")/.." && pwd)"
name="$(basename "$1"/rollout-*-debug.tar.gz -debug.tar.gz)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

tar -xzf "$1/$name.tar.gz" -C "$work"
python3 -m zipfile -e "$1"/*.whl "$work/wheel"
executables=("$work/$name"/rollout* "$(find "$work/wheel" -name rollout-programs)" "$(find "$work/wheel" -name '*.so')")
(cd "$root" && cargo tree --locked -p rollout-coordinator -p rollout-worker -p rollout-ctl -p rollout-programs -p rollout-python \
  -e normal,no-proc-macro --prefix none --format '{p}|{l}') >"$work/crates"
read -r _ version commit < <("$work/$name/rollout" --version | tr -d '()')
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}"
sbom="$1/$name.cdx.json"
python3 "$root/deploy/container/sbom.py" "$root/Cargo.lock" "$work/crates" "$version" "$commit" "${executables[@]}" >"$sbom"
licenses="$work/$name/THIRD-PARTY-LICENSES"
python3 "$root/tests/images/check_sbom.py" --licenses "$licenses" "$sbom" "$root/Cargo.lock" "${executables[@]}"
cmp "$licenses" "$work"/wheel/*.dist-info/licenses/THIRD-PARTY-LICENSES
