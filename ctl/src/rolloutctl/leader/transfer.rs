//! `rolloutctl leader transfer [NAME]`: transfers leadership to another member.

use std::time::{Duration, Instant};

use rollout_proto::{Client, ClientError, services, v1};
use serde::Serialize;

use crate::completer::{self, Names};
use crate::output::{self, Report};
use crate::rolloutctl::dry_run::{Plan, Planned, Reader, client_plan};
use crate::rolloutctl::member::list;
use crate::rolloutctl::member::plan_checks::{check_pace, check_successor};
use crate::rolloutctl::verb::{Globals, Kind, Verb};
use crate::rolloutctl::{Failure, status};

/// How long the successor may take to open dispatch.
const OPENS_WITHIN: Duration = Duration::from_secs(10);
/// How often the state is polled.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// To whom.
#[derive(Debug, clap::Args)]
pub(crate) struct TransferArgs {
    /// New leader [default: the member with the longest log]
    #[arg(add = completer::of(Names::Members))]
    pub(in crate::rolloutctl) name: Option<String>,
    /// Transfer only if this member leads, so a repeat of a transfer with unknown outcome has no
    /// further effect
    #[arg(long, value_name = "NAME", add = completer::of(Names::Members))]
    from: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Transferred {
    from: String,
    leader: String,
}

impl Report for Transferred {
    const KIND: &'static str = "LeaderTransferred";

    fn table(&self) -> String {
        if self.from == self.leader {
            return format!("{} leads already\n", self.leader);
        }
        format!("{} leads, after {}\n", self.leader, self.from)
    }
}

impl Verb for TransferArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: false, confirm: false, dry_run: client_plan };

    /// Transfers leadership, and waits until the successor dispatches.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let client = globals.connect.client(None)?;
        let from = match (self.from, &self.name) {
            (Some(from), _) => Some(from),
            // A repeated request goes to the same successor.
            (None, Some(_)) => None,
            (None, None) => status::survey(&client).await.leader,
        };
        let from = from.unwrap_or_default();
        let to = self.name.clone().unwrap_or_default();
        let request = v1::TransferLeaderRequest { to, from: from.clone() };
        let answer = client
            .with_leader("transfer leader", |channel| {
                let request = request.clone();
                async move { services::members(channel).transfer_leader(request).await }
            })
            .await
            .map_err(|error| again(error, &from))?;
        let leader = successor(&client, &answer.from, self.name.as_deref()).await?;
        output::emit(globals.format, &Transferred { from: answer.from, leader })
    }
}

impl Planned for TransferArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let list = list::fetch(&reader.client).await?;
        let leader = list.leader.clone().unwrap_or_else(|| "no member".to_owned());
        let would = match self.name.as_deref() {
            None => {
                check_successor(&list.members, &status::survey(&reader.client).await)?;
                "transfer leadership to the member with the longest log".to_owned()
            }
            Some(name) => {
                let Some(member) = list.members.iter().find(|member| member.name == name) else {
                    return Err(Failure::not_found(format!("there is no member {name:?}")).into());
                };
                if member.role == "learner" {
                    let text = format!("{name} is a learner: it has no vote, and cannot lead");
                    return Err(Failure::conflict(text).into());
                }
                check_pace(member, &status::survey(&reader.client).await)?;
                format!("transfer leadership to {name}, {} behind", member.lacks_entries())
            }
        };
        Ok(Plan::new(would, format!("{leader} leads")))
    }
}

/// An error that, if its outcome is unknown, says how to repeat the request.
fn again(error: ClientError, from: &str) -> anyhow::Error {
    let unknown = error.exit_code() == 8 && !from.is_empty();
    let error = anyhow::Error::from(error);
    match unknown {
        true => error.context(format!("repeat it with --from {from}")),
        false => error,
    }
}

async fn successor(client: &Client, from: &str, wanted: Option<&str>) -> anyhow::Result<String> {
    let begun = Instant::now();
    loop {
        let survey = status::survey(client).await;
        match survey.leader {
            Some(leader) if wanted.map_or(leader != from, |wanted| leader == wanted) => {
                return Ok(leader);
            }
            Some(leader) if leader != from => {
                let text = format!("{leader} leads now, not the named member");
                return Err(Failure::failed(text).into());
            }
            _ if begun.elapsed() > OPENS_WITHIN => {
                let text = format!("no successor of {from} has opened dispatch yet");
                return Err(Failure::unavailable(text).into());
            }
            _ => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Transferred { from: "c1".into(), leader: "c2".into() };
        crate::golden::report("leader-transfer.txt", &report);
    }
}
