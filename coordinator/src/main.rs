//! Entry point of `rollout-coordinator`.

use std::process::ExitCode;

/// jemalloc returns memory that a burst of work left unused; glibc keeps it in one arena per thread for the life of
/// the process.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    rollout_coordinator::main(rollout_proto::version(option_env!("ROLLOUT_COMMIT")))
}
