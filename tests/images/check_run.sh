#!/usr/bin/env bash
# Starts the images of the coordinator and the worker with podman as one cluster, and stops them:
#   check_run.sh LAYOUT WORK
# Both run with a read-only root, as the images' user, without a capability, without a network but their own loopback.
# check.sh calls this in mount and PID namespaces of its own.
set -euo pipefail
layout="$1" work="$2"
# podman and crun keep their locks and states there. They must not find those of this machine, nor leave any.
for directory in /dev/shm /run; do mount -t tmpfs -o size=16m images "$directory"; done
# crun gives the container's user /dev/null, which is its input. It must not be this machine's.
mknod -m 666 "$work/null" c 1 3
mount --bind "$work/null" /dev/null
# crun refuses a machine that has both versions of cgroups. The containers need neither.
if [ -d /sys/fs/cgroup/unified ]; then
  umount -R /sys/fs/cgroup
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
fi

podman() {
  command podman --root "$work/storage" --runroot /run/storage --tmpdir /run/libpod --storage-driver vfs \
    --runtime crun --cgroup-manager cgroupfs --events-backend none "$@"
}
stop_all() { podman rm --all --force --time 0 >/dev/null 2>&1 || true; }
trap stop_all EXIT
failed() {
  echo "images: FAILED: $*" >&2
  for name in c1 w1; do
    echo "-- log of $name"
    podman logs --tail 20 "$name" 2>&1 || true
  done
  exit 1
}
# start NAME IMAGE OPTION... : the image's own program, with its own arguments.
start() {
  local name=$1 image=$2
  shift 2
  podman run --detach --name "$name" "${confined[@]}" "$@" "${images[$image]}" >/dev/null ||
    failed "$name did not start"
}
# wait_until SECONDS PROBLEM COMMAND...: until the command succeeds.
wait_until() {
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$deadline" ] || failed "$what"
    sleep 0.2
  done
}
get() { podman exec c1 busybox timeout 10 busybox wget -q -O - "http://127.0.0.1:$1"; }
ctl() { podman exec --env ROLLOUT_CONTEXT=/etc/rollout/admin.toml c1 rolloutctl "$@"; }
is_ready() { ctl worker list | grep -w w1 | grep -qw ready; }

# check_confined NAME DIRECTORY...: the process has no rights, and can write to these directories only.
check_confined() {
  local name=$1 pid line writable
  shift
  pid="$(podman inspect --format '{{.State.Pid}}' "$name")"
  for line in 'Uid: 65532 65532 65532 65532' 'Gid: 65532 65532 65532 65532' 'NoNewPrivs: 1' 'Seccomp: 2' \
    'CapInh: 0000000000000000' 'CapPrm: 0000000000000000' 'CapEff: 0000000000000000' \
    'CapBnd: 0000000000000000' 'CapAmb: 0000000000000000'; do
    tr '\t' ' ' <"/proc/$pid/status" | sed 's/: */: /' | grep -qxF "$line" || failed "$name runs without '$line'"
  done
  # The file systems of the kernel are not storage: what is writable there belongs to root.
  writable="$(awk '$6 ~ /(^|,)rw(,|$)/ && $5 !~ "^/(proc|dev|sys)(/|$)" { print $5 }' "/proc/$pid/mountinfo" |
    sort | xargs)"
  [ "$writable" = "$*" ] || failed "$name can write to '$writable', not only to '$*'"
}
# stop NAME: with the signal that the image names.
stop() {
  local status
  podman stop --time 60 "$1" >/dev/null
  status="$(podman inspect --format '{{.State.ExitCode}}' "$1")"
  [ "$status" = 0 ] || failed "$1 ended with status $status after SIGTERM"
}

# podman makes the image's name from the path, and refuses some paths.
cd "$(dirname "$layout")"
declare -A images
for image in coordinator worker; do
  images[$image]="$(podman pull --quiet "oci:$(basename "$layout"):$image")"
done
confined=(--read-only --read-only-tmpfs=false --cap-drop all --security-opt no-new-privileges
  --cgroups disabled --ulimit nofile=4096:4096 --ulimit nproc=4096:4096 --log-driver k8s-file)
mkdir "$work"/{config,c1,w1,store}
cat >"$work/config/coordinator.toml" <<'TOML'
name = "c1"
zone = "a"
data_dir = "/var/lib/rollout"

[listen]
client = "127.0.0.1:7420"
peer = "127.0.0.1:7421"
http = "127.0.0.1:7422"

[tls]
ca_file = "/etc/rollout/ca.pem"
cert_file = "/etc/rollout/member-c1.pem"
key_file = "/etc/rollout/member-c1.key"

[store]
url = "file:///mnt/store"
TOML
cat >"$work/config/worker.toml" <<'TOML'
name = "w1"
data_dir = "/var/lib/rollout-worker"
endpoints = ["127.0.0.1:7420"]
metrics_listen = "127.0.0.1:9464"

[tls]
ca_file = "/etc/rollout/ca.pem"
cert_file = "/etc/rollout/worker-w1.pem"
key_file = "/etc/rollout/worker-w1.key"

[compute]
provider = "none"

[[engine]]
kind = "mock"
TOML
cat >"$work/config/admin.toml" <<'TOML'
endpoints = ["127.0.0.1:7420"]
ca_file = "ca.pem"
cert_file = "admin-a.pem"
key_file = "admin-a.key"
TOML
chown -R 65532:65532 "$work"/{config,c1,w1,store}
podman run --rm --network none "${confined[@]}" --volume "$work/config:/etc/rollout" "${images[coordinator]}" sh -ec '
  cd /etc/rollout
  rolloutctl cert init-ca --ca-dir ca --cluster images
  rolloutctl cert issue member c1 --ca-dir ca --out-dir . --ip 127.0.0.1
  rolloutctl cert issue worker w1 --ca-dir ca --out-dir .
  rolloutctl cert issue admin a --ca-dir ca --out-dir .' >/dev/null || failed "rolloutctl in the image cannot issue certificates"

mounts=(--volume "$work/config:/etc/rollout:ro" --volume "$work/store:/mnt/store")
start c1 coordinator --network none "${mounts[@]}" --volume "$work/c1:/var/lib/rollout"
wait_until 30 "the coordinator does not answer /healthz" get 7422/healthz
check_confined c1 /mnt/store /var/lib/rollout
ctl cluster bootstrap --store file:///mnt/store --member c1=127.0.0.1:7421,127.0.0.1:7420,a >/dev/null ||
  failed "cluster bootstrap"
wait_until 30 "the coordinator does not answer /readyz" get 7422/readyz
# What the chart's backup runs.
podman exec --env ROLLOUT_CONTEXT=/etc/rollout/admin.toml c1 sh -ec \
  'rolloutctl snapshot save "/mnt/store/$(date -u +%Y-%m-%dT%H%MZ).snap"' >"$work/backup.log" 2>&1 ||
  failed "a backup as the chart's: $(tail -n 1 "$work/backup.log")"
# The pods of deploy/kubernetes/restore.yaml.
podman exec c1 sleep 0 || failed "there is no sleep"
echo "-- the coordinator answers /healthz, leads, and makes a backup"

start w1 worker --network container:c1 "${mounts[@]}" --volume "$work/w1:/var/lib/rollout-worker" --tmpfs /tmp
wait_until 30 "the worker does not answer /healthz" get 9464/healthz
wait_until 60 "the worker is not ready" is_ready
get 9464/metrics | grep -q '^rollout_worker_' || failed "the worker does not answer /metrics"
check_confined w1 /mnt/store /tmp /var/lib/rollout-worker
echo "-- the worker answers /healthz and /metrics, and the leader shows it as ready"
stop w1
stop c1
echo "-- SIGTERM ends both with status 0"
