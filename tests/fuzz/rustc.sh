#!/bin/sh
# The compiler of `make fuzz`, as RUSTC_WORKSPACE_WRAPPER: it compiles coverage counters and comparisons for libFuzzer into
# the crates of this workspace, and into nothing that they depend on. The options of LLVM's SanitizerCoverage are the ones
# that cargo-fuzz gives; a stable compiler takes them.
rustc=$1
shift
for argument; do
  case $argument in
    # Build scripts and this crate's own code: no decoder is there.
    build_script_*|rollout_fuzz|___) exec "$rustc" "$@" ;;
  esac
done
exec "$rustc" "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
  -Cllvm-args=-sanitizer-coverage-trace-compares
