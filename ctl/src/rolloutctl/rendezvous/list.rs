//! `rolloutctl job rendezvous list`: the training jobs of the namespace, or of all.

use rollout_proto::{services, v1};
use serde::Serialize;

use super::summary::{Rendezvous, table};
use crate::output::{self, Report};
use crate::rolloutctl::list_options::ListOptions;
use crate::rolloutctl::namespace::all_namespaces::AllNamespaces;
use crate::rolloutctl::read::read;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which jobs.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    all_namespaces: AllNamespaces,
    #[command(flatten)]
    options: ListOptions,
}

#[derive(Serialize)]
struct RendezvousList {
    rendezvous: Vec<Rendezvous>,
    /// Whether it covers several namespaces.
    #[serde(skip)]
    all_namespaces: bool,
}

impl Report for RendezvousList {
    const KIND: &'static str = "RendezvousList";

    fn table(&self) -> String {
        table(&self.rendezvous, self.all_namespaces).to_string()
    }
}

impl Verb for ListArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    /// Prints every job of the namespace, or of all.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let settings = globals.connect.settings()?;
        let client = settings.client(None)?;
        let namespace = self.all_namespaces.namespace(settings.namespace);
        let mut rendezvous: Vec<Rendezvous> = Vec::new();
        loop {
            let last = rendezvous.last().map(|one| (one.namespace.clone(), one.job.clone()));
            let (after_namespace, after) = last.unwrap_or_default();
            let namespace = namespace.clone();
            let request = v1::RendezvousListRequest { namespace, after, limit: 0, after_namespace };
            let answer =
                read(&client, "list rendezvous", &request, |channel, request| async move {
                    services::rendezvous(channel).list(request).await
                })
                .await?;
            let none = answer.rendezvous.is_empty();
            rendezvous.extend(answer.rendezvous.into_iter().map(Rendezvous::from));
            if none || !answer.more {
                break;
            }
        }
        self.options.apply(&mut rendezvous)?;
        let all_namespaces = self.all_namespaces.is_requested();
        output::emit(globals.format, &RendezvousList { rendezvous, all_namespaces })
    }
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
        let rendezvous = vec![sample().into(), closed.into()];
        let mut list = RendezvousList { rendezvous, all_namespaces: false };
        crate::golden::report("rendezvous-list.txt", &list);
        assert_eq!(
            list.table(),
            "JOB        STATE    ROUND  JOINED  MIN  MAX  WAITING  REDUNDANT  LAST CALL\n\
             llama-sft  forming      3       2    2    4        0          0  12s\n\
             llama-sft  closed       3       2    2    4        0          0  -\n"
        );
        list.all_namespaces = true;
        let table = list.table();
        assert!(table.starts_with("NAMESPACE  JOB        STATE    ROUND"), "{table}");
        assert!(table.contains("\ndefault    llama-sft  forming      3"), "{table}");
    }
}
