#!/usr/bin/env bash
# Prints a Python that has yaml and jsonschema: the machine's own if it has them, otherwise one created once in
# DIRECTORY.
#   setup.sh DIRECTORY
set -euo pipefail
dir=$1
has() { "$1" -c 'import tomllib, yaml, jsonschema' 2>/dev/null; }
for python in python3 /usr/bin/python3 "$dir/bin/python"; do
  if has "$python"; then
    echo "$python"
    exit 0
  fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  (apt-get update && apt-get install -y python3-yaml python3-jsonschema) >&2
  has /usr/bin/python3 && echo /usr/bin/python3 && exit 0
fi
python3 -m venv "$dir" >&2
"$dir/bin/python" -m pip install --quiet pyyaml==6.0.3 jsonschema==4.23.0 >&2
echo "$dir/bin/python"
