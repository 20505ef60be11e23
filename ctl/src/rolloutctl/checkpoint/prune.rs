//! `rolloutctl job checkpoint prune JOB --keep-last N`: how many complete checkpoints a job keeps.
//!
//! Invariant: a labeled checkpoint, and the one that recovery would use, are never pruned. A dry run only reads, and
//! so opens no session.

use rollout_proto::{CallOptions, services, v1};
use serde::Serialize;

use crate::output::{self, Report};
use crate::rolloutctl::Failure;
use crate::rolloutctl::consent;
use crate::rolloutctl::request::Numbered;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Of which job, and how many stay.
#[derive(Debug, clap::Args)]
pub(crate) struct PruneArgs {
    /// The job's name; only one, because the number to keep differs between jobs
    job: String,
    /// Keep this many of the newest complete checkpoints, labeled or not. Older labeled ones stay too
    #[arg(long, value_name = "CHECKPOINTS", value_parser = clap::value_parser!(u32).range(1..))]
    keep_last: u32,
    /// Keep this number from now on; not with --dry-run
    #[arg(long)]
    always: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Pruned {
    job: String,
    pruned: Vec<u32>,
    dry_run: bool,
}

impl Report for Pruned {
    const KIND: &'static str = "CheckpointsPruned";

    fn table(&self) -> String {
        let numbers: Vec<String> = self.pruned.iter().map(u32::to_string).collect();
        let what = if self.dry_run { "would be removed" } else { "are removed" };
        match numbers.is_empty() {
            true => "no checkpoint is removed\n".to_owned(),
            false => format!("these checkpoints of {} {what}: {}\n", self.job, numbers.join(", ")),
        }
    }
}

impl Verb for PruneArgs {
    const KIND: Kind<Self> = Kind::Change {
        numbered: true,
        confirm: true,
        // The leader itself lists what would be removed.
        dry_run: |args, globals| Box::pin(prune(globals, args, true)),
    };

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        prune(globals, self, false).await
    }
}

async fn prune(globals: &Globals, args: PruneArgs, dry_run: bool) -> anyhow::Result<()> {
    if dry_run && args.always {
        return Err(Failure::usage("--dry-run lists what goes now: leave out --always").into());
    }
    if !dry_run {
        let what = format!("removing checkpoints of {}", args.job);
        consent::confirm(&what, &args.job, globals.consent)?;
    }
    let settings = globals.connect.settings()?;
    let client = settings.client(None)?;
    // A read-only request has no number.
    let number = match dry_run {
        true => None,
        false => Some(Numbered::new(&client, globals.again).await?),
    };
    let options = if dry_run { CallOptions::read() } else { CallOptions::default() };
    let job = v1::JobName { namespace: settings.namespace.clone(), job: args.job.clone() };
    let request = v1::PruneCheckpointsRequest {
        request: number.as_ref().map(Numbered::id),
        job: Some(job),
        keep_last: args.keep_last,
        now: !args.always,
        dry_run,
    };
    let answer = client
        .with_leader_opts("prune checkpoints", options, |channel| {
            let request = request.clone();
            async move { services::checkpoints(channel).prune_checkpoints(request).await }
        })
        .await
        .map_err(|error| match &number {
            Some(number) => anyhow::Error::from(number.failed(error)),
            None => error.into(),
        })?;
    output::emit(globals.format, &Pruned { job: args.job, pruned: answer.pruned, dry_run })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Pruned { job: "llama-sft".into(), pruned: vec![1, 2], dry_run: false };
        crate::golden::report("checkpoint-prune.txt", &report);
    }
}
