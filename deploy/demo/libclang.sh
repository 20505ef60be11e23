# shellcheck shell=bash
# Checks whether bindgen, which generates RocksDB's bindings during the build, finds Clang's files. preflight.sh sources
# this file. Names and directories are those of clang-sys 1.9, with which bindgen loads libclang. If its version changes,
# compare build/dynamic.rs and build/common.rs there.

# Tests set this to a directory that they use as `/`.
clang_root=

# A 64-bit shared library with a name that clang-sys accepts. `libclang-cpp` is another library: clang-sys skips it.
is_libclang() {
  case "${1##*/}" in
    *-cpp.*) return 1 ;;
    libclang.so | libclang.so.* | libclang-*.so | libclang-*.so.*) ;;
    *) return 1 ;;
  esac
  [ -f "$1" ] && [ "$(head -c 5 "$1")" = $'\x7fELF\x02' ]
}

has_libclang() {
  local place file prefix more places=()
  if [ -n "${LIBCLANG_PATH+set}" ]; then
    # Then clang-sys searches only there. A build script runs in its crate's directory, so a relative path would fail.
    [ "${LIBCLANG_PATH:0:1}" = / ] || return 1
    is_libclang "$LIBCLANG_PATH" && return 0
    places=("$LIBCLANG_PATH")
  else
    prefix="$("${LLVM_CONFIG_PATH:-llvm-config}" --prefix 2>/dev/null)" && places+=("$prefix"/{bin,lib,lib64})
    IFS=: read -ra more <<<"${LD_LIBRARY_PATH:-}:${LIBRARY_PATH:-}"
    for place in "${more[@]}"; do [ -z "$place" ] || places+=("$place"); done
    places+=("$clang_root"/usr/local/llvm*/lib* "$clang_root"/usr{/local,}/lib*{,/*,/*/*})
  fi
  for place in "${places[@]}"; do
    for file in "$place"/libclang*.so*; do
      is_libclang "$file" && return 0
    done
  done
  return 1
}

# libclang contains no stddef.h. A development package installs Clang's headers, and bindgen asks `clang` for its own.
has_clang_headers() {
  # The headers of a libclang that the user selected are unknown here.
  [ -z "${LIBCLANG_PATH:-}${CLANG_PATH:-}${BINDGEN_EXTRA_CLANG_ARGS:-}" ] || return 0
  type -P clang >/dev/null && return 0
  compgen -G "$clang_root/usr/lib*/clang/*/include/stddef.h" >/dev/null ||
    compgen -G "$clang_root/usr/lib*/llvm*/lib*/clang/*/include/stddef.h" >/dev/null ||
    compgen -G "$clang_root/usr/local/lib*/clang/*/include/stddef.h" >/dev/null ||
    compgen -G "$clang_root/usr/local/llvm*/lib*/clang/*/include/stddef.h" >/dev/null
}
