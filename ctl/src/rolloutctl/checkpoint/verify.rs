//! `rolloutctl job checkpoint verify JOB [NUMBER]`: reads every byte of a checkpoint and compares it with what its
//! ranks reported.
//!
//! Invariant: it succeeds only if recovery would. It needs the store, as a trainer does.

use rollout_proto::v1;
use serde::Serialize;

use crate::output::counted;
use crate::output::{self, Report, bytes, u64_string};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which checkpoint.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// The job's name
    job: String,
    /// Its number; without one, the last complete one
    #[arg(default_value_t = 0, hide_default_value = true)]
    number: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Verified {
    job: String,
    number: u32,
    ranks: usize,
    #[serde(serialize_with = "u64_string")]
    bytes: u64,
}

impl Report for Verified {
    const KIND: &'static str = "CheckpointVerified";

    fn table(&self) -> String {
        let (job, number, ranks) = (&self.job, self.number, counted(self.ranks as u64, "rank"));
        format!("checkpoint {number} of {job} is complete: {ranks}, {}\n", bytes(self.bytes))
    }
}

impl Verb for VerifyArgs {
    const KIND: Kind<Self> = Kind::Once;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let settings = globals.connect.settings()?;
        let client = settings.client(None)?;
        let found = super::find(&client, &settings.namespace, &self.job, self.number).await?;
        if found.state() != v1::CheckpointState::Complete {
            anyhow::bail!("checkpoint {} of {} is not complete", found.number, self.job);
        }
        let bytes = rollout_training::verify(&found).await?;
        let (number, ranks) = (found.number, found.ranks.len());
        output::emit(globals.format, &Verified { job: self.job, number, ranks, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Verified { job: "llama-sft".into(), number: 4, ranks: 2, bytes: 3 << 30 };
        crate::golden::report("checkpoint-verify.txt", &report);
    }
}
