//! What the plans of changes to runs show.
//!
//! Absent: whether the run's state allows the change, which the leader decides.

use rollout_proto::{ClientError, services, v1};

use super::{Plan, Reader};
use crate::output::{count, counted};
use crate::rolloutctl::read::read;
use crate::rolloutctl::run_summary::Run;

impl Reader {
    /// Plans a change of each run. `would` has the words for a run's name.
    pub(in crate::rolloutctl) async fn runs(
        &self,
        names: &[String],
        would: impl Fn(&str) -> String,
    ) -> anyhow::Result<Plan> {
        Plan::of_each(names, async |name| self.run(name, would(name)).await).await
    }

    /// Plans a change of one run.
    pub(in crate::rolloutctl) async fn run(
        &self,
        name: &str,
        would: String,
    ) -> anyhow::Result<Plan> {
        Ok(Plan::new(would, state(&self.find_run(name).await?)))
    }

    async fn find_run(&self, name: &str) -> Result<Run, ClientError> {
        let namespace = self.settings.namespace.clone();
        let request = v1::DescribeRunRequest { namespace, name: name.to_owned(), run: 0 };
        let answer = read(&self.client, "describe run", &request, |channel, request| async move {
            services::runs(channel).describe_run(request).await
        })
        .await?;
        Ok(answer.run.unwrap_or_default().into())
    }
}

fn state(run: &Run) -> String {
    let counts = &run.counts;
    format!(
        "{}; {} of {} done, {} failed, {} running",
        run.state,
        count(counts.done),
        counted(counts.rows, "row"),
        count(counts.failed),
        count(counts.running)
    )
}
