//! Entry point of `rollout`, for users.

use std::process::ExitCode;

fn main() -> ExitCode {
    rollout_ctl::rollout::main(rollout_proto::version(option_env!("ROLLOUT_COMMIT")))
}
