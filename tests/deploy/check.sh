#!/usr/bin/env bash
# Checks everything below deploy/ (chart, configurations, units, alert rules, dashboard), the workflows for GitHub, the
# archives of a release, the check of the dependencies, the links of the pages, the packages that they name, and the
# figures of the page of limits. It fetches `promtool`, `helm` and the schemas of Kubernetes if they are missing. It uses
# these and `systemd-analyze` if they are available, and says so if not.
#   check.sh DIRECTORY-OF-BINARIES DIRECTORY-FOR-PYTHON
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
python="$(bash "$here/setup.sh" "$2")"
export PYTHONDONTWRITEBYTECODE=1
{ read -r path; read -r schemas; } < <(bash "$here/tools.sh" "$2-tools")
export PATH="$PATH$path" ROLLOUT_KUBERNETES_SCHEMAS="$schemas"
for check in check_deny check_links check_packages check_limits check_units check_metrics check_configs check_workflows check_archives check_helm check_helm_programs check_kubernetes check_backup; do
  echo "-- $check"
  "$python" "$here/$check.py" "$1"
done
for tool in helm promtool systemd-analyze; do
  if ! command -v "$tool" >/dev/null; then echo "NOT RUN: what asks $tool, which is not on this machine"; fi
done
if [ -z "$schemas" ]; then echo "NOT RUN: what asks the schemas of Kubernetes, which could not be fetched"; fi
