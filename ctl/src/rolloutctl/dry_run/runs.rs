//! Plans of changes to runs.
//!
//! Invariant: a change that is invalid for a run that has ended, or whose rows have left the ledger, is refused here
//! too, with exit status 5. Deliberately absent: quotas and deadlines that a retry may exceed, and whether a
//! new deadline has passed; the cluster knows those.

use rollout_proto::{ClientError, services, v1};

use super::{Plan, Planned, Reader};
use crate::output::{count, counted};
use crate::rolloutctl::Failure;
use crate::rolloutctl::item::retry::RetryArgs as ItemRetryArgs;
use crate::rolloutctl::read::read;
use crate::rolloutctl::run::cancel::CancelArgs;
use crate::rolloutctl::run::delete::DeleteArgs;
use crate::rolloutctl::run::pause::PauseArgs;
use crate::rolloutctl::run::resume::ResumeArgs;
use crate::rolloutctl::run::retry::RetryArgs as RunRetryArgs;
use crate::rolloutctl::run::set_deadline::SetDeadlineArgs;
use crate::rolloutctl::run::summary::Run;

/// A change of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Cancel,
    /// Pausing or resuming it, or setting its deadline.
    Hold,
    /// Retrying failed rows.
    Retry,
    Delete,
}

impl Change {
    /// Why a run in this state does not accept the change.
    fn refusal(self, run: &Run) -> Option<String> {
        let (name, state) = (&run.name, run.state);
        match self {
            // Repeating it is not an error.
            Self::Cancel if state == "cancelled" => None,
            Self::Cancel | Self::Hold => {
                run.ended().then(|| format!("run {name} has ended: it is {state}"))
            }
            Self::Retry if run.sealed => {
                Some(format!("run {name} is sealed: its rows have left the ledger"))
            }
            // A finished run runs again.
            Self::Retry => (run.ended() && state != "finished")
                .then(|| format!("run {name} has ended: it is {state}")),
            Self::Delete => {
                (!run.ended()).then(|| format!("run {name} is {state}: cancel it first"))
            }
        }
    }
}

impl Planned for CancelArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let would = |name: &str| format!("cancel run {name}");
        reader.runs(&self.which.names, Change::Cancel, would).await
    }
}

impl Planned for PauseArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let would = |name: &str| format!("pause run {name}");
        reader.runs(&self.which.names, Change::Hold, would).await
    }
}

impl Planned for ResumeArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let would = |name: &str| format!("resume run {name}");
        reader.runs(&self.which.names, Change::Hold, would).await
    }
}

impl Planned for RunRetryArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let would = |name: &str| format!("retry all failed rows of run {name}");
        reader.runs(&self.names, Change::Retry, would).await
    }
}

impl Planned for SetDeadlineArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let verb = if self.deadline.is_some() { "set" } else { "remove" };
        let would = |name: &str| format!("{verb} the deadline of run {name}");
        reader.runs(&self.names, Change::Hold, would).await
    }
}

impl Planned for DeleteArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let would = |name: &str| format!("delete run {name} with its input, results and record");
        reader.runs(&self.names, Change::Delete, would).await
    }
}

impl Planned for ItemRetryArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let rows = counted(self.rows.len() as u64, "row");
        let would = format!("retry {rows} of run {}", self.run);
        reader.on_run(&self.run, Change::Retry, would).await
    }
}

impl Reader {
    async fn runs(
        &self,
        names: &[String],
        change: Change,
        would: impl Fn(&str) -> String,
    ) -> anyhow::Result<Plan> {
        let mut plans = Vec::new();
        for name in names {
            plans.push(self.on_run(name, change, would(name)).await?);
        }
        Ok(Plan::of_all(plans))
    }

    async fn on_run(&self, name: &str, change: Change, would: String) -> anyhow::Result<Plan> {
        let run = self.find_run(name).await?;
        match change.refusal(&run) {
            Some(why) => Err(Failure::conflict(why).into()),
            None => Ok(Plan::new(would, state(&run))),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rolloutctl::run::summary::sample;

    #[test]
    fn a_run_that_has_ended_takes_no_change_that_the_cluster_would_refuse() {
        let refused = |state: &'static str, sealed: bool| {
            let run = Run { state, sealed, ..sample() };
            [Change::Cancel, Change::Hold, Change::Retry, Change::Delete]
                .map(|change| change.refusal(&run).is_some())
        };
        for state in ["running", "paused"] {
            assert_eq!(refused(state, false), [false, false, false, true], "{state}");
        }
        assert_eq!(refused("finished", false), [true, true, false, false]);
        assert_eq!(refused("finished", true), [true, true, true, false]);
        assert_eq!(refused("cancelled", false), [false, true, true, false]);
        for state in ["deadline exceeded", "deleting"] {
            assert_eq!(refused(state, false), [true, true, true, false], "{state}");
        }
    }

    #[test]
    fn a_refusal_says_how_the_run_ended() {
        let run = Run { state: "finished", ..sample() };
        assert_eq!(
            Change::Hold.refusal(&run).unwrap(),
            "run nightly-eval has ended: it is finished"
        );
    }
}
