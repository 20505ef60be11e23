//! Owns: which of the agent's environment variables an engine does not get: credentials of the object store and of this
//! worker, and what tells a supervisor about this process.
//!
//! Invariant: what the operator names in `pass_env` is passed on. What is in the engine's own `env` is set in any case.
//! Absent: files. An engine runs as the agent's user and can read what that user can.

use std::ffi::OsString;

const PREFIXES: [&str; 5] = ["AWS_", "AZURE_", "GOOGLE_", "ROLLOUT_", "WATCHDOG_"];
const NAMES: [&str; 1] = ["NOTIFY_SOCKET"];
/// Of those with the prefixes.
const HARMLESS: [&str; 1] = ["ROLLOUT_LOG"];

/// Of these variables the ones that an engine does not get.
pub(super) fn withheld(
    names: impl IntoIterator<Item = OsString>,
    pass_env: &[String],
) -> Vec<OsString> {
    let secret = |name: &OsString| {
        let Some(name) = name.to_str() else { return false };
        let kept = HARMLESS.contains(&name) || pass_env.iter().any(|passed| passed == name);
        !kept && (NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
    };
    names.into_iter().filter(secret).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_withheld_unless_the_operator_passes_them_on() {
        let names = ["AWS_SECRET_ACCESS_KEY", "AWS_REGION", "ROLLOUT_KEY", "NOTIFY_SOCKET"];
        let others = ["PATH", "HF_TOKEN", "CUDA_VISIBLE_DEVICES", "ROLLOUT_LOG", "AWSOME"];
        let all = || names.iter().chain(&others).map(OsString::from);
        assert_eq!(withheld(all(), &[]), names.map(OsString::from));
        let passed = ["AWS_REGION".to_owned(), "PATH".to_owned()];
        let left = ["AWS_SECRET_ACCESS_KEY", "ROLLOUT_KEY", "NOTIFY_SOCKET"];
        assert_eq!(withheld(all(), &passed), left.map(OsString::from));
    }
}
