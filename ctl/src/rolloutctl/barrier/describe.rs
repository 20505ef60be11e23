//! `rolloutctl job barrier describe JOB BARRIER...`: who has arrived, who is missing, and why it failed.

use rollout_proto::{services, v1};
use serde::Serialize;

use super::summary::{Generation, table};
use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::read::read;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which barrier.
#[derive(Debug, clap::Args)]
pub(crate) struct DescribeArgs {
    /// The job's name
    job: String,
    /// The barrier's name, or several
    #[arg(value_name = "BARRIER", required = true)]
    barriers: Vec<String>,
}

#[derive(Serialize)]
struct Description {
    /// The latest ones, in ascending order.
    generations: Vec<Generation>,
}

impl Report for Description {
    const KIND: &'static str = "Barrier";

    fn table(&self) -> String {
        let mut text = table(&self.generations).to_string();
        for one in &self.generations {
            text.push_str(&format!("\nGeneration {}\n", one.generation));
            for (title, names) in
                [("Arrived", &one.members), ("Missing", &one.missing), ("Without", &one.without)]
            {
                if !names.is_empty() {
                    text.push_str(&format!("  {title:<9}{}\n", names.join(" ")));
                }
            }
        }
        text
    }
}

impl Verb for DescribeArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let DescribeArgs { job, barriers } = self;
        for_each_name(barriers, globals.format, None, async |barrier, format| {
            one(&globals.connect, format, job.clone(), barrier).await
        })
        .await
    }
}

async fn one(
    connect: &ConnectArgs,
    format: Format,
    job: String,
    barrier: String,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let client = settings.client(None)?;
    let job = v1::JobName { namespace: settings.namespace, job };
    let barrier = v1::BarrierName { job: Some(job), barrier };
    let request = v1::BarrierDescribeRequest { barrier: Some(barrier) };
    let answer = read(&client, "describe barrier", &request, |channel, request| async move {
        services::barrier(channel).describe(request).await
    })
    .await?;
    let generations = answer.generations.into_iter().map(Generation::from).collect();
    output::emit(format, &Description { generations })
}

#[cfg(test)]
mod tests {
    use super::super::summary::sample;
    use super::*;

    #[test]
    fn a_description_tells_who_is_waited_for_and_why_a_generation_failed() {
        let why = v1::BarrierFailed {
            why: "lost".into(),
            participant: "w2".into(),
            host: "h2".into(),
            message: "w2 on h2 was silent for 15 s".into(),
            ..v1::BarrierFailed::default()
        };
        let failed = v1::BarrierInfo {
            generation: 6,
            state: "failed".into(),
            timeout_in_ms: 0,
            failed: Some(why),
            ..sample()
        };
        let report = Description { generations: vec![failed.into(), sample().into()] };
        let text = report.table();
        assert!(text.contains("fail    -          w2 on h2 was silent for 15 s\n"), "{text}");
        assert!(text.contains("waiting        2   3  fail    1m 1s\n"), "{text}");
        assert!(text.contains("Generation 7\n  Arrived  w1 w0\n  Missing  w2\n"), "{text}");
        let json = output::render(Format::Json, &report).unwrap();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["data"]["generations"][0]["failure"]["participant"], "w2");
        assert_eq!(value["data"]["generations"][1]["generation"], "7");
    }

    #[test]
    fn output_matches_the_golden_file() {
        let report = Description { generations: vec![sample().into()] };
        crate::golden::report("barrier-describe.txt", &report);
    }
}
