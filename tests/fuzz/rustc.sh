#!/bin/sh
# The compiler of `make fuzz`, used as RUSTC_WORKSPACE_WRAPPER: it compiles coverage counters and comparisons for
# libFuzzer into the crates of this workspace, but not into their dependencies. The options of LLVM's
# SanitizerCoverage are those of cargo-fuzz; a stable compiler accepts them.
rustc=$1
shift
for argument; do
  case $argument in
    # Skip build scripts and this crate's own code: they contain no decoder.
    build_script_*|rollout_fuzz|___) exec "$rustc" "$@" ;;
  esac
done
exec "$rustc" "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
  -Cllvm-args=-sanitizer-coverage-trace-compares
