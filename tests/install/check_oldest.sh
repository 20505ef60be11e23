#!/usr/bin/env bash
# Installs the wheel in a clean root of the oldest system that its tag permits, and runs a batch there:
#   check_oldest.sh WHEEL DIRECTORY
# The tag manylinux_2_35 promises glibc 2.35, which Ubuntu 22.04 has. Makes the root in DIRECTORY and removes it.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
wheel="$(realpath "$1")"
mirror=http://archive.ubuntu.com/ubuntu
# The keys of Ubuntu's archive, which Debian 12 has no package of.
keys="$mirror/pool/main/u/ubuntu-keyring/ubuntu-keyring_2021.03.26_all.deb"
keys_sha256=0d0e7ed6b112f5d03eabf3c7eb01ebdacf9c57714b279e90495cfc58c8c4520f
what="the wheel in a clean root of Ubuntu 22.04"
. "$here/../debian_root.sh"
make_work "$2"
case "$wheel" in
  *-manylinux_2_35_x86_64.whl) ;;
  *) not_run "it is for another system: $(basename "$wheel")" ;;
esac
needs_root
needs_mmdebstrap
quietly curl --fail --silent --show-error --max-time 60 --output "$work/keys.deb" "$keys" ||
  not_run "Ubuntu's mirror does not answer: $(reason)"
echo "$keys_sha256  $work/keys.deb" | sha256sum --check --quiet
dpkg-deb --extract "$work/keys.deb" "$work/keys"
for suite in jammy jammy-updates; do
  echo "deb [signed-by=$work/keys/usr/share/keyrings/ubuntu-archive-keyring.gpg] $mirror $suite main universe"
done >"$work/sources.list"
start=$SECONDS
quietly mmdebstrap --variant=minbase --dpkgopt='force-unsafe-io' --include=python3.11,python3.11-venv \
  jammy "$work/root" "$work/sources.list" || { echo "$what: FAILED: mmdebstrap: $(reason)" >&2; exit 1; }
echo "-- a clean root of Ubuntu 22.04: $((SECONDS - start)) s"
cp "$wheel" "$work/root/root/"
root_limit_s=300
namespaces=(--net)
# Installed without a network, so that every file comes from the wheel or from the root.
# shellcheck disable=SC2016 # the inner shell's variables
in_root "$work/root" bash -euc '
  cd /root
  python3.11 -c "import socket, fcntl, struct
s = socket.socket()
fcntl.ioctl(s, 0x8914, struct.pack(\"16sh\", b\"lo\", 0x41))"  # up: there is no ip command
  python3.11 -m venv env && . env/bin/activate
  pip install --quiet --no-index --no-deps ./*.whl
  seq -f "{\"prompt\": \"What is %g times 7?\"}" 1000 > prompts.jsonl
  rollout dev --detach --latency-ms 5:50 2>dev.log || { cat dev.log; exit 1; }
  export ROLLOUT_CONTEXT=/root/.rollout/dev/client.toml
  rollout infer batch --quiet --model any --input prompts.jsonl --output out
  [ "$(wc -l < out/completions.jsonl)" = 1000 ]
  rollout dev stop >/dev/null 2>&1
  echo "-- $(ldd --version | head -n 1), $(python3.11 --version): $(rolloutctl --version) ran 1,000 rows"' ||
  { echo "$what: FAILED" >&2; exit 1; }
