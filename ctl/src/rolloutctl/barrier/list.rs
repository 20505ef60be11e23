//! `rolloutctl job barrier list JOB`: the latest generation of each barrier of a job.

use rollout_proto::{services, v1};
use serde::Serialize;

use super::summary::{Generation, table};
use crate::output::{self, Report};
use crate::rolloutctl::list_options::ListOptions;
use crate::rolloutctl::read::read;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Of which job.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// The job's name
    job: String,
    #[command(flatten)]
    options: ListOptions,
}

#[derive(Serialize)]
struct BarrierList {
    barriers: Vec<Generation>,
}

impl Report for BarrierList {
    const KIND: &'static str = "BarrierList";

    fn table(&self) -> String {
        table(&self.barriers).to_string()
    }
}

impl Verb for ListArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    /// Prints the barriers of a job.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let settings = globals.connect.settings()?;
        let client = settings.client(None)?;
        let job = v1::JobName { namespace: settings.namespace.clone(), job: self.job };
        let mut barriers: Vec<Generation> = Vec::new();
        loop {
            let after = barriers.last().map(|one| one.barrier.clone()).unwrap_or_default();
            let request = v1::BarrierListRequest { job: Some(job.clone()), after, limit: 0 };
            let answer = read(&client, "list barriers", &request, |channel, request| async move {
                services::barrier(channel).list(request).await
            })
            .await?;
            let none = answer.barriers.is_empty();
            barriers.extend(answer.barriers.into_iter().map(Generation::from));
            if none || !answer.more {
                break;
            }
        }
        self.options.apply(&mut barriers)?;
        output::emit(globals.format, &BarrierList { barriers })
    }
}

#[cfg(test)]
mod tests {
    use super::super::summary::sample;
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = BarrierList { barriers: vec![sample().into()] };
        crate::golden::report("barrier-list.txt", &report);
    }
}
