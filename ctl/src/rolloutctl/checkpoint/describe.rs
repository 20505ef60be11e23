//! `rolloutctl job checkpoint describe JOB [NUMBER]...`.

use rollout_proto::{services, v1};
use serde::Serialize;

use super::summary::Checkpoint;
use crate::connect::ConnectArgs;
use crate::output::{self, Align, Format, Report, Table, bytes, count};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::unconfirmed::{self, SourcedAnswer, Unconfirmed};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which checkpoint.
#[derive(Debug, clap::Args)]
pub(crate) struct DescribeArgs {
    /// The job's name
    job: String,
    /// Its number, or several; without one, the last complete one
    #[arg(value_name = "NUMBER")]
    numbers: Vec<u32>,
}

#[derive(Serialize)]
struct Described {
    checkpoint: Checkpoint,
    /// None if the leader answered.
    unconfirmed: Option<Unconfirmed>,
}

impl Report for Described {
    const KIND: &'static str = "Checkpoint";

    fn table(&self) -> String {
        let c = &self.checkpoint;
        let mut text = format!(
            "job         {}\nnumber      {}\nstep        {}\nstate       {}\ngeneration  {}, after checkpoint {}\nobjects     {}\n",
            c.job,
            c.number,
            count(c.step),
            c.state,
            c.lineage,
            c.parent,
            c.prefix,
        );
        if !c.label.is_empty() {
            text.push_str(&format!("label       {}\n", c.label));
        }
        let mut table = Table::new(&["RANK", "TRAINER", "REPORTED", "BYTES", "OBJECTS"]);
        for column in [0, 3, 4] {
            table = table.align(column, Align::Right);
        }
        for (number, rank) in c.ranks.iter().enumerate() {
            let reported = if rank.reported { "yes" } else { "no" };
            table.row([
                number.to_string(),
                rank.trainer.clone(),
                reported.to_owned(),
                bytes(rank.bytes),
                count(rank.objects.into()),
            ]);
        }
        format!("{text}{table}{}", unconfirmed::line(self.unconfirmed.as_ref()))
    }
}

/// The number that means the last complete one.
const LAST: u32 = 0;

impl Verb for DescribeArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let DescribeArgs { job, numbers } = self;
        let numbers = if numbers.is_empty() { vec![LAST] } else { numbers };
        for_each_name(numbers, globals.format, None, async |number, format| {
            one(&globals.connect, format, job.clone(), number).await
        })
        .await
    }
}

async fn one(
    connect: &ConnectArgs,
    format: Format,
    job: String,
    number: u32,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let client = settings.client(None)?;
    let job = v1::JobName { namespace: settings.namespace, job };
    let request = v1::DescribeCheckpointRequest { job: Some(job), number };
    let call =
        async |channel, request| services::checkpoints(channel).describe_checkpoint(request).await;
    let sourced =
        unconfirmed::read_from_any(&client, "describe checkpoint", &request, call).await?;
    let SourcedAnswer { answer, unconfirmed } = sourced;
    let checkpoint = answer.checkpoint.unwrap_or_default().into();
    let described = Described { checkpoint, unconfirmed };
    output::emit(format, &described)?;
    unconfirmed::end(described.unconfirmed.as_ref())
}

#[cfg(test)]
mod tests {
    use super::super::summary::sample;
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Described { checkpoint: sample(), unconfirmed: None };
        crate::golden::report("checkpoint-describe.txt", &report);
    }
}
