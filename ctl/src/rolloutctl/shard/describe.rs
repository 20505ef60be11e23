//! `rolloutctl job shard describe JOB... --dataset D --epoch E`: the shards of one epoch.

use rollout_proto::{services, v1};
use serde::Serialize;

use super::summary::DatasetEpoch;
use crate::connect::ConnectArgs;
use crate::output::{self, Align, Format, Report, Table, count, counted, u64_string};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::unconfirmed::{self, SourcedAnswer, Unconfirmed};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// The call, in errors.
const WHAT: &str = "describe shards";
/// Shards per request.
const PAGE: u32 = 1024;

/// Which epoch.
#[derive(Debug, clap::Args)]
pub(crate) struct DescribeArgs {
    /// The job's name, or several that read the dataset
    #[arg(value_name = "JOB", required = true)]
    jobs: Vec<String>,
    /// The dataset's name
    #[arg(long)]
    dataset: String,
    /// The epoch
    #[arg(long, default_value_t = 0)]
    epoch: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shard {
    shard: u32,
    state: &'static str,
    position: u32,
    preferred: String,
    holder: String,
    #[serde(serialize_with = "u64_string")]
    first_sample: u64,
    #[serde(serialize_with = "u64_string")]
    end_sample: u64,
    #[serde(serialize_with = "u64_string")]
    done_sample: u64,
    #[serde(serialize_with = "u64_string")]
    sealed_sample: u64,
}

impl From<v1::Shard> for Shard {
    fn from(shard: v1::Shard) -> Self {
        let state = match shard.state() {
            v1::ShardState::Unspecified => "-",
            v1::ShardState::Free => "free",
            v1::ShardState::Claimed => "claimed",
            v1::ShardState::Finished => "finished",
            v1::ShardState::Sealed => "sealed",
        };
        Self {
            shard: shard.shard,
            state,
            position: shard.position,
            preferred: shard.preferred,
            holder: shard.holder,
            first_sample: shard.first_sample,
            end_sample: shard.end_sample,
            done_sample: shard.done_sample,
            sealed_sample: shard.sealed_sample,
        }
    }
}

#[derive(Serialize)]
struct Described {
    job: String,
    /// None if the epoch has not begun.
    pass: Option<DatasetEpoch>,
    shards: Vec<Shard>,
    /// None if the leader answered.
    unconfirmed: Option<Unconfirmed>,
}

impl Report for Described {
    const KIND: &'static str = "Shards";

    fn table(&self) -> String {
        let end = unconfirmed::line(self.unconfirmed.as_ref());
        let Some(pass) = &self.pass else {
            return format!("{}: no trainer has begun this epoch\n{end}", self.job);
        };
        let titles =
            ["SHARD", "STATE", "PLACE", "SAMPLES", "DONE", "SEALED", "PREFERRED", "HOLDER"];
        let mut table = Table::new(&titles);
        for column in [0, 2, 3, 4, 5] {
            table = table.align(column, Align::Right);
        }
        for shard in &self.shards {
            let from = shard.first_sample;
            let or_none = |name: &String| if name.is_empty() { "-".into() } else { name.clone() };
            table.row([
                shard.shard.to_string(),
                shard.state.to_owned(),
                shard.position.to_string(),
                count(shard.end_sample - from),
                count(shard.done_sample - from),
                count(shard.sealed_sample - from),
                or_none(&shard.preferred),
                or_none(&shard.holder),
            ]);
        }
        let whole =
            if pass.sealed == pass.shards { ": all of it is in the last checkpoint" } else { "" };
        let (finished, shards) = (pass.finished, counted(pass.shards.into(), "shard"));
        let (job, sealed) = (&self.job, pass.sealed);
        format!("{table}{job}: {finished} of {shards} finished, {sealed} sealed{whole}\n{end}")
    }
}

impl Verb for DescribeArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    /// Prints the shards of each job.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let DescribeArgs { jobs, dataset, epoch } = self;
        for_each_name(jobs, globals.format, None, async |job, format| {
            one(&globals.connect, format, job, (&*dataset, epoch)).await
        })
        .await
    }
}

async fn one(
    connect: &ConnectArgs,
    format: Format,
    job: String,
    (dataset, epoch): (&str, u64),
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let client = settings.client(None)?;
    let name = v1::JobName { namespace: settings.namespace, job: job.clone() };
    let page = |first: usize| v1::DescribeShardsRequest {
        job: Some(name.clone()),
        dataset: dataset.to_owned(),
        epoch,
        first: first as u32,
        limit: PAGE,
    };
    let call = async |channel, request| services::shards(channel).describe_shards(request).await;
    let SourcedAnswer { mut answer, unconfirmed } =
        unconfirmed::read_from_any(&client, WHAT, &page(0), call).await?;
    let mut described = Described { job, pass: None, shards: Vec::new(), unconfirmed };
    loop {
        described.pass = answer.pass.map(DatasetEpoch::from);
        let last = answer.shards.len() < PAGE as usize;
        described.shards.extend(answer.shards.into_iter().map(Shard::from));
        if last {
            break;
        }
        let (next, from) = (page(described.shards.len()), described.unconfirmed.as_ref());
        answer = unconfirmed::read_from(&client, WHAT, &next, from, call).await?;
    }
    output::emit(format, &described)?;
    unconfirmed::end(described.unconfirmed.as_ref())
}

#[cfg(test)]
mod tests {
    use super::super::summary::pass;
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let shard = Shard {
            shard: 7,
            state: "claimed",
            position: 12,
            preferred: "t0".into(),
            holder: "t1".into(),
            first_sample: 70_000,
            end_sample: 80_000,
            done_sample: 75_000,
            sealed_sample: 72_000,
        };
        let report = Described {
            job: "llama-sft".into(),
            pass: Some(pass()),
            shards: vec![shard],
            unconfirmed: None,
        };
        crate::golden::report("shard-describe.txt", &report);
    }
}
