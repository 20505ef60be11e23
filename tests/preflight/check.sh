#!/usr/bin/env bash
# Runs preflight on fresh Debian machines: clean roots of this machine's release. After each run a crate that loads libclang as
# bindgen does must build, run, and parse what RocksDB's header includes.
#   check.sh DIRECTORY
# Makes the roots in DIRECTORY and removes them. They use this machine's apt sources, Rust toolchain and downloaded crates.
# ROLLOUT_PREFLIGHT_MAKE: targets to make, RocksDB from source, on the machine that had nothing, such as `demo` (nightly).
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
checkout="$(cd "$here/../.." && pwd)"

[ -n "${ROLLOUT_PREFLIGHT_INSIDE:-}" ] || bash "$here/check_libclang.sh"
what="preflight in clean Debian roots"
. "$checkout/tests/debian_root.sh"
needs_root
# When a mount namespace ends, the mounts in it end too.
[ -n "${ROLLOUT_PREFLIGHT_INSIDE:-}" ] || ROLLOUT_PREFLIGHT_INSIDE=1 exec unshare --mount bash "$0" "$@"
mkdir -p "$1"
work="$(mktemp -d -p "$(cd "$1" && pwd)" root-XXXXXX)"
trap 'umount "$work" 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT
# The roots have 3 GB, which takes a disk a minute to write and to remove; a build is too large for memory.
if [ -z "${ROLLOUT_PREFLIGHT_MAKE:-}" ] && [ "$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)" -gt $((8 * 1024 * 1024)) ]; then
  mount -t tmpfs -o size=5g,mode=755 preflight "$work"
fi
needs_mmdebstrap
host="$(rustc -vV | sed -n 's/^host: //p')"
(cd "$checkout" && quietly cargo fetch --locked --target "$host") || not_run "the crates cannot be downloaded: $(tail -1 "$log")"
debian_root "$work/base"

# Runs a command on the machine ROOT, which has its own files and processes, and shares this machine's Rust toolchain
# and network.
#   on ROOT COMMAND...
on() {
  local root="$work/$1" sysroot crates pass=() name
  shift
  sysroot="$(cd "$checkout" && rustc --print sysroot)"
  crates="${CARGO_HOME:-$HOME/.cargo}"
  for name in http_proxy https_proxy no_proxy CARGO_BUILD_JOBS; do
    [ -z "${!name:-}" ] || pass+=("$name=${!name}")
  done
  mkdir -p "$root/opt/rust" "$root/opt/cargo/registry"
  for name in "$crates"/config*; do [ ! -f "$name" ] || cp "$name" "$root/opt/cargo/"; done
  # shellcheck disable=SC2016 # the inner shell's arguments
  env -i HOME=/root LANG=C.UTF-8 CARGO_HOME=/opt/cargo CARGO_NET_OFFLINE=true CARGO_INCREMENTAL=0 "${pass[@]}" \
    PATH=/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    unshare --mount --pid --fork --kill-child bash -euc '
      root=$1; sysroot=$2; registry=$3; shift 3
      mount -t proc proc "$root/proc"
      mount --rbind /dev "$root/dev"
      mount --bind "$sysroot" "$root/opt/rust"; mount -o remount,bind,ro "$root/opt/rust"
      mount --bind "$registry" "$root/opt/cargo/registry"; mount -o remount,bind,ro "$root/opt/cargo/registry"
      exec chroot "$root" "$@"' - "$root" "$sysroot" "$crates/registry" "$@" </dev/null
}
# A machine with only Debian's base, this project's files and the named packages.
#   machine ROOT PACKAGE...
machine() {
  local root=$1
  shift
  cp -a "$work/base" "$work/$root"
  mkdir "$work/$root/project"
  tar -C "$checkout" --exclude=./target --exclude=./.git --exclude=./.rollout -c . | tar -C "$work/$root/project" -x
  cp "$checkout/Cargo.lock" "$work/$root/project/tests/preflight/loads-libclang/"
  printf '#include <%s>\n' stdarg.h stdbool.h stddef.h stdint.h >"$work/$root/includes.c"
  [ $# = 0 ] || on "$root" sh -c "apt-get update && apt-get install -y --no-install-recommends $*" >"$log" 2>&1 || failed "$root" "apt-get"
}
failed() {
  tail -n 40 "$log"
  echo "preflight: FAILED on the machine '$1': $2" >&2
  exit 1
}
# check ROOT WHAT: preflight, then the crate.
check() {
  local root=$1 what=$2 start=$SECONDS said
  on "$root" bash /project/deploy/demo/preflight.sh >"$log" 2>&1 || failed "$what" "preflight.sh"
  said="$(grep '^missing:' "$log")" || said="missing: nothing"
  on "$root" sh -c 'cd /project/tests/preflight/loads-libclang && cargo run --quiet -- /includes.c' >"$log" 2>&1 ||
    failed "$what" "the crate that loads libclang ($said)"
  echo "-- $what: $said; $(tail -1 "$log"); $((SECONDS - start)) s"
  case "$what" in everything*) [ "$said" = "missing: nothing" ] || failed "$what" "$said" ;; esac
}

machine fresh
check fresh "nothing installed"
check fresh "everything present"
# The libraries of this release's libclang-dev.
llvm="$(on fresh sh -c 'apt-cache depends libclang-dev' | sed -n 's/.*Depends: libclang-\([0-9]*\)-dev$/\1/p')"
machine cpp "libclang-cpp$llvm"
check cpp "libclang-cpp only"
on cpp apt-get purge -y "libclang-common-$llvm-dev" >"$log" 2>&1 || failed cpp "apt-get purge"
check cpp "libclang without Clang's headers"
if [ -n "${ROLLOUT_PREFLIGHT_MAKE:-}" ]; then
  start=$SECONDS
  # shellcheck disable=SC2086 # several targets
  on fresh make -C /project $ROLLOUT_PREFLIGHT_MAKE
  echo "-- make $ROLLOUT_PREFLIGHT_MAKE where nothing was installed: $((SECONDS - start)) s"
else
  echo "-- make demo in a clean root is not asked for here: ROLLOUT_PREFLIGHT_MAKE=demo does it"
fi
