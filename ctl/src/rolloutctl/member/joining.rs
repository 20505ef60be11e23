//! Waits for a member that joins and reports progress on stderr. The wait is optional, because the cluster continues
//! by itself.

use std::time::{Duration, Instant};

use rollout_proto::Client;
use serde::Serialize;

use super::list;
use crate::output::Report;
use crate::rolloutctl::Failure;
use crate::stdio::print_note;

/// How often the state is polled.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often the progress is printed.
const TELL_EVERY: Duration = Duration::from_secs(2);

/// The state of an added member.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Joined {
    pub(super) member: String,
    pub(super) id: String,
    pub(super) replaced: Option<String>,
    /// `voter`, `learner` or, without waiting, `joining`.
    pub(super) state: String,
}

impl Report for Joined {
    const KIND: &'static str = "MemberJoined";

    fn table(&self) -> String {
        let place =
            self.replaced.as_ref().map_or(String::new(), |old| format!(" in place of {old}"));
        match self.state.as_str() {
            "joining" => format!(
                "member {} joins{place}; for its progress: rolloutctl member list\n",
                self.member
            ),
            state => format!("member {} is a {state}{place}\n", self.member),
        }
    }
}

/// Waits until the member of this ID is a voter or, if it is to stay a learner, has all of the log.
pub(super) async fn wait(
    client: &Client,
    (name, id): (&str, u64),
    learner_only: bool,
    limit: Option<Duration>,
) -> anyhow::Result<&'static str> {
    let (begun, mut reported_at, id) = (Instant::now(), None::<Instant>, id.to_string());
    loop {
        let list = list::fetch(client).await?;
        let Some(member) = list.members.iter().find(|member| member.id == id) else {
            return Err(
                Failure::failed(format!("member {name} was removed while it joined")).into()
            );
        };
        match (member.role.as_str(), member.behind.as_deref()) {
            ("learner", Some("0")) if learner_only => return Ok("learner"),
            ("learner", _) => {}
            _ => return Ok("voter"),
        }
        if reported_at.is_none_or(|at| at.elapsed() >= TELL_EVERY) {
            reported_at = Some(Instant::now());
            let lacks = member.lacks_entries();
            print_note(format_args!("member {name} joins: {lacks} behind"));
        }
        if limit.is_some_and(|limit| begun.elapsed() > limit) {
            let text = format!(
                "member {name} has not caught up yet; the cluster continues by itself: rolloutctl member list"
            );
            return Err(Failure::unavailable(text).into());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Joined {
            member: "c4".into(),
            id: "4".into(),
            replaced: Some("c1".into()),
            state: "voter".into(),
        };
        crate::golden::report("member-add.txt", &report);
    }
}
