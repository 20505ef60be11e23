#!/usr/bin/env bash
# In the container of check.sh, as root: installs a member and a worker as deploy/systemd/README.md says, and checks what
# that page and docs/operating/install.md promise. Changed in the examples: the store is a directory, and the engine is the
# mock engine, in processes of its own.
set -euo pipefail
readme=/project/deploy/systemd/README.md
member=rollout-coordinator
worker=rollout-worker
rows=400
export ROLLOUT_CONTEXT=/srv/install/admin.toml

step() { echo "-- $*"; }
failed() {
  systemctl status --no-pager --full "$member" "$worker" || true
  journalctl --no-pager --lines 40 || true
  echo "systemd: FAILED: $*" >&2
  exit 1
}
trap 'failed "line $LINENO: $BASH_COMMAND"' ERR
property() { systemctl show --value --property "$2" "$1"; }
# Waits until a property of a unit matches.
#   await UNIT PROPERTY PATTERN SECONDS
await() {
  local deadline=$((SECONDS + $4)) value
  while :; do
    value="$(property "$1" "$2")"
    # shellcheck disable=SC2053 # a pattern
    [[ $value != $3 ]] || return 0
    [ "$SECONDS" -lt "$deadline" ] || failed "$1: $2 is '$value' after $4 s, not '$3'"
    sleep 0.2
  done
}
same() { [ "$2" = "$3" ] || failed "$1: '$2', not '$3'"; }
# Prints the status line of a GET.
http() {
  exec 3<>"/dev/tcp/127.0.0.1/$1"
  printf 'GET %s HTTP/1.0\r\n\r\n' "$2" >&3
  head -n 1 <&3 | tr -d '\r'
  exec 3>&-
}
# Prints the first block of commands in the README.
published() { awk '/^```sh$/ { blocks++; next } /^```$/ { if (blocks) exit } blocks' "$readme"; }

prepare() {
  mkdir -p /srv/install /mnt/rollout-store
  cd /srv/install
  ln -s /project/deploy deploy
  echo "127.0.0.1 c1.zone-a.example" >>/etc/hosts
  rolloutctl cert init-ca --ca-dir ca >/dev/null
  rolloutctl cert issue member c1 --dns c1.zone-a.example --ca-dir ca >/dev/null
  rolloutctl cert issue worker gpu-host-7 --ca-dir ca >/dev/null
  rolloutctl cert issue admin alice --ca-dir ca >/dev/null
  sed 's|^url = .*|url = "file:///mnt/rollout-store"|' deploy/systemd/coordinator.toml >coordinator.toml
  sed '/^\[\[engine\]\]/,$d' deploy/systemd/worker.toml >worker.toml
  cat >>worker.toml <<'END'
[[engine]]
kind = "mock"
process = true
slots = 2
concurrency = 20
latency_ms_min = 2000
latency_ms_max = 2000
side_file = "/var/lib/rollout-worker/executions"
END
  cat >admin.toml <<'END'
endpoints = ["c1.zone-a.example:7420"]
ca_file = "ca.pem"
cert_file = "admin-alice.pem"
key_file = "admin-alice.key"
END
  # What `systemctl edit` would write.
  for unit in $member $worker; do
    mkdir -p "/etc/systemd/system/$unit.service.d"
    printf '[Service]\nReadWritePaths=/mnt/rollout-store\n' >"/etc/systemd/system/$unit.service.d/store.conf"
  done
}

install_units() {
  published >member.sh
  # "Install a worker the same way."
  sed -e '/^useradd /d' -e 's/coordinator/worker/g; s/member-c1/worker-gpu-host-7/g' member.sh >worker.sh
  step "a member, with the commands of deploy/systemd/README.md"
  bash -euo pipefail member.sh >member.log 2>&1 || { cat member.log; failed "the commands for a member"; }
  # In a store that is a directory, everyone must be able to write what the others created: here, all are one user.
  chown -R rollout: /mnt/rollout-store /srv/install
  same "state of the member" "$(property $member StatusText)" "waiting to be made part of a cluster"
  same "/healthz" "$(http 7422 /healthz)" "HTTP/1.0 200 OK"
  rolloutctl cluster bootstrap --store file:///mnt/rollout-store \
    --member c1=c1.zone-a.example:7421,c1.zone-a.example:7420,a >/dev/null
  await $member StatusText leading 30
  step "a worker, with the same commands"
  bash -euo pipefail worker.sh >worker.log 2>&1 || { cat worker.log; failed "the commands for a worker"; }
}

# Whether the kernel applies what the units ask for.
#   sandboxed UNIT
sandboxed() {
  local pid status
  pid="$(property "$1" MainPID)"
  status="$(cat "/proc/$pid/status")"
  same "$1: user" "$(stat -c %U "/proc/$pid")" rollout
  grep -qE '^CapEff:\s+0+$' <<<"$status" || failed "$1 has capabilities"
  grep -qE '^NoNewPrivs:\s+1$' <<<"$status" || failed "$1 can gain privileges"
  grep -qE '^Seccomp:\s+2$' <<<"$status" || failed "$1 has no filter of system calls"
  if nsenter --mount --target "$pid" touch /usr/written 2>/dev/null; then failed "$1 can write to /usr"; fi
  step "systemd-analyze security: $(systemd-analyze security --no-pager "$1" | sed -n 's/.*Overall exposure level for \(.*\): \([0-9.]*\) .*/\1 \2/p')"
}

as_user() { setpriv --reuid rollout --regid rollout --clear-groups "$@"; }
batch() {
  seq "$rows" | sed 's/.*/{"id": "&", "prompt": "row &"}/' >prompts.jsonl
  cat >batch.toml <<END
[model]
uri = "Qwen/Qwen2.5-0.5B-Instruct"
[input]
glob = "prompts.jsonl"
[output]
dir = "$1"
[run]
name = "$1"
END
  as_user timeout 180 rollout infer batch --config batch.toml >"$1.log" 2>&1 &
  run=$!
}
started_rows() { grep -c ' started$' /var/lib/rollout-worker/executions || true; }
await_rows() {
  local deadline=$((SECONDS + 60))
  until [ "$(started_rows)" -ge "$1" ]; do
    [ "$SECONDS" -lt "$deadline" ] || failed "only $(started_rows) rows started"
    sleep 0.2
  done
}
verified() {
  wait "$run" || { cat "$1.log"; failed "the batch $1"; }
  as_user rollout verify "$1" --output "$1" >verify.log || { cat verify.log; failed "the output of $1"; }
  grep -qE "^rows +$rows +\(each once\)" verify.log || { cat verify.log; failed "the rows of $1"; }
}

stop_drains() {
  batch stopped
  await_rows 40
  local begun=$SECONDS
  systemctl stop $worker
  same "exit status after systemctl stop" "$(property $worker ExecMainStatus)/$(property $worker Result)" 0/success
  step "systemctl stop: the worker drained in $((SECONDS - begun)) s, after $(started_rows) of $rows rows"
  [ "$(started_rows)" -lt "$rows" ] || failed "the batch ended before the drain"
  systemctl start $worker
  verified stopped
  # A drain finishes what runs, so that no row runs twice.
  same "executions" "$(started_rows)" "$rows"
}

killed() {
  local begun restarts
  batch killed
  await_rows $((rows + 40))
  for unit in $worker $member; do
    restarts="$(property $unit NRestarts)"
    begun=$SECONDS
    kill -9 "$(property $unit MainPID)"
    await $unit NRestarts $((restarts + 1)) 30
    await $unit ActiveState active 60
    step "kill -9: $unit is active again after $((SECONDS - begun)) s"
  done
  await $member StatusText leading 30
  verified killed
}

watchdog() {
  local begun=$SECONDS restarts
  restarts="$(property $member NRestarts)"
  kill -STOP "$(property $member MainPID)"
  await $member NRestarts $((restarts + 1)) 120
  await $member StatusText leading 60
  grep -q "$member.service: Watchdog timeout" <(journalctl --no-pager --unit $member) || failed "it was not the watchdog"
  step "a stopped member: the watchdog restarted it, $((SECONDS - begun)) s later"
}

stays_stopped() {
  systemctl stop $member
  same "exit status after systemctl stop" "$(property $member ExecMainStatus)/$(property $member Result)" 0/success
  echo 'nonsense = 1' >/etc/rollout/coordinator.toml
  if systemctl start $member 2>/dev/null; then failed "it started with an invalid configuration"; fi
  # RestartSec is 2 s.
  sleep 5
  same "after an invalid configuration" "$(property $member ActiveState)/$(property $member ExecMainStatus)" failed/78
  step "systemctl stop ends the member with 0; an invalid configuration ends it with 78, and systemd does not restart it"
}

systemctl --version | head -n 1
uname -sr
prepare
install_units
sandboxed $member
sandboxed $worker
stop_drains
killed
watchdog
stays_stopped
echo "systemd: passed"
