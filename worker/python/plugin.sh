#!/usr/bin/env bash
# Lets vLLM and torchrun find the package's plug-ins when the package is used without its wheel: `plugin.sh DIR`.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
version="$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/pyproject.toml")"
info="$1/rollout_ml-$version.dist-info"
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: rollout-ml\nVersion: %s\n' "$version" >"$info/METADATA"
printf '[vllm.general_plugins]\nrollout = rollout.core_hook:install\n' >"$info/entry_points.txt"
printf '[torchrun.handlers]\nrollout = rollout.torchrun:get_handler\n' >>"$info/entry_points.txt"
