#!/usr/bin/env bash
# In the root of check_tests.sh: installs the wheel and runs the tests with its programs.
set -euo pipefail
cd /root
ip link set lo up
python3 -m venv env
. env/bin/activate
pip install --quiet --no-index --no-deps ./*.whl
export ROLLOUT_BIN_DIR=/root/env/bin
# The tests compare the commit of this executable too, and look for the old builds in the parent of the programs' folder.
ln -s "$(python -c 'from rollout import _programs; print(_programs.EXECUTABLE)')" env/bin/rollout-programs
ln -s /root/baselines env/baselines

failed=()
# run PROGRAM MODULE...: the tests of these modules. A module without tests fails: it has another name now.
run() {
  local program=$1 module
  shift
  for module in "$@"; do
    echo "-- $program::$module with the programs of the wheel"
    if ! "tests/$program" --test-threads=1 --nocapture "$module::" 2>&1 | tee log ||
      ! grep -q '^test result: ok\. [1-9]' log; then
      failed+=("$program::$module")
    fi
  done
}
run rollout-ctl/batch output_owner output shards proof failed_submissions revisions interruptions
run edge bad_input::outputs
run batch formats resume exactly_once_through_kills
run cluster rolling_upgrade
[ "${#failed[@]}" = 0 ] || { echo "install: FAILED with the programs of the wheel: ${failed[*]}" >&2; exit 1; }
