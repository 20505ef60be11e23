//! Entry point of `rolloutctl`, for operators.

use std::process::ExitCode;

fn main() -> ExitCode {
    rollout_ctl::rolloutctl::main(rollout_proto::version(option_env!("ROLLOUT_COMMIT")))
}
