#!/usr/bin/env bash
# Runs tests with the programs of the wheel in a clean Debian root that has Python and only a loopback network: upgrades
# from the builds of release/BASELINES, and the tests of what a batch writes:
#   check_tests.sh WHEEL DIRECTORY TESTS
# TESTS is a file with the output of `cargo xtask test --no-run`. Makes the root in DIRECTORY and removes it.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
checkout="$(cd "$here/../.." && pwd)"
wheel="$(realpath "$1")"
tests="$(realpath "$3")"
what="tests with the wheel in a clean Debian root"
. "$here/../debian_root.sh"
make_work "$2"
needs_root
unshare --net true 2>/dev/null || not_run "this machine does not permit network namespaces"
needs_mmdebstrap
root="$work/root"
# iproute2 and procps are for the tests: `ip` and `kill`.
debian_root "$root" python3,python3-venv,iproute2,procps

path() { awk -F '\t' -v label="$1" '$1 == label { print $2 }' "$tests"; }
for label in batch cluster edge rollout-ctl/batch; do
  install -D "$(path "$label")" "$root/root/tests/$label"
done
cp "$wheel" "$here/inside.sh" "$root/root/"
# The tests contain the paths of these files. Their other programs are the wheel's.
profile="$(dirname "$(dirname "$(path cluster)")")"
install -D "$profile/participant" "$root$profile/participant"
ln -s /root/env/bin/rollout "$root$profile/rollout"
mkdir -p "$root$checkout/tests"
install -D -m 644 "$checkout/release/BASELINES" "$root$checkout/release/BASELINES"
baselines="$(dirname "$profile")/baselines"
mkdir -p "$baselines" "$root/root/baselines"

# As cargo xtask names it: the tests compare it with the commit of the wheel.
commit="${ROLLOUT_COMMIT:-$(git -C "$checkout" describe --always --abbrev=40 --dirty --exclude='*' || true)}"
# They take 20 minutes on an idle machine.
root_limit_s=7200
namespaces=(--net)
binds=("$baselines:/root/baselines")
in_root "$root" ROLLOUT_COMMIT="$commit" ROLLOUT_REQUIRE_BASELINES="${ROLLOUT_REQUIRE_BASELINES:-}" bash /root/inside.sh
