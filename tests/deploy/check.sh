#!/usr/bin/env bash
# Everything below deploy/ (chart, configurations, units, alert rules, dashboard), and the links of the pages. `promtool`
# is fetched where it is not there; it, `helm` and `systemd-analyze` are asked too where they can be had, and where not that is said.
#   check.sh DIRECTORY-OF-BINARIES DIRECTORY-FOR-PYTHON
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
python="$(bash "$here/setup.sh" "$2")"
export PYTHONDONTWRITEBYTECODE=1
promtool="$(bash "$here/promtool.sh" "$2")"
if [ -n "$promtool" ]; then export PATH="$PATH:$promtool"; fi
for check in check_links check_units check_metrics check_configs check_helm check_backup; do
  echo "-- $check"
  "$python" "$here/$check.py" "$1"
done
for tool in helm promtool systemd-analyze; do
  if ! command -v "$tool" >/dev/null; then echo "NOT RUN: what asks $tool, which is not on this machine"; fi
done
