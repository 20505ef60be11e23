#!/usr/bin/env bash
# Prints a folder that has `promtool`: nothing where it is on the PATH already or cannot be had. Debian's package is taken
# apart, not installed, for installing it would start a server.
#   promtool.sh DIRECTORY
set -euo pipefail
dir=$1/promtool
if command -v promtool >/dev/null; then exit 0; fi
if [ ! -x "$dir/usr/bin/promtool" ] && command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; then
  fetched="$(mktemp -d)"
  trap 'rm -rf "$fetched"' EXIT
  (cd "$fetched" && { apt-get download prometheus || { apt-get update && apt-get download prometheus; }; }) >&2 || exit 0
  mkdir -p "$dir"
  dpkg-deb --fsys-tarfile "$fetched"/prometheus_*.deb | tar -x -C "$dir" ./usr/bin/promtool >&2 || exit 0
fi
if "$dir/usr/bin/promtool" --version >/dev/null 2>&1; then echo "$dir/usr/bin"; fi
