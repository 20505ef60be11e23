//! `rolloutctl checkpoint describe JOB [NUMBER]`.

use serde::Serialize;

use super::shown::Checkpoint;
use crate::connect::ConnectArgs;
use crate::output::{self, Align, Format, Report, Table, bytes, count};

/// Which checkpoint.
#[derive(Debug, clap::Args)]
pub(crate) struct DescribeArgs {
    /// The job's name
    job: String,
    /// Its number; without one, the last complete one
    #[arg(default_value_t = 0, hide_default_value = true)]
    number: u32,
}

#[derive(Serialize)]
struct Described {
    checkpoint: Checkpoint,
}

impl Report for Described {
    const KIND: &'static str = "Checkpoint";

    fn table(&self) -> String {
        let c = &self.checkpoint;
        let mut text = format!(
            "job      {}\nnumber   {}\nstep     {}\nstate    {}\nlineage  {}, after checkpoint {}\nobjects  {}\n",
            c.job,
            c.number,
            count(c.step),
            c.state,
            c.lineage,
            c.parent,
            c.prefix,
        );
        if !c.label.is_empty() {
            text.push_str(&format!("label    {}\n", c.label));
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
        format!("{text}{table}")
    }
}

/// Prints it.
pub(crate) async fn run(
    connect: &ConnectArgs,
    format: Format,
    args: DescribeArgs,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let client = settings.client(None)?;
    let found = super::find(&client, &settings.namespace, &args.job, args.number).await?;
    output::emit(format, &Described { checkpoint: found.into() })
}

#[cfg(test)]
mod tests {
    use super::super::shown::sample;
    use super::*;

    #[test]
    fn its_output_is_the_one_that_is_kept() {
        let report = Described { checkpoint: sample() };
        crate::snapshots::report("checkpoint-describe.txt", &report);
    }
}
