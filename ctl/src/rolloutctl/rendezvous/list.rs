//! `rolloutctl rendezvous list`: the training jobs of the namespace.

use rollout_proto::{CallOptions, services, v1};
use serde::Serialize;

use super::summary::{Rendezvous, table};
use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report};
use crate::rolloutctl::choose::ChooseArgs;

#[derive(Serialize)]
struct RendezvousList {
    rendezvous: Vec<Rendezvous>,
}

impl Report for RendezvousList {
    const KIND: &'static str = "RendezvousList";

    fn table(&self) -> String {
        table(&self.rendezvous).to_string()
    }
}

/// Prints every job of the namespace.
pub(crate) async fn run(
    connect: &ConnectArgs,
    format: Format,
    choose: ChooseArgs,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let client = settings.client(None)?;
    let mut rendezvous: Vec<Rendezvous> = Vec::new();
    loop {
        let after = rendezvous.last().map(|one| one.job.clone()).unwrap_or_default();
        let namespace = settings.namespace.clone();
        let request = v1::RendezvousListRequest { namespace, after, limit: 0 };
        let answer = client
            .with_leader_opts("list rendezvous", CallOptions::read(), |channel| {
                let request = request.clone();
                async move { services::rendezvous(channel).list(request).await }
            })
            .await?;
        let none = answer.rendezvous.is_empty();
        rendezvous.extend(answer.rendezvous.into_iter().map(Rendezvous::from));
        if none || !answer.more {
            break;
        }
    }
    choose.apply(&mut rendezvous)?;
    output::emit(format, &RendezvousList { rendezvous })
}

#[cfg(test)]
mod tests {
    use super::super::summary::sample;
    use super::*;

    #[test]
    fn a_list_says_what_each_job_waits_for() {
        let closed = v1::RendezvousInfo {
            state: "closed".into(),
            closed: true,
            last_call_in_ms: 0,
            ..sample()
        };
        let list = RendezvousList { rendezvous: vec![sample().into(), closed.into()] };
        crate::golden::report("rendezvous-list.txt", &list);
        assert_eq!(
            list.table(),
            "JOB        STATE    ROUND  JOINED  MIN  MAX  WAITING  REDUNDANT  LAST CALL\n\
             llama-sft  forming      3       2    2    4        0          0  12s\n\
             llama-sft  closed       3       2    2    4        0          0  -\n"
        );
    }
}
