#!/usr/bin/env bash
# Packs the four programs of a release into two archives in DIRECTORY: NAME.tar.gz with the programs, stripped, and
# NAME-debug.tar.gz with their debug information, which debuggers find if it is unpacked into the same folder. The bytes
# depend only on the programs, the licenses and SECONDS, the time of the commit since 1970.
#   archives.sh PROGRAMS NAME SECONDS DIRECTORY
# Needs Python, and cargo with the crates of Cargo.lock.
set -euo pipefail
umask 022
root="$(cd "$(dirname "$0")/.." && pwd)"
programs=$1 name=$2 seconds=$3 directory=$4
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/stripped/$name" "$work/debug/$name" "$directory"

for program in rollout rolloutctl rollout-coordinator rollout-worker; do
  debug="$work/debug/$name/$program.debug" stripped="$work/stripped/$name/$program"
  objcopy --only-keep-debug "$programs/$program" "$debug"
  objcopy --strip-all --add-gnu-debuglink="$debug" "$programs/$program" "$stripped"
  chmod 755 "$stripped"
  chmod 644 "$debug"
done
install -m 644 "$root/LICENSE-APACHE" "$root/LICENSE-MIT" "$work/stripped/$name"
python3 "$root/release/licenses.py" > "$work/stripped/$name/THIRD-PARTY-LICENSES"

pack() {
  tar --create --format=gnu --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$seconds" -C "$1" "$name" |
    gzip --no-name > "$2"
  echo "archives: $2: $(stat --format=%s "$2") bytes"
}
pack "$work/stripped" "$directory/$name.tar.gz"
pack "$work/debug" "$directory/$name-debug.tar.gz"
