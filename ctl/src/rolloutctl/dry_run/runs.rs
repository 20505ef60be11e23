//! Plans of changes to runs.
//!
//! Deliberately absent: whether the run's state allows the change, which the leader decides.

use rollout_proto::{ClientError, services, v1};

use super::{Plan, Planned, Reader};
use crate::output::{count, counted};
use crate::rolloutctl::item::retry::RetryArgs as ItemRetryArgs;
use crate::rolloutctl::read::read;
use crate::rolloutctl::run::cancel::CancelArgs;
use crate::rolloutctl::run::delete::DeleteArgs;
use crate::rolloutctl::run::pause::PauseArgs;
use crate::rolloutctl::run::resume::ResumeArgs;
use crate::rolloutctl::run::retry::RetryArgs as RunRetryArgs;
use crate::rolloutctl::run::set_deadline::SetDeadlineArgs;
use crate::rolloutctl::run::summary::Run;

impl Planned for CancelArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let would = |name: &str| format!("cancel run {name}");
        reader.runs(&self.which.names, would).await
    }
}

impl Planned for PauseArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let would = |name: &str| format!("pause run {name}");
        reader.runs(&self.which.names, would).await
    }
}

impl Planned for ResumeArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let would = |name: &str| format!("resume run {name}");
        reader.runs(&self.which.names, would).await
    }
}

impl Planned for RunRetryArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let would = |name: &str| format!("retry all failed rows of run {name}");
        reader.runs(&self.names, would).await
    }
}

impl Planned for SetDeadlineArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let verb = if self.deadline.is_some() { "set" } else { "remove" };
        let would = |name: &str| format!("{verb} the deadline of run {name}");
        reader.runs(&self.names, would).await
    }
}

impl Planned for DeleteArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let would = |name: &str| format!("delete run {name} with its input, results and record");
        reader.runs(&self.names, would).await
    }
}

impl Planned for ItemRetryArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let rows = counted(self.rows.len() as u64, "row");
        let would = format!("retry {rows} of run {}", self.run);
        reader.run(&self.run, would).await
    }
}

impl Reader {
    async fn runs(&self, names: &[String], would: impl Fn(&str) -> String) -> anyhow::Result<Plan> {
        Plan::of_each(names, async |name| self.run(name, would(name)).await).await
    }

    async fn run(&self, name: &str, would: String) -> anyhow::Result<Plan> {
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
