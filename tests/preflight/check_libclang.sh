#!/usr/bin/env bash
# Tests has_libclang and has_clang_headers of deploy/demo/libclang.sh on directories that stand for `/`. Takes a second.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
# shellcheck source-path=SCRIPTDIR source=../../deploy/demo/libclang.sh
. "$here/../../deploy/demo/libclang.sh"
unset LIBCLANG_PATH LLVM_CONFIG_PATH LD_LIBRARY_PATH LIBRARY_PATH CLANG_PATH BINDGEN_EXTRA_CLANG_ARGS
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
# llvm-config and clang of this machine must not be found.
mkdir "$work/bin"
for program in head mkdir dirname; do ln -s "$(type -P $program)" "$work/bin/"; done
passed=0 failed=0

# root FILE...: a new root with these files, each a 64-bit ELF library by its first bytes.
root() {
  local file
  clang_root="$(mktemp -d -p "$work")"
  for file in "$@"; do
    mkdir -p "$clang_root/$(dirname "$file")"
    printf '\x7fELF\x02rest' >"$clang_root/$file"
  done
}
# expect yes|no WHAT COMMAND...
expect() {
  local want=$1 what=$2 got=no
  shift 2
  PATH="$work/bin" "$@" && got=yes
  if [ "$got" = "$want" ]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $what: expected $want, got $got" >&2
  fi
}
# found yes|no FILE...: checks whether a machine with only these files has libclang.
found() {
  local want=$1
  shift
  root "$@"
  expect "$want" "has_libclang with ${*:-nothing}" has_libclang
}
# with NAME=VALUE COMMAND...
with() {
  local -x "${1?}"
  shift
  "$@"
}

found no
found no usr/lib/x86_64-linux-gnu/libclang-cpp.so.14
found no usr/lib/llvm-14/lib/libclang-cpp.so usr/lib/llvm-14/lib/libclang-cpp.so.14 usr/lib/llvm-14/lib/libclang.a
found no usr/lib/llvm-14/lib/clang/14.0.6/lib/linux/libclang_rt.asan-x86_64.so
found no opt/llvm/lib/libclang.so
found yes usr/lib/libclang.so
found yes usr/lib64/libclang.so.18.1
found yes usr/lib/x86_64-linux-gnu/libclang-14.so.14.0.6
found yes usr/lib/x86_64-linux-gnu/libclang-cpp.so.14 usr/lib/x86_64-linux-gnu/libclang-14.so.1
found yes usr/lib/llvm-19/lib/libclang-19.so
found yes usr/local/lib/libclang.so.1
found yes usr/local/llvm18/lib/libclang.so

root usr/lib/libclang.so.1
printf '\x7fELF\x01rest' >"$clang_root/usr/lib/libclang.so.1"
expect no "has_libclang with a 32-bit library" has_libclang
rm "$clang_root/usr/lib/libclang.so.1"
ln -s nowhere "$clang_root/usr/lib/libclang.so.1"
expect no "has_libclang with a dangling link" has_libclang

root opt/llvm/lib/libclang.so opt/other/libclang-cpp.so.14 usr/lib/libclang.so
opt="$clang_root/opt"
expect yes "LIBCLANG_PATH is a directory" with LIBCLANG_PATH="$opt/llvm/lib" has_libclang
expect yes "LIBCLANG_PATH is the library" with LIBCLANG_PATH="$opt/llvm/lib/libclang.so" has_libclang
expect no "LIBCLANG_PATH is libclang-cpp" with LIBCLANG_PATH="$opt/other/libclang-cpp.so.14" has_libclang
expect no "LIBCLANG_PATH is a directory with libclang-cpp only" with LIBCLANG_PATH="$opt/other" has_libclang
expect no "LIBCLANG_PATH does not exist" with LIBCLANG_PATH="$opt/nowhere" has_libclang
expect no "LIBCLANG_PATH is empty" with LIBCLANG_PATH= has_libclang
cd "$opt"
expect no "LIBCLANG_PATH is relative" with LIBCLANG_PATH=llvm/lib has_libclang
rm "$clang_root/usr/lib/libclang.so"
expect no "a library in no known place" has_libclang
expect yes "LD_LIBRARY_PATH" with LD_LIBRARY_PATH="/nowhere:$opt/llvm/lib" has_libclang
expect yes "LIBRARY_PATH" with LIBRARY_PATH="$opt/llvm/lib" has_libclang
printf '#!/bin/sh\necho %s\n' "$opt/llvm" >"$work/llvm-config"
chmod +x "$work/llvm-config"
expect yes "LLVM_CONFIG_PATH" with LLVM_CONFIG_PATH="$work/llvm-config" has_libclang

root usr/lib/x86_64-linux-gnu/libclang-14.so.1
expect no "has_clang_headers with a library alone" has_clang_headers
root usr/lib/llvm-14/lib/clang/14.0.6/include/stddef.h
expect yes "has_clang_headers of Debian" has_clang_headers
root usr/lib/clang/18/include/stddef.h
expect yes "has_clang_headers of Fedora" has_clang_headers

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
