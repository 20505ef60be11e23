//! Plans of changes to datasets, training jobs and checkpoints.
//!
//! Deliberately absent: whether the state of the object allows the change, which the leader decides.

use rollout_proto::v1;

use super::{Plan, Planned, Reader};
use crate::output::counted;
use crate::rolloutctl::checkpoint;
use crate::rolloutctl::checkpoint::abort::AbortArgs;
use crate::rolloutctl::checkpoint::label::LabelArgs;
use crate::rolloutctl::dataset::create::CreateArgs;
use crate::rolloutctl::dataset::delete::DeleteArgs as DatasetDeleteArgs;
use crate::rolloutctl::dataset::describe;
use crate::rolloutctl::job::delete::DeleteArgs as JobDeleteArgs;
use crate::rolloutctl::shard::list as jobs;

impl Planned for CreateArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        reader.create_dataset(&self).await
    }
}

impl Planned for DatasetDeleteArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        Plan::of_each(&self.names, async |name| reader.delete_dataset(name).await).await
    }
}

impl Planned for JobDeleteArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        Plan::of_each(&self.jobs, async |job| reader.delete_job(job).await).await
    }
}

impl Planned for AbortArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let AbortArgs { job, numbers } = self;
        Plan::of_each(&numbers, async |number| reader.abort_checkpoint(&job, *number).await).await
    }
}

impl Planned for LabelArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        reader.label_checkpoint(&self).await
    }
}

impl Reader {
    /// The dataset of that name, if it exists.
    async fn dataset(&self, name: &str) -> anyhow::Result<Option<v1::Dataset>> {
        match describe::ask(&self.client, &self.settings.namespace, name).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.exit_code() == 4 => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn create_dataset(&self, args: &CreateArgs) -> anyhow::Result<Plan> {
        let found = self.dataset(&args.name).await?;
        let now = match &found {
            None => "it does not exist",
            Some(found) if found.spec == Some(args.spec()) => {
                "it exists with the same definition: no change"
            }
            Some(_) => "it exists with a different definition",
        };
        Ok(Plan::new(format!("create dataset {}", args.name), now))
    }

    async fn delete_dataset(&self, name: &str) -> anyhow::Result<Plan> {
        let found = self.dataset(name).await?;
        let now = found.map_or("it does not exist".to_owned(), |found| {
            let samples = counted(found.spec.unwrap_or_default().samples, "sample");
            format!("{samples} in {}", counted(found.shards.into(), "shard"))
        });
        Ok(Plan::new(format!("delete dataset {name}; its data stays"), now))
    }

    async fn delete_job(&self, name: &str) -> anyhow::Result<Plan> {
        let found = jobs::ask(&self.client, &self.settings.namespace, Some(name)).await;
        let now = match found {
            Ok(found) => found.first().map(contents),
            Err(error) if error.exit_code() == 4 => None,
            Err(error) => return Err(error.into()),
        };
        let now = now.unwrap_or_else(|| "it does not exist".to_owned());
        Ok(Plan::new(format!("delete job {name} with its claims and its checkpoints"), now))
    }

    async fn abort_checkpoint(&self, job: &str, number: u32) -> anyhow::Result<Plan> {
        let found = checkpoint::find(&self.client, &self.settings.namespace, job, number).await?;
        Ok(Plan::new(format!("abort checkpoint {number} of {job}"), reported(&found)))
    }

    async fn label_checkpoint(&self, args: &LabelArgs) -> anyhow::Result<Plan> {
        let (job, number) = (&args.job, args.number);
        let found = checkpoint::find(&self.client, &self.settings.namespace, job, number).await?;
        let would = match &args.label {
            Some(label) => format!("keep checkpoint {number} of {job} as {label}"),
            None => format!("remove the label of checkpoint {number} of {job}"),
        };
        let label = match found.label.as_str() {
            "" => "no label".to_owned(),
            label => format!("label {label}"),
        };
        Ok(Plan::new(would, format!("{}; {label}", reported(&found))))
    }
}

/// What is deleted with a job.
fn contents(job: &v1::Job) -> String {
    let epochs = counted(job.passes.len() as u64, "epoch");
    let checkpoints = counted(job.checkpoints.into(), "complete checkpoint");
    format!("{epochs} in progress, {checkpoints}")
}

fn reported(found: &v1::Checkpoint) -> String {
    let reported = found.ranks.iter().filter(|rank| rank.reported).count();
    let state = match found.state() {
        v1::CheckpointState::Complete => "complete",
        v1::CheckpointState::Going => "already aborted",
        v1::CheckpointState::Open | v1::CheckpointState::Unspecified => "open",
    };
    let ranks = counted(found.ranks.len() as u64, "rank");
    format!("{state}: {reported} of {ranks} reported")
}
