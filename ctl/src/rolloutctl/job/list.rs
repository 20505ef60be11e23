//! `rolloutctl job list [JOB]`: each training job once, with its participants, its trainers, and the epochs in progress.

use rollout_proto::{services, v1};
use serde::Serialize;

use super::summary::Job;
use crate::output::{self, Align, Report, Table, count};
use crate::rolloutctl::choose::ChooseArgs;
use crate::rolloutctl::namespace::all_namespaces::Everywhere;
use crate::rolloutctl::shard::summary::{Job as Training, Pass};
use crate::rolloutctl::unconfirmed::{self, SourcedAnswer, Unconfirmed};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which jobs.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Only this job
    job: Option<String>,
    #[command(flatten)]
    everywhere: Everywhere,
    #[command(flatten)]
    choose: ChooseArgs,
}

#[derive(Serialize)]
struct JobList {
    jobs: Vec<Job>,
    /// None if the leader answered.
    unconfirmed: Option<Unconfirmed>,
    /// Whether it covers several namespaces.
    #[serde(skip)]
    everywhere: bool,
}

/// The cells for a part that a job does not have.
fn nothing<const N: usize>() -> [String; N] {
    std::array::from_fn(|_| "-".to_owned())
}

/// The cells of columns `ROUND` to `TRAINERS`.
fn parts(job: &Job) -> impl Iterator<Item = String> + use<> {
    let rendezvous = job.rendezvous.as_ref();
    let rendezvous: [String; 2] = rendezvous
        .map_or_else(nothing, |one| [one.round.to_string(), one.participants.to_string()]);
    let training: [String; 3] = job.training.as_ref().map_or_else(nothing, |training| {
        let Training { lineage, trainers, .. } = training;
        let present = trainers.iter().filter(|trainer| trainer.present).count();
        let trainers = format!("{present}/{}", trainers.len());
        [lineage.number.to_string(), count(lineage.step), trainers]
    });
    rendezvous.into_iter().chain(training)
}

/// The cells of columns `DATASET` to `SEALED`.
fn epoch(pass: &Pass) -> [String; 6] {
    let [free, claimed, finished, sealed] =
        [pass.free, pass.claimed, pass.finished, pass.sealed].map(|shards| count(shards.into()));
    [pass.dataset.clone(), pass.epoch.to_string(), free, claimed, finished, sealed]
}

impl Report for JobList {
    const KIND: &'static str = "JobList";

    fn table(&self) -> String {
        let titles = [
            "JOB",
            "ROUND",
            "PARTICIPANTS",
            "LINEAGE",
            "STEP",
            "TRAINERS",
            "DATASET",
            "EPOCH",
            "FREE",
            "CLAIMED",
            "FINISHED",
            "SEALED",
        ];
        let namespace: &[&str] = if self.everywhere { &["NAMESPACE"] } else { &[] };
        let mut table = Table::new(namespace).and(&titles);
        for column in [1, 2, 3, 4, 5, 7, 8, 9, 10, 11] {
            table = table.align(namespace.len() + column, Align::Right);
        }
        let mut torn = String::new();
        for job in &self.jobs {
            let passes = job.training.iter().flat_map(|training| &training.passes);
            let mut epochs: Vec<[String; 6]> = passes.map(epoch).collect();
            if epochs.is_empty() {
                epochs.push(nothing());
            }
            for epoch in epochs {
                let namespace = self.everywhere.then(|| job.namespace.clone());
                let head = namespace.into_iter().chain([job.job.clone()]);
                table.row(head.chain(parts(job)).chain(epoch));
            }
            let lineage = job.training.as_ref().map(|training| &training.lineage);
            if let Some(lineage) = lineage.filter(|lineage| !lineage.torn.is_empty()) {
                torn.push_str(&format!("{} has to recover: {}\n", job.job, lineage.torn));
            }
        }
        format!("{table}{torn}{}", unconfirmed::line(self.unconfirmed.as_ref()))
    }
}

impl Verb for ListArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    /// Prints them.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let settings = globals.connect.settings()?;
        let client = settings.client(None)?;
        let job = self.job.unwrap_or_default();
        let namespace = self.everywhere.namespace(settings.namespace);
        let request = v1::JobListRequest { namespace, job };
        let call = async |channel, request| services::jobs(channel).list(request).await;
        let asked = unconfirmed::ask(&client, "list jobs", &request, call).await?;
        let SourcedAnswer { answer, unconfirmed } = asked;
        let mut jobs: Vec<Job> = answer.jobs.into_iter().map(Job::from).collect();
        self.choose.apply(&mut jobs)?;
        let everywhere = self.everywhere.is_asked_for();
        let list = JobList { jobs, unconfirmed, everywhere };
        output::emit(globals.format, &list)?;
        unconfirmed::end(list.unconfirmed.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::super::summary::{sample, sample_of_participants};
    use super::*;

    #[test]
    fn a_list_has_each_job_once_with_both_of_its_parts() {
        let jobs = vec![sample(), sample_of_participants()];
        let report = JobList { jobs, unconfirmed: None, everywhere: false };
        crate::golden::report("job-list.txt", &report);
        let table = report.table();
        let words: Vec<Vec<&str>> =
            table.lines().map(|line| line.split_whitespace().collect()).collect();
        let both =
            ["llama-sft", "3", "3", "2", "12,000", "1/2", "fineweb", "1", "90", "3", "5", "2"];
        assert_eq!(words[1], both);
        assert_eq!(words[2], ["eval", "3", "3", "-", "-", "-", "-", "-", "-", "-", "-", "-"]);
        let table = JobList { everywhere: true, ..report }.table();
        assert!(table.starts_with("NAMESPACE  JOB"), "{table}");
        assert!(table.contains("\ndefault    llama-sft"), "{table}");
    }

    #[test]
    fn a_job_that_must_recover_says_why() {
        let mut job = sample();
        let training = job.training.as_mut().expect("it has trainers");
        training.lineage.torn = "trainer t1 on h0 is gone".into();
        let list = JobList { jobs: vec![job], unconfirmed: None, everywhere: false };
        let table = list.table();
        assert!(table.ends_with("llama-sft has to recover: trainer t1 on h0 is gone\n"), "{table}");
    }
}
