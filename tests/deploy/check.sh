#!/usr/bin/env bash
# Everything below deploy/ (chart, configurations, units, alert rules, dashboard), and the links of the pages. `helm`,
# `promtool` and `systemd-analyze` are asked too where they are on the machine.
#   check.sh DIRECTORY-OF-BINARIES DIRECTORY-FOR-PYTHON
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
python="$(bash "$here/setup.sh" "$2")"
export PYTHONDONTWRITEBYTECODE=1
for check in check_links check_units check_metrics check_configs check_helm check_backup; do
  echo "-- $check"
  "$python" "$here/$check.py" "$1"
done
