//! `rolloutctl job list [JOB]`: each training job once, with its participants, its trainers, and the epochs in progress.

use std::cmp::Reverse;

use rollout_proto::{Channel, services, v1};
use serde::Serialize;
use tonic::{Request, Response, Status};

use crate::output::{self, Align, Report, Table, count};
use crate::rolloutctl::list_options::ListOptions;
use crate::rolloutctl::namespace::all_namespaces::AllNamespaces;
use crate::rolloutctl::rendezvous::summary::Rendezvous;
use crate::rolloutctl::shard::summary::{DatasetEpoch, Generation, Job as Training};
use crate::rolloutctl::unconfirmed::{self, SourcedAnswer, Unconfirmed};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// The call, in errors.
const WHAT: &str = "list jobs";

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

/// A job with at least one of its parts.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Job {
    namespace: String,
    job: String,
    /// None if no participant has used it.
    rendezvous: Option<Rendezvous>,
    /// None if no trainer has joined it.
    training: Option<TrainingSummary>,
    /// A newer job has a higher one.
    #[serde(skip)]
    order: u64,
}

/// A training without its trainers, which the answer only counts.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TrainingSummary {
    lineage: Generation,
    trainers: u32,
    trainers_present: u32,
    passes: Vec<DatasetEpoch>,
    checkpoints: u32,
    keep_last: u32,
}

impl From<v1::WholeJob> for Job {
    fn from(wire: v1::WholeJob) -> Self {
        let (trainers, trainers_present) = (wire.trainers, wire.trainers_present);
        let training = wire.training.map(|training| {
            let training = Training::from(training);
            let Training { lineage, passes, checkpoints, keep_last, .. } = training;
            TrainingSummary { lineage, trainers, trainers_present, passes, checkpoints, keep_last }
        });
        let v1::JobName { namespace, job } = wire.name.unwrap_or_default();
        let rendezvous = wire.rendezvous.map(Rendezvous::from);
        Self { namespace, job, rendezvous, training, order: wire.order }
    }
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
        let TrainingSummary { lineage, trainers, trainers_present, .. } = training;
        let trainers = format!("{trainers_present}/{trainers}");
        [lineage.number.to_string(), count(lineage.step), trainers]
    });
    rendezvous.into_iter().chain(training)
}

/// The cells of columns `DATASET` to `SEALED`.
fn epoch(pass: &DatasetEpoch) -> [String; 6] {
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
                let namespace = self.all_namespaces.then(|| job.namespace.clone());
                let head = namespace.into_iter().chain([job.job.clone()]);
                table.row(head.chain(parts(job)).chain(epoch));
            }
            let lineage = job.training.as_ref().map(|training| &training.lineage);
            if let Some(lineage) = lineage.filter(|lineage| !lineage.torn.is_empty()) {
                torn.push_str(&format!("{} needs recovery: {}\n", job.job, lineage.torn));
            }
        }
        format!("{table}{torn}{}", unconfirmed::line(self.unconfirmed.as_ref()))
    }
}

/// Asks for a page of jobs.
async fn list(
    channel: Channel,
    request: Request<v1::JobListRequest>,
) -> Result<Response<v1::JobListResponse>, Status> {
    services::jobs(channel).list(request).await
}

/// The request for the page after these jobs; `None` if there are no more.
fn next_page(
    request: &v1::JobListRequest,
    answer: &v1::JobListResponse,
) -> Option<v1::JobListRequest> {
    let last = answer.jobs.last().filter(|_| answer.more)?;
    let v1::JobName { namespace, job } = last.name.clone()?;
    Some(v1::JobListRequest { after: job, after_namespace: namespace, ..request.clone() })
}

/// Sorts jobs, which come by name.
fn newest_first(jobs: &mut [Job]) {
    jobs.sort_by_key(|job| Reverse(job.order));
}

impl Verb for ListArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let settings = globals.connect.settings()?;
        let client = settings.client(None)?;
        let job = self.job.unwrap_or_default();
        let namespace = self.all_namespaces.namespace(settings.namespace);
        let mut request = v1::JobListRequest { namespace, job, ..Default::default() };
        let asked = unconfirmed::read_from_any(&client, WHAT, &request, list).await?;
        let SourcedAnswer { mut answer, unconfirmed } = asked;
        let mut jobs: Vec<Job> = Vec::new();
        loop {
            let next = next_page(&request, &answer);
            jobs.extend(answer.jobs.into_iter().map(Job::from));
            let Some(next) = next else { break };
            request = next;
            let from = unconfirmed.as_ref();
            answer = unconfirmed::read_from(&client, WHAT, &request, from, list).await?;
        }
        newest_first(&mut jobs);
        self.options.apply(&mut jobs)?;
        let all_namespaces = self.all_namespaces.is_requested();
        let list = JobList { jobs, unconfirmed, all_namespaces };
        output::emit(globals.format, &list)?;
        unconfirmed::end(list.unconfirmed.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rolloutctl::rendezvous::summary::sample as rendezvous;
    use crate::rolloutctl::shard::summary::pass;

    /// A job with both parts.
    fn sample() -> Job {
        let step = 12_000;
        let training = TrainingSummary {
            lineage: Generation { number: 2, round: 3, checkpoint: 4, step, torn: String::new() },
            trainers: 2,
            trainers_present: 1,
            passes: vec![pass()],
            checkpoints: 5,
            keep_last: 3,
        };
        let (namespace, job) = ("default".into(), "llama-sft".into());
        let (rendezvous, training) = (Some(rendezvous().into()), Some(training));
        Job { namespace, job, rendezvous, training, order: 7 }
    }

    /// A job without trainers.
    fn sample_of_participants() -> Job {
        Job { job: "eval".into(), training: None, order: 3, ..sample() }
    }

    #[test]
    fn pages_follow_each_other_by_name_and_the_newest_job_is_shown_first() {
        let job = |name: &str, order| {
            let name = v1::JobName { namespace: "default".into(), job: name.into() };
            v1::WholeJob { name: Some(name), order, ..Default::default() }
        };
        let asked = v1::JobListRequest { namespace: "default".into(), ..Default::default() };
        let jobs = vec![job("a", 4), job("b", 9)];
        let mut answer = v1::JobListResponse { jobs, more: true, ..Default::default() };
        let next = next_page(&asked, &answer).expect("there are more");
        assert_eq!((&*next.after, &*next.after_namespace), ("b", "default"));
        assert_eq!(next.namespace, "default");
        answer.more = false;
        assert_eq!(next_page(&next, &answer), None);
        let mut jobs: Vec<Job> = answer.jobs.into_iter().map(Job::from).collect();
        jobs.push(job("c", 5).into());
        newest_first(&mut jobs);
        let names: Vec<&str> = jobs.iter().map(|job| job.job.as_str()).collect();
        assert_eq!(names, ["b", "c", "a"]);
    }

    #[test]
    fn a_list_has_the_counts_of_the_answer() {
        let wire = v1::WholeJob {
            training: Some(v1::Job::default()),
            trainers: 3,
            trainers_present: 2,
            ..Default::default()
        };
        let training = Job::from(wire).training.expect("a training");
        assert_eq!((training.trainers_present, training.trainers), (2, 3));
    }

    #[test]
    fn a_list_has_each_job_once_with_both_of_its_parts() {
        let jobs = vec![sample(), sample_of_participants()];
        let report = JobList { jobs, unconfirmed: None, all_namespaces: false };
        crate::golden::report("job-list.txt", &report);
        let table = report.table();
        let words: Vec<Vec<&str>> =
            table.lines().map(|line| line.split_whitespace().collect()).collect();
        let both =
            ["llama-sft", "3", "3", "2", "12,000", "1/2", "fineweb", "1", "90", "3", "5", "2"];
        assert_eq!(words[1], both);
        assert_eq!(words[2], ["eval", "3", "3", "-", "-", "-", "-", "-", "-", "-", "-", "-"]);
        let table = JobList { all_namespaces: true, ..report }.table();
        assert!(table.starts_with("NAMESPACE  JOB"), "{table}");
        assert!(table.contains("\ndefault    llama-sft"), "{table}");
    }

    #[test]
    fn a_job_that_must_recover_says_why() {
        let mut job = sample();
        let training = job.training.as_mut().expect("it has trainers");
        training.lineage.torn = "trainer t1 on h0 is gone".into();
        let list = JobList { jobs: vec![job], unconfirmed: None, all_namespaces: false };
        let table = list.table();
        assert!(table.ends_with("llama-sft needs recovery: trainer t1 on h0 is gone\n"), "{table}");
    }
}
