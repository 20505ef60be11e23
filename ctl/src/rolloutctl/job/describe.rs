//! `rolloutctl job describe JOB...`: all of a training job, as of one moment.
//!
//! Invariant: one answer of one member has everything that is printed. Absent: single shards (`job shard describe`), and
//! the ranks of a checkpoint (`job checkpoint describe`).

use rollout_proto::{services, v1};
use serde::Serialize;

use super::summary::Job;
use crate::connect::ConnectArgs;
use crate::output::{self, Align, Format, Report, Table, bytes, count};
use crate::rolloutctl::barrier::summary::{self as barrier, Generation};
use crate::rolloutctl::checkpoint::summary::Checkpoint;
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::rendezvous::describe::{
    DepartedParticipant, Participant, departures, participants,
};
use crate::rolloutctl::rendezvous::summary::Rendezvous;
use crate::rolloutctl::run_summary::now_wall_ms;
use crate::rolloutctl::shard::summary::{DatasetEpoch, Job as Training, Trainer};
use crate::rolloutctl::unconfirmed::{self, SourcedAnswer, Unconfirmed};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which job.
#[derive(Debug, clap::Args)]
pub(crate) struct DescribeArgs {
    /// The job's name, or several
    #[arg(value_name = "JOB", required = true)]
    jobs: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Described {
    job: Job,
    participants: Vec<Participant>,
    gone: Vec<DepartedParticipant>,
    /// The latest generation of each.
    barriers: Vec<Generation>,
    /// Whether the job has more barriers than these.
    more_barriers: bool,
    /// Newest first.
    checkpoints: Vec<Checkpoint>,
    /// None if the leader answered.
    unconfirmed: Option<Unconfirmed>,
    #[serde(skip)]
    now_wall_ms: u64,
}

impl Report for Described {
    const KIND: &'static str = "Job";

    fn table(&self) -> String {
        let mut text = head(&self.job);
        text.push_str(&participants(&self.participants));
        text.push_str(&departures(&self.gone, self.now_wall_ms));
        if !self.barriers.is_empty() {
            text.push_str(&format!("\n{}", barrier::table(&self.barriers)));
        }
        if self.more_barriers {
            text.push_str(&format!(
                "more barriers: rolloutctl job barrier list {}\n",
                self.job.job
            ));
        }
        if let Some(training) = &self.job.training {
            text.push_str(&trainers(&training.trainers));
            text.push_str(&epochs(&training.passes));
        }
        text.push_str(&checkpoints(&self.checkpoints));
        text + &unconfirmed::line(self.unconfirmed.as_ref())
    }
}

/// The first lines: the state of each part.
fn head(job: &Job) -> String {
    let rendezvous = match &job.rendezvous {
        None => "none: no participant has used the job".to_owned(),
        Some(Rendezvous { state, round, joined, min, max, waiting, .. }) => {
            format!("{state}, round {round}, {joined} joined of {min} to {max}, {waiting} waiting")
        }
    };
    let mut text = format!("job          {}\nrendezvous   {rendezvous}\n", job.job);
    let Some(Training { lineage, checkpoints, keep_last, .. }) = &job.training else {
        return text + "generation   none: no trainer has joined the job\n";
    };
    let base = match lineage.checkpoint {
        0 => "without a checkpoint".to_owned(),
        number => format!("after checkpoint {number} of step {}", count(lineage.step)),
    };
    let kept = match keep_last {
        0 => "all are kept".to_owned(),
        newest => format!("the newest {newest} are kept"),
    };
    text.push_str(&format!(
        "generation   {}, {base}\ncheckpoints  {checkpoints} complete, {kept}\n",
        lineage.number
    ));
    if !lineage.torn.is_empty() {
        text.push_str(&format!("recovery     needed: {}\n", lineage.torn));
    }
    text
}

/// A table after an empty line; nothing if there are none.
fn trainers(all: &[Trainer]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["RANK", "TRAINER", "PRESENT", "HOST", "SHARDS"]);
    for column in [0, 4] {
        table = table.align(column, Align::Right);
    }
    for (rank, trainer) in all.iter().enumerate() {
        let present = if trainer.present { "yes" } else { "no" };
        table.row([
            rank.to_string(),
            trainer.name.clone(),
            present.to_owned(),
            trainer.host.clone(),
            trainer.shards.to_string(),
        ]);
    }
    format!("\n{table}")
}

/// The same, of the epochs in progress.
fn epochs(all: &[DatasetEpoch]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let titles = ["DATASET", "EPOCH", "SHARDS", "FREE", "CLAIMED", "FINISHED", "SEALED"];
    let mut table = Table::new(&titles);
    for column in 1..titles.len() {
        table = table.align(column, Align::Right);
    }
    for pass in all {
        let shards = [pass.shards, pass.free, pass.claimed, pass.finished, pass.sealed];
        let shards = shards.map(|shards| count(shards.into()));
        table.row([pass.dataset.clone(), pass.epoch.to_string()].into_iter().chain(shards));
    }
    format!("\n{table}")
}

/// The same, of checkpoints.
fn checkpoints(all: &[Checkpoint]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["CHECKPOINT", "STEP", "STATE", "GENERATION", "BYTES", "LABEL"]);
    for column in [0, 1, 3, 4] {
        table = table.align(column, Align::Right);
    }
    for checkpoint in all {
        table.row([
            checkpoint.number.to_string(),
            count(checkpoint.step),
            checkpoint.state.to_owned(),
            checkpoint.lineage.to_string(),
            bytes(checkpoint.bytes),
            checkpoint.label.clone(),
        ]);
    }
    format!("\n{table}")
}

fn described(
    answer: v1::JobDescribeResponse,
    unconfirmed: Option<Unconfirmed>,
    now_wall_ms: u64,
) -> Described {
    let mut participants: Vec<_> = answer.participants.into_iter().map(Participant::from).collect();
    if unconfirmed.is_some() {
        participants.iter_mut().for_each(|one| one.silent_seconds = None);
    }
    Described {
        job: answer.job.unwrap_or_default().into(),
        participants,
        gone: answer.gone.into_iter().map(DepartedParticipant::from).collect(),
        barriers: answer.barriers.into_iter().map(Generation::from).collect(),
        more_barriers: answer.more_barriers,
        checkpoints: answer.checkpoints.into_iter().rev().map(Checkpoint::from).collect(),
        unconfirmed,
        now_wall_ms,
    }
}

impl Verb for DescribeArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        for_each_name(self.jobs, globals.format, None, async |job, format| {
            one(&globals.connect, format, job).await
        })
        .await
    }
}

async fn one(connect: &ConnectArgs, format: Format, job: String) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let client = settings.client(None)?;
    let job = v1::JobName { namespace: settings.namespace, job };
    let request = v1::JobDescribeRequest { job: Some(job) };
    let call = async |channel, request| services::jobs(channel).describe(request).await;
    let asked = unconfirmed::read_from_any(&client, "describe job", &request, call).await?;
    let SourcedAnswer { answer, unconfirmed } = asked;
    let report = described(answer, unconfirmed, now_wall_ms());
    output::emit(format, &report)?;
    unconfirmed::end(report.unconfirmed.as_ref())
}

#[cfg(test)]
mod tests {
    use super::super::summary::{sample, sample_of_participants};
    use super::*;

    fn answer() -> v1::JobDescribeResponse {
        let participant = v1::ParticipantInfo {
            name: "node-0".into(),
            host: "h0".into(),
            standing: "joining".into(),
            keep_alive_ms: 15_000,
            silent_ms: 1200,
            ..v1::ParticipantInfo::default()
        };
        let gone = v1::GoneInfo {
            name: "node-1".into(),
            host: "h1".into(),
            why: "lost".into(),
            at_wall_ms: 85_000,
            heard_wall_ms: 70_000,
        };
        v1::JobDescribeResponse {
            participants: vec![participant],
            gone: vec![gone],
            barriers: vec![crate::rolloutctl::barrier::summary::sample()],
            ..v1::JobDescribeResponse::default()
        }
    }

    fn report(job: Job, checkpoints: Vec<Checkpoint>) -> Described {
        Described { job, checkpoints, ..described(answer(), None, 100_000) }
    }

    #[test]
    fn a_description_has_both_parts_of_a_job() {
        let checkpoints = vec![crate::rolloutctl::checkpoint::summary::sample()];
        let report = report(sample(), checkpoints);
        crate::golden::report("job-describe.txt", &report);
        let text = report.table();
        for line in [
            "rendezvous   forming, round 3, 2 joined of 2 to 4, 0 waiting\n",
            "generation   2, after checkpoint 4 of step 12,000\n",
            "checkpoints  5 complete, the newest 3 are kept\n",
            "node-1    lost  h1    15s ago  30s ago\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        for title in ["PARTICIPANT", "DEPARTED", "BARRIER", "RANK", "DATASET", "CHECKPOINT"] {
            assert!(text.contains(&format!("\n{title}")), "{title}: {text}");
        }
        let json = output::render(Format::Json, &report).unwrap();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["data"]["job"]["rendezvous"]["round"], "3");
        assert_eq!(value["data"]["job"]["training"]["lineage"]["number"], 2);
        assert_eq!(output::render(Format::Name, &report).unwrap(), "llama-sft\n");
    }

    #[test]
    fn a_description_that_no_leader_confirmed_has_no_silences() {
        let source = Unconfirmed { member: "c2".into(), index: 9 };
        let report = Described { job: sample(), ..described(answer(), Some(source), 100_000) };
        let text = report.table();
        assert!(text.contains("-       15s\n"), "{text}");
        let json = output::render(Format::Json, &report).unwrap();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["data"]["participants"][0]["silentSeconds"], serde_json::Value::Null);
        assert_eq!(value["data"]["participants"][0]["keepAliveSeconds"], 15.0);
    }

    #[test]
    fn a_description_says_which_part_a_job_does_not_have() {
        let text = report(sample_of_participants(), Vec::new()).table();
        assert!(text.contains("generation   none: no trainer has joined the job\n"), "{text}");
        let job = Job { rendezvous: None, ..sample() };
        let text = report(job, Vec::new()).table();
        assert!(text.contains("rendezvous   none: no participant has used the job\n"), "{text}");
    }
}
