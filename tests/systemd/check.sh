#!/usr/bin/env bash
# Runs the units of deploy/systemd under a real systemd: process 1 of a container whose root is a clean Debian of this
# machine's release. The container has its own processes, mounts, cgroups and loopback network.
#   check.sh DIRECTORY-OF-PROGRAMS DIRECTORY
# Makes the root in DIRECTORY and removes it.
set -euo pipefail
checkout="$(cd "$(dirname "$0")/../.." && pwd)"
programs="$(cd "$1" && pwd)"
# A boot that does not end must not hang.
limit_s=900

mkdir -p "$2"
work="$(mktemp -d -p "$(cd "$2" && pwd)" systemd-XXXXXX)"
container= groups=()
cleanup() {
  [ -z "$container" ] || { kill "$container" && wait "$container"; } 2>/dev/null || true
  for group in "${groups[@]}"; do
    # The kernel ends the last processes after systemd-nspawn.
    for _ in {1..50}; do
      find "$group" -depth -type d -exec rmdir {} + 2>/dev/null && break
      sleep 0.1
    done
  done
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT
what="the units under a real systemd"
. "$checkout/tests/debian_root.sh"
needs_root
needs_mmdebstrap
# Two roots: one has systemd-nspawn, which this machine then need not have, and one is the container's.
debian_root "$work/host" curl,systemd,systemd-sysv,systemd-container
root="$work/container"
cp -a "$work/host" "$root"

mkdir "$root/project"
(cd "$checkout" && cp -r --parents deploy/systemd docs/operating tests/systemd "$root/project/")
install -m 755 "$programs"/{rollout,rolloutctl,rollout-coordinator,rollout-worker} "$root/usr/bin/"
# The end of the script is the end of the container, with the same status.
cat >"$root/etc/systemd/system/check.service" <<'END'
[Unit]
SuccessAction=exit
FailureAction=exit
[Service]
ExecStart=bash /project/tests/systemd/inside.sh
Environment=HOME=/root LANG=C.UTF-8
StandardOutput=append:/project/output
StandardError=inherit
END
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -s ../check.service "$root/etc/systemd/system/multi-user.target.wants/"

# systemd-nspawn makes control groups in its own, and leaves them. Machines have one hierarchy, or two with version 2.
for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/unified /sys/fs/cgroup/systemd; do
  [ -e "$hierarchy/cgroup.procs" ] || continue
  group="$hierarchy/rollout-${work##*/}"
  mkdir "$group" || not_run "this machine does not permit control groups"
  groups+=("$group")
done
# The container must not outlive this script, not even if that is killed.
# shellcheck disable=SC2016 # the inner shell's variables
setpriv --pdeathsig KILL timeout --kill-after 20 "$limit_s" \
  setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child bash -euc '
  for group in "${@:2}"; do echo 0 >"$group/cgroup.procs"; done
  mount --bind "$1/host" "$1/host"
  mount -t proc proc "$1/host/proc"
  mount -t tmpfs tmpfs "$1/host/run"
  for directory in dev sys; do mount --rbind "/$directory" "$1/host/$directory"; done
  mount --bind "$1/container" "$1/host/mnt"
  # Registered nowhere: this machine need not run systemd.
  exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin UNIFIED_CGROUP_HIERARCHY=1 \
    chroot "$1/host" systemd-nspawn --boot --register=no --keep-unit --private-network \
      --link-journal=no --console=pipe --directory=/mnt' - "$work" "${groups[@]}" </dev/null >"$work/console" 2>&1 &
container=$!
touch "$root/project/output"
tail -n +1 --follow --pid="$container" "$root/project/output"
status=0
wait "$container" || status=$?
container=
# No part of the project starts before the script.
[ -s "$root/project/output" ] || not_run "systemd does not boot in a container: $(tail -n 1 "$work/console")"
[ "$status" = 0 ] || { tail -n 20 "$work/console"; echo "systemd: FAILED with status $status" >&2; exit 1; }
