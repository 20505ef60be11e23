//! Entry point of `rollout-worker`.

use std::process::ExitCode;

fn main() -> ExitCode {
    rollout_worker::main(rollout_proto::version(option_env!("ROLLOUT_COMMIT")))
}
