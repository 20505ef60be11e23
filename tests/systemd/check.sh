#!/usr/bin/env bash
# Runs the units of deploy/systemd under a real systemd: process 1 of a container whose root is a clean Debian of this
# machine's release. The container has its own processes, mounts, cgroups and loopback network.
#   check.sh DIRECTORY-OF-PROGRAMS DIRECTORY
# Makes the root in DIRECTORY and removes it. It uses this machine's apt sources.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
checkout="$(cd "$here/../.." && pwd)"
programs="$(cd "$1" && pwd)"

what="the units under a real systemd"
. "$checkout/tests/debian_root.sh"
needs_root
# When a mount namespace ends, the mounts in it end too.
[ -n "${ROLLOUT_SYSTEMD_INSIDE:-}" ] || ROLLOUT_SYSTEMD_INSIDE=1 exec unshare --mount bash "$0" "$@"
mkdir -p "$2"
work="$(mktemp -d -p "$(cd "$2" && pwd)" systemd-XXXXXX)"
root="$work/root"
cgroup="$work/cgroup/rollout-systemd-$$"
container=

cleanup() {
  # The end of the container's first process ends the others.
  [ -z "$container" ] || { kill -9 "$container" && wait "$container"; } 2>/dev/null || true
  # Processes end a moment later.
  for _ in $(seq 50); do
    [ -d "$cgroup" ] && ! find "$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null || break
    sleep 0.1
  done
  umount -R "$work/cgroup" "$root" 2>/dev/null || true
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT

# systemd needs a cgroup of version 2, below which it creates those of its units.
mkdir "$work/cgroup"
mount -t cgroup2 cgroup2 "$work/cgroup" && mkdir "$cgroup" || not_run "this machine has no cgroups of version 2"
needs_mmdebstrap
debian_root "$root" curl,systemd,systemd-sysv

mkdir "$root/project"
(cd "$checkout" && cp -r --parents deploy/systemd docs/operating tests/systemd "$root/project/")
for program in rollout rolloutctl rollout-coordinator rollout-worker; do
  cp "$programs/$program" "$root/usr/bin/"
done

# exec: $! is then `unshare`, whose end kills the container.
(
  echo 0 >"$cgroup/cgroup.procs"
  exec unshare --mount --pid --cgroup --uts --ipc --net --fork --kill-child bash "$here/boot.sh" "$root" "$work/init.pid"
) >"$work/console" 2>&1 </dev/null &
container=$!
inside() { nsenter --all --target "$(cat "$work/init.pid")" env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
started=
for _ in $(seq 100); do
  # `degraded`: a unit of Debian failed, which the container may not permit.
  case "$([ -s "$work/init.pid" ] && inside systemctl is-system-running 2>&1)" in
    running | degraded) started=1 && break ;;
  esac
  kill -0 "$container" 2>/dev/null || break
  sleep 0.3
done
[ -n "$started" ] || { tail -n 40 "$work/console"; echo "systemd: FAILED: it does not start in a container" >&2; exit 1; }
inside bash /project/tests/systemd/inside.sh </dev/null
