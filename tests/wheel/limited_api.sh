#!/usr/bin/env bash
# Lists the names of CPython that a wheel's extension modules use and that its limited API does not have, and fails if
# there are any: `limited_api.sh WHEEL PYTHON HEX`. PYTHON's own headers define the API of version HEX (0x030B0000);
# cc and nm are needed.
set -euo pipefail
export LC_ALL=C
wheel="$1" python="$2" version="$3"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
"$python" -m zipfile -e "$wheel" "$work/wheel"
headers="$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
echo '#include <Python.h>' | cc -E -P "-DPy_LIMITED_API=$version" -I "$headers" - |
  grep -oE '\b_?Py[A-Za-z0-9_]+\b' | sort -u >"$work/has"
[ "$(wc -l <"$work/has")" -gt 500 ] || { echo "limited_api: $headers/Python.h declares too few names" >&2; exit 1; }
found=0
while IFS= read -r module; do
  found=1
  case "$module" in
    *.abi3.so) ;;
    *) echo "limited_api: $module is not named for the stable ABI" >&2; exit 1 ;;
  esac
  nm -D --undefined-only "$module" | grep -oE '\b_?Py[A-Za-z0-9_]+' | sort -u >"$work/uses"
  [ -s "$work/uses" ] || { echo "limited_api: nm finds no name of CPython in $module, although it must use some" >&2; exit 1; }
  if [ -n "$(comm -23 "$work/uses" "$work/has")" ]; then
    echo "limited_api: $(basename "$module") uses what the limited API $version does not have:" >&2
    comm -23 "$work/uses" "$work/has" >&2
    exit 1
  fi
  echo "limited_api: $(basename "$module"): $(wc -l <"$work/uses") names, all of the limited API $version"
done < <(find "$work/wheel" -name '*.so')
[ "$found" = 1 ] || { echo "limited_api: $wheel has no extension module" >&2; exit 1; }
