//! `rolloutctl job checkpoint list [JOB]`, newest first.

use rollout_proto::{services, v1};
use serde::Serialize;

use super::summary::Checkpoint;
use crate::output::{self, Align, Report, Table, bytes, count};
use crate::rolloutctl::list_options::ListOptions;
use crate::rolloutctl::namespace::all_namespaces::AllNamespaces;
use crate::rolloutctl::unconfirmed::{self, SourcedAnswer, Unconfirmed};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which checkpoints.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Only those of this job
    job: Option<String>,
    #[command(flatten)]
    all_namespaces: AllNamespaces,
    #[command(flatten)]
    options: ListOptions,
}

#[derive(Serialize)]
struct CheckpointList {
    checkpoints: Vec<Checkpoint>,
    /// None if the leader answered.
    unconfirmed: Option<Unconfirmed>,
    /// Whether it covers several namespaces.
    #[serde(skip)]
    all_namespaces: bool,
}

impl Report for CheckpointList {
    const KIND: &'static str = "CheckpointList";

    fn table(&self) -> String {
        let titles = ["JOB", "NUMBER", "STEP", "STATE", "GENERATION", "BYTES", "LABEL"];
        let namespace: &[&str] = if self.all_namespaces { &["NAMESPACE"] } else { &[] };
        let mut table = Table::new(namespace).and(&titles);
        for column in [1, 2, 4, 5] {
            table = table.align(namespace.len() + column, Align::Right);
        }
        for checkpoint in &self.checkpoints {
            let namespace = self.all_namespaces.then(|| checkpoint.namespace.clone());
            let cells = [
                checkpoint.job.clone(),
                checkpoint.number.to_string(),
                count(checkpoint.step),
                checkpoint.state.to_owned(),
                checkpoint.lineage.to_string(),
                bytes(checkpoint.bytes),
                checkpoint.label.clone(),
            ];
            table.row(namespace.into_iter().chain(cells));
        }
        table.to_string() + &unconfirmed::line(self.unconfirmed.as_ref())
    }
}

impl Verb for ListArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let settings = globals.connect.settings()?;
        let client = settings.client(None)?;
        let namespace = self.all_namespaces.namespace(settings.namespace);
        let job = v1::JobName { namespace, job: self.job.unwrap_or_default() };
        let request = v1::ListCheckpointsRequest { job: Some(job) };
        let sourced = unconfirmed::read_from_any(
            &client,
            "list checkpoints",
            &request,
            async |channel, request| services::checkpoints(channel).list_checkpoints(request).await,
        );
        let SourcedAnswer { answer, unconfirmed } = sourced.await?;
        let mut checkpoints: Vec<Checkpoint> =
            answer.checkpoints.into_iter().map(Checkpoint::from).collect();
        newest_first(&mut checkpoints);
        self.options.apply(&mut checkpoints)?;
        let all_namespaces = self.all_namespaces.is_requested();
        let list = CheckpointList { checkpoints, unconfirmed, all_namespaces };
        output::emit(globals.format, &list)?;
        unconfirmed::end(list.unconfirmed.as_ref())
    }
}

/// Of checkpoints that began in the same millisecond, the higher number comes first.
fn newest_first(checkpoints: &mut [Checkpoint]) {
    checkpoints.sort_by_key(|c| std::cmp::Reverse((c.begun_wall_ms, c.number)));
}

#[cfg(test)]
mod tests {
    use super::super::summary::sample;
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let checkpoints = vec![sample()];
        let report = CheckpointList { checkpoints, unconfirmed: None, all_namespaces: false };
        crate::golden::report("checkpoint-list.txt", &report);
        let table = CheckpointList { all_namespaces: true, ..report }.table();
        assert!(table.starts_with("NAMESPACE  JOB        NUMBER    STEP"), "{table}");
        assert!(table.contains("\ndefault    llama-sft       4  12,000"), "{table}");
    }

    #[test]
    fn the_newest_checkpoint_comes_first_whatever_its_job() {
        let of = |job: &str, number, begun_wall_ms| Checkpoint {
            job: job.into(),
            number,
            begun_wall_ms,
            ..sample()
        };
        let mut all = vec![of("a", 1, 10), of("a", 2, 30), of("b", 1, 20), of("b", 2, 30)];
        all.swap(1, 3);
        newest_first(&mut all);
        let order: Vec<_> = all.iter().map(|c| (c.begun_wall_ms, c.number)).collect();
        assert_eq!(order, [(30, 2), (30, 2), (20, 1), (10, 1)]);
    }
}
