//! Plans of changes to datasets, training jobs and checkpoints.
//!
//! Invariant: a change to a name that is taken by another spec, or to something in use, complete or being removed, is
//! refused here too, with exit status 5.

use rollout_proto::v1;

use super::{Plan, Planned, Reader};
use crate::output::counted;
use crate::rolloutctl::Failure;
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
        reader.delete_datasets(&self.names).await
    }
}

impl Planned for JobDeleteArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        reader.delete_jobs(&self.jobs).await
    }
}

impl Planned for AbortArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        reader.abort_checkpoints(&self).await
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
            None => "it does not exist".to_owned(),
            Some(found) => same(found, &args.spec())?,
        };
        Ok(Plan::new(format!("create dataset {}", args.name), now))
    }

    async fn delete_datasets(&self, names: &[String]) -> anyhow::Result<Plan> {
        let all = jobs::ask(&self.client, &self.settings.namespace, None).await?;
        let mut plans = Vec::with_capacity(names.len());
        for name in names {
            plans.push(self.delete_dataset(name, &all).await?);
        }
        Ok(Plan::of_all(plans))
    }

    async fn delete_dataset(&self, name: &str, all: &[v1::Job]) -> anyhow::Result<Plan> {
        let found = self.dataset(name).await?;
        let reads = |job: &&v1::Job| job.passes.iter().any(|pass| pass.dataset == name);
        if let Some(job) = all.iter().find(reads) {
            let text = format!("job {} reads dataset {name}", job.job);
            return Err(Failure::conflict(text).into());
        }
        let now = found.map_or("it does not exist".to_owned(), |found| {
            let samples = counted(found.spec.unwrap_or_default().samples, "sample");
            format!("{samples} in {}", counted(found.shards.into(), "shard"))
        });
        Ok(Plan::new(format!("delete dataset {name}; its data stays"), now))
    }

    async fn delete_jobs(&self, names: &[String]) -> anyhow::Result<Plan> {
        let mut plans = Vec::with_capacity(names.len());
        for name in names {
            plans.push(self.delete_job(name).await?);
        }
        Ok(Plan::of_all(plans))
    }

    async fn delete_job(&self, name: &str) -> anyhow::Result<Plan> {
        let found = jobs::ask(&self.client, &self.settings.namespace, Some(name)).await;
        let now = match found {
            Ok(found) => match found.first() {
                Some(job) => deletable(job)?,
                None => "it does not exist".to_owned(),
            },
            Err(error) if error.exit_code() == 4 => "it does not exist".to_owned(),
            Err(error) => return Err(error.into()),
        };
        Ok(Plan::new(format!("delete job {name} with its claims and its checkpoints"), now))
    }

    async fn abort_checkpoints(&self, args: &AbortArgs) -> anyhow::Result<Plan> {
        let mut plans = Vec::with_capacity(args.numbers.len());
        for number in &args.numbers {
            plans.push(self.abort_checkpoint(&args.job, *number).await?);
        }
        Ok(Plan::of_all(plans))
    }

    async fn abort_checkpoint(&self, job: &str, number: u32) -> anyhow::Result<Plan> {
        let found = checkpoint::find(&self.client, &self.settings.namespace, job, number).await?;
        if found.state() == v1::CheckpointState::Complete {
            let text = format!("checkpoint {number} of {job} is complete and cannot be aborted");
            return Err(Failure::conflict(text).into());
        }
        Ok(Plan::new(format!("abort checkpoint {number} of {job}"), reported(&found)))
    }

    async fn label_checkpoint(&self, args: &LabelArgs) -> anyhow::Result<Plan> {
        let (job, number) = (&args.job, args.number);
        let found = checkpoint::find(&self.client, &self.settings.namespace, job, number).await?;
        labeled(job, &found)?;
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

/// The state of a dataset to be created; an identical one is no change, a different one is refused.
fn same(found: &v1::Dataset, wanted: &v1::DatasetSpec) -> Result<String, Failure> {
    match found.spec.as_ref() == Some(wanted) {
        true => Ok("it exists with the same definition: no change".to_owned()),
        false => {
            Err(Failure::conflict(format!("there is already a different dataset {}", found.name)))
        }
    }
}

/// The state of a job to be deleted; one with trainers is refused.
fn deletable(job: &v1::Job) -> Result<String, Failure> {
    let present = job.trainers.iter().filter(|trainer| trainer.present).count();
    if present > 0 {
        let trainers = counted(present as u64, "trainer");
        let text = format!("job {} has {trainers}: stop its trainers first", job.job);
        return Err(Failure::conflict(text));
    }
    let (epochs, checkpoints) = (
        counted(job.passes.len() as u64, "epoch"),
        counted(job.checkpoints.into(), "complete checkpoint"),
    );
    Ok(format!("{epochs} in progress, {checkpoints}"))
}

/// Refuses to label, or to remove the label of, a checkpoint that was aborted or is being removed.
fn labeled(job: &str, found: &v1::Checkpoint) -> Result<(), Failure> {
    match found.state() {
        v1::CheckpointState::Going => {
            let text = format!(
                "checkpoint {} of {job} was aborted: its label cannot change",
                found.number
            );
            Err(Failure::conflict(text))
        }
        _ => Ok(()),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_the_cluster_would_refuse_ends_with_exit_code_5() {
        let spec = v1::DatasetSpec { uri: "u".into(), samples: 9, ..Default::default() };
        let there =
            v1::Dataset { name: "d".into(), spec: Some(spec.clone()), ..Default::default() };
        assert!(same(&there, &spec).is_ok());
        let other = v1::DatasetSpec { samples: 10, ..spec };
        let code = |refused: Failure| crate::rolloutctl::exit::code(&refused.into());
        assert_eq!(same(&there, &other).map_err(code), Err(5));

        let trainer = |present| v1::TrainerInfo { present, ..Default::default() };
        let job = |present| v1::Job { trainers: vec![trainer(present)], ..Default::default() };
        assert!(deletable(&job(false)).is_ok());
        assert_eq!(deletable(&job(true)).map_err(code), Err(5));

        let label = |state: v1::CheckpointState| {
            let found = v1::Checkpoint { number: 7, state: state.into(), ..Default::default() };
            labeled("sft", &found).map_err(code)
        };
        assert_eq!(label(v1::CheckpointState::Complete), Ok(()));
        assert_eq!(label(v1::CheckpointState::Open), Ok(()));
        assert_eq!(label(v1::CheckpointState::Going), Err(5));
    }
}
