#!/usr/bin/env bash
# Builds the images of the coordinator and of the worker, without a container registry or a container engine:
#   build.sh PROGRAMS DIRECTORY
# PROGRAMS is the executable `rollout-programs` that this checkout built: Cargo.lock lists its crates. In DIRECTORY it
# writes `rollout`, an OCI image layout with the tags `coordinator` and `worker`, and `rollout.cdx.json`, the SBOM that
# both images contain.
#
# Needs root, Debian, mmdebstrap, umoci, python3, and cargo with the crates of Cargo.lock. The images have packages of
# this machine's Debian release, because PROGRAMS needs at least the glibc that it was linked with.
#
# The digests depend only on PROGRAMS, on the versions of Debian's packages, on Cargo.lock, on the Rust toolchain and on
# SOURCE_DATE_EPOCH, by default the time of the commit.
set -euo pipefail
export LC_ALL=C TZ=UTC
umask 022
here="$(cd "$(dirname "$0")" && pwd)"
checkout="$(cd "$here/../.." && pwd)"
. "$checkout/tests/debian_root.sh"
programs="$(realpath "$1")"
mkdir -p "$2"
out="$(cd "$2" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
layout="$out/rollout"
if [ -e "$layout" ] && [ ! -e "$layout/oci-layout" ]; then
  echo "build.sh: $layout is there and is no image layout: name another directory" >&2
  exit 1
fi
for tool in mmdebstrap umoci python3 cargo; do
  type -P "$tool" >/dev/null || { echo "build.sh: $tool is not installed" >&2; exit 1; }
done
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git -C "$checkout" log -1 --format=%ct)}"
created="$(date -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)"

# The crates whose code is in the executable: not those that only its build uses, nor macros.
(cd "$checkout" && cargo tree --locked -p rollout-programs -e normal,no-proc-macro --prefix none --format '{p}|{l}') \
  >"$work/crates"
python3 "$checkout/release/licenses.py" >"$work/THIRD-PARTY-LICENSES"
apt_settings
release="$(. /etc/os-release && echo "$VERSION_CODENAME")"
# `extract` unpacks the packages and their dependencies, and runs none of their scripts. The links are those of every
# Debian system with /bin in /usr. A layer has no device files.
# shellcheck disable=SC2016 # the shell of the hook
mmdebstrap --quiet --variant=extract --include=libstdc++6,busybox-static --aptopt="$work/apt.conf" \
  --skip=output/dev,output/mknod,cleanup \
  --setup-hook='for each in bin lib lib64 sbin; do mkdir -p "$1/usr/$each"; ln -s "usr/$each" "$1/$each"; done' \
  --extract-hook="bash '$here/root.sh' \"\$1\" '$programs' '$work'" \
  "$release" "$work/root.tar" "$work/sources.list"

rm -rf "$layout"
umoci init --layout "$layout"
umoci new --image "$layout:root"
umoci raw add-layer --history.created "$created" --image "$layout:root" "$work/root.tar"
read -r _ version commit <"$work/version"
# image TAG PORTS PROGRAM: both images have the same files, and differ in the program that they start.
image() {
  local port ports=()
  for port in $2; do ports+=("--config.exposedports=$port/tcp"); done
  umoci config --no-history --image "$layout:root" --tag "$1" --created "$created" "${ports[@]}" \
    --config.user 65532:65532 --config.stopsignal SIGTERM --config.workingdir / \
    --config.env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    --config.cmd "$3" --config.cmd --config --config.cmd "/etc/rollout/$1.toml" \
    --config.label "org.opencontainers.image.title=$3" \
    --config.label "org.opencontainers.image.version=$version" \
    --config.label "org.opencontainers.image.revision=$commit" \
    --config.label "org.opencontainers.image.licenses=MIT OR Apache-2.0"
}
# Clients and workers, members, health and metrics, enrollment.
image coordinator "7420 7421 7422 7423" rollout-coordinator
# Metrics.
image worker 9464 rollout-worker
umoci rm --image "$layout:root"
umoci gc --layout "$layout"
cp "$work/rollout.cdx.json" "$out/"
python3 - "$layout/index.json" <<'PYTHON'
import json, sys
for each in json.load(open(sys.argv[1]))["manifests"]:
    print(each["annotations"]["org.opencontainers.image.ref.name"], each["digest"])
PYTHON
