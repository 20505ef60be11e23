//! `rolloutctl job shard list [JOB]`: the jobs with trainers, and their epochs in progress. Hidden; `job list` shows more.

use rollout_proto::{Client, ClientError, services, v1};
use serde::Serialize;

use super::summary::Job;
use crate::output::{self, Align, Report, Table, count};
use crate::rolloutctl::list_options::ListOptions;
use crate::rolloutctl::namespace::all_namespaces::AllNamespaces;
use crate::rolloutctl::read::read;
use crate::rolloutctl::unconfirmed::{self, SourcedAnswer, Unconfirmed};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which jobs.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Only this job
    job: Option<String>,
    #[command(flatten)]
    all_namespaces: AllNamespaces,
    #[command(flatten)]
    options: ListOptions,
}

#[derive(Serialize)]
struct JobList {
    jobs: Vec<Job>,
    /// None if the leader answered.
    unconfirmed: Option<Unconfirmed>,
    /// Whether it covers several namespaces.
    #[serde(skip)]
    all_namespaces: bool,
}

impl Report for JobList {
    const KIND: &'static str = "TrainingJobList";

    fn table(&self) -> String {
        let titles = [
            "JOB",
            "GENERATION",
            "STEP",
            "TRAINERS",
            "DATASET",
            "EPOCH",
            "FREE",
            "CLAIMED",
            "FINISHED",
            "SEALED",
        ];
        let namespace: &[&str] = if self.all_namespaces { &["NAMESPACE"] } else { &[] };
        let mut table = Table::new(namespace).and(&titles);
        for column in [1, 2, 3, 5, 6, 7, 8, 9] {
            table = table.align(namespace.len() + column, Align::Right);
        }
        let mut torn = String::new();
        for job in &self.jobs {
            let present = job.trainers.iter().filter(|trainer| trainer.present).count();
            let head = || {
                let namespace = self.all_namespaces.then(|| job.namespace.clone());
                let cells = [
                    job.job.clone(),
                    job.lineage.number.to_string(),
                    count(job.lineage.step),
                    format!("{present}/{}", job.trainers.len()),
                ];
                namespace.into_iter().chain(cells)
            };
            for pass in &job.passes {
                let shards = [pass.free, pass.claimed, pass.finished, pass.sealed];
                let epoch = [pass.dataset.clone(), pass.epoch.to_string()];
                let shards = shards.map(|shards| count(shards.into()));
                table.row(head().chain(epoch).chain(shards));
            }
            if job.passes.is_empty() {
                let nothing = std::iter::repeat_n("-".to_owned(), 6);
                table.row(head().chain(nothing));
            }
            if !job.lineage.torn.is_empty() {
                torn.push_str(&format!("{} needs recovery: {}\n", job.job, job.lineage.torn));
            }
        }
        format!("{table}{torn}{}", unconfirmed::line(self.unconfirmed.as_ref()))
    }
}

/// Asks the leader for every job, or for one.
pub(in crate::rolloutctl) async fn fetch(
    client: &Client,
    namespace: &str,
    job: Option<&str>,
) -> Result<Vec<v1::Job>, ClientError> {
    let job = job.unwrap_or_default().to_owned();
    let request = v1::ListJobsRequest { namespace: namespace.to_owned(), job };
    let answer = read(client, "list training jobs", &request, |channel, request| async move {
        services::shards(channel).list_jobs(request).await
    })
    .await?;
    Ok(answer.jobs)
}

impl Verb for ListArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let settings = globals.connect.settings()?;
        let client = settings.client(None)?;
        let job = self.job.unwrap_or_default();
        let namespace = self.all_namespaces.namespace(settings.namespace);
        let request = v1::ListJobsRequest { namespace, job };
        let call = async |channel, request| services::shards(channel).list_jobs(request).await;
        let sourced =
            unconfirmed::read_from_any(&client, "list training jobs", &request, call).await?;
        let SourcedAnswer { answer, unconfirmed } = sourced;
        let mut jobs: Vec<Job> = answer.jobs.into_iter().map(Job::from).collect();
        self.options.apply(&mut jobs)?;
        let all_namespaces = self.all_namespaces.is_requested();
        let list = JobList { jobs, unconfirmed, all_namespaces };
        output::emit(globals.format, &list)?;
        unconfirmed::end(list.unconfirmed.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::super::summary::sample;
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = JobList { jobs: vec![sample()], unconfirmed: None, all_namespaces: false };
        crate::golden::report("shard-list.txt", &report);
        let table = JobList { all_namespaces: true, ..report }.table();
        assert!(table.starts_with("NAMESPACE  JOB        GENERATION    STEP"), "{table}");
        assert!(table.contains("\ndefault    llama-sft           2  12,000"), "{table}");
    }
}
