# shellcheck shell=bash
# For scripts that make clean roots of this machine's Debian release. It needs `what`, the name of the check, and `work`, a
# directory, which `make_work` makes; `log` then has the output of the last command.
# shellcheck disable=SC2154 # the two variables are the caller's

# For in_root: further options of unshare; directories to mount read-only, each as FROM:TO; and the time limit.
namespaces=()
binds=()
root_limit_s=3600

not_run() {
  echo "NOT RUN: $what: $*"
  exit 0
}
# Makes `work` in a directory, and removes it when the script ends.
#   make_work DIRECTORY
make_work() {
  mkdir -p "$1"
  work="$(mktemp -d -p "$(cd "$1" && pwd)" check-XXXXXX)"
  trap 'rm -rf --one-file-system "$work"' EXIT
}
quietly() { "$@" >"$log" 2>&1; }
reason() { grep -m1 -E "^(E|W):" "$log" || tail -1 "$log"; }

# Whether this machine can have such roots.
needs_root() {
  [ "$(id -u)" = 0 ] || not_run "making a root takes the user root"
  codename="$(. /etc/os-release && [ "$ID" = debian ] && echo "$VERSION_CODENAME")" || not_run "this machine is not Debian"
  unshare --mount --pid --fork true 2>/dev/null || not_run "this machine does not permit mount namespaces"
}
needs_mmdebstrap() {
  log="$work/log"
  quietly apt-get update || not_run "apt-get update failed: $(reason)"
  type -P mmdebstrap >/dev/null || quietly apt-get install -y --no-install-recommends mmdebstrap ||
    not_run "mmdebstrap is not here and cannot be installed: $(reason)"
}
# Writes the settings of mmdebstrap to `work`: sources.list, with only Debian's own sources of this machine, and
# apt.conf, with how apt reaches them.
apt_settings() {
  # shellcheck disable=SC2016 # apt's own fields
  apt-get indextargets --format 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(REPO_URI) $(RELEASE) $(COMPONENT)' \
    'Created-By: Packages' 'Origin: Debian' | sort -u >"$work/sources.list"
  apt-config dump | grep -E '^Acquire::(http|https|Retries|Check)[^ ]* ".+";' >"$work/apt.conf" || true
}
# Makes a root with the packages, separated by commas, and what they need. needs_mmdebstrap has reached the mirror, so this
# must succeed.
#   debian_root ROOT [PACKAGES]
debian_root() {
  local start=$SECONDS
  apt_settings
  # In a root nobody needs a package to survive a crash.
  quietly mmdebstrap --variant=minbase --aptopt="$work/apt.conf" --dpkgopt='force-unsafe-io' ${2:+--include="$2"} \
    "$codename" "$1" "$work/sources.list" ||
    { echo "$what: FAILED: mmdebstrap: $(reason)" >&2; exit 1; }
  echo "-- a clean root of Debian $codename: $((SECONDS - start)) s"
}
# Runs a program, and kills it after that time, or when the caller is killed.
#   limited SECONDS PROGRAM ARGUMENT...
limited() {
  setpriv --pdeathsig KILL timeout --foreground --signal KILL "$1" setpriv --pdeathsig KILL "${@:2}"
}
# Runs a command in a root with mounts and processes of its own. They end when the command ends, after `root_limit_s`, or
# when the caller is killed. The command gets only these variables of the environment.
#   in_root ROOT [VARIABLE=VALUE...] COMMAND...
in_root() {
  # shellcheck disable=SC2016 # the inner shell's variables
  limited "$root_limit_s" \
    env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    unshare --mount --pid --fork --kill-child "${namespaces[@]}" bash -euc '
      root=$1
      shift
      mount -t proc proc "$root/proc"
      mount --rbind /dev "$root/dev"
      while [ "$1" != -- ]; do
        mount --bind "${1%:*}" "$root${1#*:}"
        mount -o remount,bind,ro "$root${1#*:}"
        shift
      done
      shift
      exec chroot "$root" env "$@"' - "$1" "${binds[@]}" -- "${@:2}" </dev/null
}
