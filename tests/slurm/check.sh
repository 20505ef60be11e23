#!/usr/bin/env bash
# Runs the recipe of deploy/slurm with Debian's packages of Slurm, in a clean Debian root:
#   check.sh DIRECTORY-OF-BINARIES DIRECTORY
# Makes the root in DIRECTORY and removes it. It has its own processes, host name and network, with only loopback.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
bin="$(realpath "$1")"
what="the Slurm recipe in a clean Debian root"
. "$here/../debian_root.sh"
make_work "$2"
needs_root
unshare --net --uts true 2>/dev/null || not_run "this machine does not permit network namespaces"
needs_mmdebstrap
debian_root "$work/root" slurmctld,slurmd,slurm-client,munge,iproute2,jq

cp -r "$here/etc/." "$work/root/etc/slurm/"
mkdir -p "$work/root/opt/rollout/bin"
cp -r "$here/../../deploy/slurm" "$here/machine.sh" "$here/recipe.sh" "$work/root/opt/rollout/"
namespaces=(--net --uts)
binds=("$bin:/opt/rollout/bin")
# It takes four minutes.
root_limit_s=1200
in_root "$work/root" bash /opt/rollout/machine.sh || { echo "slurm: FAILED with status $?" >&2; exit 1; }
