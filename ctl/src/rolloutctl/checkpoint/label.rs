//! `rolloutctl job checkpoint label JOB NUMBER LABEL`: a labeled checkpoint is kept, however many follow it.

use rollout_proto::{services, v1};
use serde::Serialize;

use crate::output::{self, Report};
use crate::rolloutctl::dry_run::{
    Checked, Plan, Planned, PlannedRequest, Reader, job_name, one, planned,
};
use crate::rolloutctl::request::numbered;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which checkpoint, and what it is called.
#[derive(Debug, clap::Args)]
pub(crate) struct LabelArgs {
    /// The job's name
    pub(in crate::rolloutctl) job: String,
    /// The checkpoint's number
    pub(in crate::rolloutctl) number: u32,
    /// The label
    #[arg(required_unless_present = "remove")]
    pub(in crate::rolloutctl) label: Option<String>,
    /// Remove the label; the checkpoint may then be pruned at once
    #[arg(long, conflicts_with = "label")]
    remove: bool,
}

#[derive(Serialize)]
struct Labeled {
    job: String,
    number: u32,
    label: String,
}

impl Report for Labeled {
    const KIND: &'static str = "CheckpointLabelled";

    fn table(&self) -> String {
        let (job, number) = (&self.job, self.number);
        match self.label.as_str() {
            "" => format!("checkpoint {number} of {job} has no label\n"),
            label => format!("checkpoint {number} of {job} is kept as {label}\n"),
        }
    }
}

impl Verb for LabelArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: false, dry_run: planned };

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let settings = globals.connect.settings()?;
        let client = settings.client(None)?;
        let job = v1::JobName { namespace: settings.namespace.clone(), job: self.job.clone() };
        let label = self.label.unwrap_or_default();
        let request = |id| v1::LabelCheckpointRequest {
            request: Some(id),
            job: Some(job),
            number: self.number,
            label: label.clone(),
        };
        numbered(
            &client,
            "label checkpoint",
            globals.again,
            request,
            |channel, request| async move {
                services::checkpoints(channel).label_checkpoint(request).await
            },
        )
        .await?;
        output::emit(globals.format, &Labeled { job: self.job, number: self.number, label })
    }
}

impl Checked for LabelArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        let request = v1::LabelCheckpointRequest {
            request: None,
            job: job_name(namespace, &self.job),
            number: self.number,
            label: self.label.clone().unwrap_or_default(),
        };
        one(&self.number, &request)
    }
}

impl Planned for LabelArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let (job, number) = (&self.job, self.number);
        let found = super::find(&reader.client, &reader.settings.namespace, job, number).await?;
        let would = match &self.label {
            Some(label) => format!("keep checkpoint {number} of {job} as {label}"),
            None => format!("remove the label of checkpoint {number} of {job}"),
        };
        let label = match found.label.as_str() {
            "" => "no label".to_owned(),
            label => format!("label {label}"),
        };
        Ok(Plan::new(would, format!("{}; {label}", super::reported(&found))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Labeled { job: "llama-sft".into(), number: 4, label: "best".into() };
        crate::golden::report("checkpoint-label.txt", &report);
    }
}
