#!/usr/bin/env bash
# In the container of check.sh, as root: runs the commands of the pages, and checks what they promise about the units.
# Changed in the examples: the store is a directory, the engine is the mock engine, and each member has an address of its
# own instead of a host. c1 and the worker use the units unchanged. The units of c2 and c3 differ in name and directories.
set -euo pipefail
pages=/project/docs/operating
member=rollout-coordinator
worker=rollout-worker
store=/mnt/rollout-store
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
# Prints a block of a page.
#   block PAGE LANGUAGE NUMBER
block() {
  awk -v begin="\`\`\`$2" -v number="$3" '{ sub(/^ +/, "") } $0 == begin { shown = ++blocks == number; next }
    $0 == "```" { shown = 0 } shown' "$1"
}
# Runs a script of commands; prints its output only if it fails.
#   published NAME
published() { bash -euo pipefail "$1.sh" >"$1.log" 2>&1 || { cat "$1.log"; failed "the commands for $1"; }; }

# What `systemctl edit UNIT` would write.
drop_in() {
  mkdir -p "/etc/systemd/system/$1.service.d"
  printf '[Service]\nReadWritePaths=%s\n' "$store" >"/etc/systemd/system/$1.service.d/store.conf"
}
# Writes the example of c1 for another member.
#   configuration NUMBER ZONE DATA-DIRECTORY
configuration() {
  sed -e "s/0\.0\.0\.0/127.0.0.$1/; s/127\.0\.0\.1:7422/127.0.0.$1:7422/; s/c1/c$1/g; s/zone-a/zone-$2/; s/\"a\"/\"$2\"/" \
    -e "s|^url = .*|url = \"file://$store\"|; s|/var/lib/rollout|$3|" deploy/systemd/coordinator.toml
}
other_member() {
  configuration "$1" "$2" "/var/lib/rollout-c$1" >"/etc/rollout/c$1.toml"
  install -m 600 -o rollout -g rollout "tls/member-c$1.pem" "tls/member-c$1.key" /etc/rollout/
  sed "s/coordinator\.toml/c$1.toml/; s/^StateDirectory=rollout$/&-c$1/" deploy/systemd/$member.service \
    >"/etc/systemd/system/rollout-c$1.service"
  drop_in "rollout-c$1"
  systemctl daemon-reload
  systemctl start "rollout-c$1"
}

prepare() {
  mkdir -p /srv/install "$store"
  cd /srv/install
  ln -s /project/deploy deploy
  printf '127.0.0.%s\n' '1 c1.zone-a.example' '2 c2.zone-b.example' '3 c3.zone-c.example' >>/etc/hosts
  block $pages/certificates.md sh 1 >certificates.sh
  published certificates
  for host in c2.zone-b c3.zone-c; do
    rolloutctl cert issue member "${host%.*}" --ca-dir ca --out-dir tls --dns "$host.example" >/dev/null
  done
  block $pages/install.md toml 2 >admin.toml
  configuration 1 a /var/lib/rollout >coordinator.toml
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
  # The commands of the page expect the host's own files in the current directory.
  cp tls/ca.pem tls/member-c1.* tls/worker-gpu-host-7.* .
  drop_in $member
  drop_in $worker
}

install_units() {
  local readme=/project/deploy/systemd/README.md
  block $readme sh 1 >member.sh
  # "Install a worker the same way", and the unit as the other page says.
  { sed -e 's/coordinator/worker/g; s/member-c1/worker-gpu-host-7/g; /--check-config/q' member.sh &&
    block $pages/install.md sh 2; } | sed '/^useradd /d' >worker.sh
  block $pages/install.md sh 1 | sed "s|s3://my-bucket/rollout|file://$store|" >cluster.sh
  published member
  # Members, workers and clients use a store that is a directory as one user.
  chown -R rollout: "$store" /srv/install
  other_member 2 b
  other_member 3 c
  for number in 1 2 3; do
    same "/healthz of c$number" "$(curl -sS -o /dev/null -w '%{http_code}' "127.0.0.$number:7422/healthz")" 200
  done
  same "state of the member" "$(property $member StatusText)" "waiting to be made part of a cluster"
  published cluster
  await $member StatusText leading 30
  published worker
  same "state of the units" "$(systemctl is-active $member $worker rollout-c2 rollout-c3 | sort -u)" active
  step "three members and a worker are active, installed with the commands of the pages"
}

# Whether the kernel applies what the units ask for.
#   sandboxed UNIT STATE-DIRECTORY
sandboxed() {
  local pid status
  pid="$(property "$1" MainPID)"
  status="$(cat "/proc/$pid/status")"
  same "$1: user" "$(stat -c %U "/proc/$pid")" rollout
  grep -qE '^CapEff:\s+0+$' <<<"$status" || failed "$1 has capabilities"
  grep -qE '^NoNewPrivs:\s+1$' <<<"$status" || failed "$1 can gain privileges"
  # Root, which file permissions do not stop, in the unit's view of the file system.
  nsenter --mount --root --target "$pid" touch "$2/written" || failed "$1 cannot write to its state directory"
  for directory in /etc/rollout /home /root /srv/install /usr /var/lib; do
    if nsenter --mount --root --target "$pid" touch "$directory/written" 2>/dev/null; then failed "$1 can write to $directory"; fi
  done
  step "$1: writes only to its state directory; systemd-analyze security:" \
    "$(systemd-analyze security --no-pager "$1" | sed -n 's/.*exposure level for .*: \([0-9.]*\) .*/\1/p')"
}

as_user() { setpriv --reuid rollout --regid rollout --clear-groups "$@"; }
batch() {
  seq "$rows" | sed 's/.*/{"id": "&", "prompt": "row &"}/' >prompts.jsonl
  printf '[model]\nuri = "any"\n[input]\nglob = "prompts.jsonl"\n[output]\ndir = "%s"\n[run]\nname = "%s"\n' "$1" "$1" >batch.toml
  as_user timeout 180 rollout infer batch --quiet --config batch.toml >"$1.log" 2>&1 &
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
  as_user rollout verify "$1" --output "$1" >verify.log 2>&1 || { cat verify.log; failed "the output of $1"; }
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

# Waits until systemd has restarted a unit once more, and the unit is ready.
#   restarted UNIT RESTARTS-BEFORE
restarted() {
  await "$1" NRestarts $(($2 + 1)) 60
  await "$1" ActiveState active 60
  [ "$1" = $worker ] || await "$1" StatusText '@(leading|following *)' 30
}
killed() {
  local begun restarts
  batch killed
  await_rows $((rows + 40))
  for unit in $worker $member; do
    restarts="$(property $unit NRestarts)"
    begun=$SECONDS
    systemctl kill -s KILL $unit
    restarted $unit "$restarts"
    step "systemctl kill -s KILL: $unit is ready again after $((SECONDS - begun)) s"
  done
  verified killed
}

watchdog() {
  local begun=$SECONDS restarts
  restarts="$(property $member NRestarts)"
  kill -STOP "$(property $member MainPID)"
  restarted $member "$restarts"
  grep -q "$member.service: Watchdog timeout" <(journalctl --no-pager --unit $member) || failed "it was not the watchdog"
  step "a stopped member: the watchdog restarted it, and it was ready $((SECONDS - begun)) s later"
  rolloutctl status | grep -q 'quorum 3/3' || failed "the cluster is not complete"
}

# A process that finds its configuration invalid fails once, and says why.
#   refuses UNIT FILE STATUS
refuses() {
  systemctl stop "$1"
  same "$1: exit status after systemctl stop" "$(property "$1" ExecMainStatus)/$(property "$1" Result)" 0/success
  sed -i '1i nonsense = 1' "$2"
  if systemctl start "$1" 2>/dev/null; then failed "$1 started with an invalid configuration"; fi
  await "$1" ActiveState failed 1
  same "$1: status and restarts" "$(property "$1" ExecMainStatus)/$(property "$1" NRestarts)" "$3/0"
  journalctl --no-pager --output cat --unit "$1" --lines 20 >journal
  grep -F 'unknown key' journal | grep -qF nonsense || failed "the journal of $1 does not say why"
  step "$1: an invalid configuration ends it with $3, the journal names the key, and systemd does not restart it"
}

step "$(systemctl --version | head -n 1), $(uname -sr); the system is $(systemctl is-system-running --wait)"
prepare
install_units
sandboxed $member /var/lib/rollout
sandboxed $worker /var/lib/rollout-worker
stop_drains
killed
watchdog
refuses $member /etc/rollout/coordinator.toml 78
refuses $worker /etc/rollout/worker.toml 2
echo "systemd: passed"
