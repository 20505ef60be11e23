#!/usr/bin/env bash
# Looks for what a build and its tests need beside Rust: a C++ compiler and libclang (for RocksDB), Python and curl.
# Installs what is missing with apt where it may; else names the exact command.
set -euo pipefail

# A member takes no writes once its disk is full but for a reserve, and nothing here can run without members.
temporary="${TMPDIR:-/tmp}"
room_mib="$(df -Pk "$temporary" | awk 'NR == 2 { print int($4 / 1024) }')"
if [ "$room_mib" -lt 2048 ]; then
  echo "error: $room_mib MiB are free in $temporary; the tests and the demo keep their members there and need 2048 MiB" >&2
  exit 1
fi

missing=()
command -v cargo >/dev/null || {
  echo "error: Rust is missing. Install it as https://rustup.rs says, then run this again." >&2
  exit 1
}
command -v c++ >/dev/null && command -v make >/dev/null || missing+=(build-essential)
has_libclang() {
  [ -n "${LIBCLANG_PATH:-}" ] && return 0
  ldconfig -p 2>/dev/null | grep -q 'libclang[-.]' && return 0
  compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null
}
has_libclang || missing+=(libclang-dev)
command -v python3 >/dev/null || missing+=(python3)
command -v curl >/dev/null || missing+=(curl)
[ ${#missing[@]} -eq 0 ] && exit 0

echo "missing: ${missing[*]}" >&2
install="apt-get update && apt-get install -y ${missing[*]}"
if ! command -v apt-get >/dev/null; then
  echo "error: install a C++ compiler, libclang, Python 3 and curl with your package manager" >&2
  exit 1
fi
if [ "$(id -u)" = 0 ]; then
  sh -c "$install"
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
  sudo sh -c "$install"
else
  echo "error: run this as root, then try again:  $install" >&2
  exit 1
fi
