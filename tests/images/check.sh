#!/usr/bin/env bash
# Builds the images of the coordinator and the worker twice and compares their digests. Checks their files and their
# SBOM, and starts both without privileges:
#   check.sh DIRECTORY PROGRAMS
# PROGRAMS is the executable `rollout-programs`. The images stay in DIRECTORY. It needs root, namespaces and this
# machine's Debian mirror; it installs the tools that are missing.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
checkout="$(cd "$here/../.." && pwd)"

what="the images of the coordinator and the worker"
. "$checkout/tests/debian_root.sh"
needs_root
unshare --net true 2>/dev/null || not_run "this machine does not permit network namespaces"
mkdir -p "$1"
directory="$(cd "$1" && pwd)"
programs="$(realpath "$2")"
work="$(mktemp -d -p "$directory" check-XXXXXX)"
trap 'rm -rf --one-file-system "$work"' EXIT
needs_mmdebstrap
tools=(umoci podman crun)
type -P "${tools[@]}" >/dev/null || quietly apt-get install -y --no-install-recommends "${tools[@]}" ||
  not_run "a tool of ${tools[*]} is not here and cannot be installed: $(reason)"

failed() {
  echo "images: FAILED: $*" >&2
  exit 1
}
layer() { echo "$1"/rollout/blobs/sha256/"$(layer_digest "$1")"; }
layer_digest() {
  python3 - "$1/rollout" <<'PYTHON'
import json, pathlib, sys
layout = pathlib.Path(sys.argv[1])
read = lambda digest: json.loads((layout / "blobs" / digest.replace(":", "/")).read_text())
layers = {
    each["digest"] for image in json.loads((layout / "index.json").read_text())["manifests"]
    for each in read(image["digest"])["layers"]}
(digest,) = layers  # Both images have the same files.
print(digest.removeprefix("sha256:"))
PYTHON
}

export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git -C "$checkout" log -1 --format=%ct)}"
start=$SECONDS
bash "$checkout/deploy/container/build.sh" "$programs" "$directory" >"$work/first" || failed "build.sh"
echo "-- built in $((SECONDS - start)) s: $(du -sh "$directory/rollout" | cut -f1) compressed"
# Another directory, another time, and what else may differ between two users.
again="$work/in/another/directory"
(
  umask 077
  export TZ=Asia/Tokyo TMPDIR="$work" LC_ALL=C.UTF-8
  bash "$checkout/deploy/container/build.sh" "$programs" "$again"
) >"$work/second" || failed "the second run of build.sh"
cat "$work/first"
if ! cmp "$work/first" "$work/second"; then
  diff <(tar --full-time -tvf "$(layer "$directory")") <(tar --full-time -tvf "$(layer "$again")") | head -n 20 || true
  failed "two builds have different digests"
fi
cmp "$directory/rollout.cdx.json" "$again/rollout.cdx.json" || failed "two builds have different SBOMs"
echo "-- the second build, in another directory at another time, has the same digests"

mkdir "$work/root"
tar -xf "$(layer "$directory")" -C "$work/root"
python3 "$here/check_files.py" "$work/root" "$(layer "$directory")"
python="$(bash "$checkout/tests/deploy/setup.sh" "$directory-tools/python")"
. "$checkout/tests/wheel.sh"
schemas=()
# The schemas of CycloneDX and SPDX are in this library.
if wheel "$directory-tools" cyclonedx_python_lib 11.12.0 \
  0e807521a921a5c3cb8ce1153f8a61d29eedfe76a46aac2796b7c6b573391a54; then
  schemas=(--schemas "$directory-tools/cyclonedx_python_lib-11.12.0/cyclonedx/schema/_res")
else
  echo "NOT RUN: the comparison of the SBOM with the schema of CycloneDX, which could not be fetched"
fi
"$python" "$here/check_sbom.py" --root "$work/root" --licenses "$work/root/usr/share/doc/rollout/THIRD-PARTY-LICENSES" \
  "${schemas[@]}" "$directory/rollout.cdx.json" "$checkout/Cargo.lock" "$work/root/usr/bin/rollout-programs"
# When the namespaces end, the processes and mounts in them end too.
limited 600 unshare --mount --pid --fork --kill-child --mount-proc bash "$here/check_run.sh" "$directory/rollout" "$work"
