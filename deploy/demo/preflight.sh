#!/usr/bin/env bash
# Checks for the programs and libraries that `make demo` and `make test` need besides Rust, and installs missing ones with
# apt. Without permission, it prints the command to run. Without this check, the build would fail minutes later.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=libclang.sh
. "$(dirname "${BASH_SOURCE[0]}")/libclang.sh"

fail() {
  echo "error: $*" >&2
  exit 1
}

# Members accept no writes on a nearly full disk.
temporary="${TMPDIR:-/tmp}"
room_mib="$(df -Pk "$temporary" | awk 'NR == 2 { print int($4 / 1024) }')"
[ "$room_mib" -ge 2048 ] ||
  fail "$room_mib MiB are free in $temporary; the tests and the demo keep their members there, and need 2048 MiB"
type -P cargo >/dev/null || fail "Rust is missing. Install it as https://rustup.rs says, then run this again."

# Sets `missing` to the Debian packages that this machine lacks.
look() {
  missing=()
  # C++ for RocksDB, make for jemalloc and for this project, cc as Rust's linker.
  if ! { type -P cc && type -P c++ && type -P make; } >/dev/null; then missing+=(build-essential); fi
  if ! { has_libclang && has_clang_headers; }; then missing+=(libclang-dev); fi
  # Cargo downloads crates over HTTPS.
  if [ -z "${SSL_CERT_FILE:-}${CARGO_HTTP_CAINFO:-}" ] && ! compgen -G '/etc/ssl/cert*/*' >/dev/null &&
    ! compgen -G '/etc/pki/tls/certs/*' >/dev/null; then missing+=(ca-certificates); fi
  type -P python3 >/dev/null || missing+=(python3)
  type -P curl >/dev/null || missing+=(curl)
  # Tests start the program `kill`; the shell's built-in one does not suffice.
  type -P kill >/dev/null || missing+=(procps)
}

look
[ ${#missing[@]} -gt 0 ] || exit 0
if [ -n "${LIBCLANG_PATH+set}" ] && ! has_libclang; then
  fail "LIBCLANG_PATH='$LIBCLANG_PATH' is neither a libclang nor a directory with one (an absolute path), and bindgen searches" \
    "nowhere else: correct it or unset it"
fi
echo "missing: ${missing[*]}" >&2
type -P apt-get >/dev/null ||
  fail "install a C++ compiler, make, libclang with Clang's headers, CA certificates, Python 3, curl and kill with your package manager"
install="apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ${missing[*]}"
if [ "$(id -u)" = 0 ]; then
  sh -c "$install"
elif type -P sudo >/dev/null && sudo -n true 2>/dev/null; then
  sudo sh -c "$install"
else
  fail "run this as root, then try again:  $install"
fi
look
[ ${#missing[@]} -eq 0 ] || fail "apt installed these packages, but their files are still missing: ${missing[*]}; check PATH and LIBCLANG_PATH"
