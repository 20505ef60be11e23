#!/usr/bin/env bash
# Builds the four programs of each commit of release/BASELINES into DIRECTORY/COMMIT, without debug symbols. The first
# build takes a quarter of an hour on two cores. A commit whose folder exists is not built again: the folder appears in
# one step, with all programs, so that an interrupted build is never taken for a finished one. The next call continues.
#   baselines.sh DIRECTORY
set -euo pipefail
cd "$(dirname "$0")/../.."
repository=$PWD
mkdir -p "$1"
directory="$(cd "$1" && pwd)"
target="$directory/target"
# A prebuilt RocksDB saves most of the time.
if [ -f ../shared/rocksdb/env.sh ]; then . ../shared/rocksdb/env.sh; fi
# Two concurrent calls would write the same files.
exec 9> "$directory/lock"
flock 9

# The version of RocksDB that a Cargo.lock names.
rocksdb() { awk '/^name = "librocksdb-sys"$/ { getline; print $3 }' "$1"; }

# The sources of a commit, copied rather than a worktree, so that the branches and the index of this repository do not
# change.
sources() {
  local commit=$1 to=$2
  if [ -d "$to" ]; then return; fi
  rm -rf "$to.part"
  mkdir "$to.part"
  git archive "$commit" | tar -x -C "$to.part"
  mv "$to.part" "$to"
}

build() {
  local commit=$1 name=$2 from="$directory/sources-$1" part="$directory/$1.part" program
  if ! git cat-file -e "$commit^{commit}"; then
    echo "baseline $name: this clone has no commit $commit; run git fetch --unshallow, or correct release/BASELINES" >&2
    exit 1
  fi
  echo "baseline $name: building $commit"
  sources "$commit" "$from"
  (
    cd "$from"
    # The prebuilt library has the version that this checkout uses.
    if [ "$(rocksdb Cargo.lock)" != "$(rocksdb "$repository/Cargo.lock")" ]; then
      unset ROCKSDB_LIB_DIR ROCKSDB_STATIC
    fi
    # A target directory of its own: in this checkout's, cargo would replace the programs under test.
    CARGO_TARGET_DIR="$target" CARGO_INCREMENTAL=0 ROLLOUT_COMMIT="$commit" \
      cargo build --locked --bins -p rollout-coordinator -p rollout-worker -p rollout-ctl
  )
  rm -rf "$part"
  mkdir "$part"
  for program in rollout-coordinator rollout-worker rollout rolloutctl; do
    install --mode=755 --strip "$target/debug/$program" "$part/$program"
  done
  mv "$part" "$directory/$commit"
}

# The last line may have no line feed.
while read -r commit name _ || [ -n "$commit" ]; do
  if [ -z "$commit" ] || [ "${commit:0:1}" = "#" ] || [ -d "$directory/$commit" ]; then continue; fi
  build "$commit" "$name" </dev/null 9>&-
done < release/BASELINES
# Finished baselines need only their programs; the rest takes several GB.
rm -rf "$target" "$directory"/sources-*
