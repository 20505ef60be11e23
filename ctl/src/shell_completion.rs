//! Shell completion: static commands and flags, and current names: runs, workers, members and namespaces of the
//! cluster that the command line selects, contexts of the user's own file, and kinds of events.
//!
//! Invariant: a key press waits for the cluster for at most [`PATIENCE`]. If anything goes wrong, completion offers no
//! names and prints nothing. It reads the cluster and never changes it. Absent: cached names, which would
//! be stale, and names that a command is about to create.

use std::ffi::OsString;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clap::{Command, FromArgMatches as _};
use clap_complete::env::{CompleteEnv, Shells};
use rollout_proto::{CallOptions, Client, ClientError, services, v1};

use crate::completer::{self, Names};
use crate::connect::{ConnectArgs, Contexts};

/// How long to wait for the cluster.
const PATIENCE: Duration = Duration::from_millis(800);
/// The variable that marks a completion request and names the shell.
const VARIABLE: &str = "_ROLLOUT_COMPLETE";

/// The cluster settings on the completed line.
static LINE: OnceLock<ConnectArgs> = OnceLock::new();

/// If a shell started this program for completion, answers it; returns whether that was so.
pub(crate) fn answered(tree: fn() -> Command) -> bool {
    if std::env::var_os(VARIABLE).is_none() {
        return false;
    }
    let words = std::env::args_os().skip_while(|word| word != "--").skip(1);
    let _ = LINE.set(connection(tree(), words));
    completer::look_up_with(look_up);
    let here = std::env::current_dir().ok();
    let answer = CompleteEnv::with_factory(tree).var(VARIABLE);
    // An error message would not help the user who typed.
    answer.try_complete(std::env::args_os(), here.as_deref()).unwrap_or(true)
}

/// The script that a shell runs once so that it asks this program; `None` for an unknown shell.
pub(crate) fn registration(shell: &str, program: &str) -> Option<String> {
    let shells = Shells::builtins();
    let mut script = Vec::new();
    let shell = shells.completer(shell)?;
    shell.write_registration(VARIABLE, program, program, program, &mut script).ok()?;
    Some(String::from_utf8_lossy(&script).into_owned())
}

/// The cluster settings of an unfinished line, as far as it can be parsed.
fn connection(tree: Command, words: impl Iterator<Item = OsString>) -> ConnectArgs {
    let Ok(mut matches) = tree.ignore_errors(true).try_get_matches_from(words) else {
        return ConnectArgs::default();
    };
    // The innermost command has all flags, wherever they stand.
    while let Some((_, inner)) = matches.remove_subcommand() {
        matches = inner;
    }
    ConnectArgs::from_arg_matches(&matches).unwrap_or_default()
}

fn look_up(names: Names) -> Vec<String> {
    match names {
        Names::Contexts => Contexts::path().map(|path| contexts(&path)).unwrap_or_default(),
        names => names_of(names, LINE.get().cloned().unwrap_or_default()),
    }
}

fn contexts(file: &Path) -> Vec<String> {
    Contexts::read(file).map(|contexts| contexts.context.into_keys().collect()).unwrap_or_default()
}

/// The names that the cluster returns in time.
fn names_of(names: Names, line: ConnectArgs) -> Vec<String> {
    let Ok(mut settings) = line.settings() else { return Vec::new() };
    settings.timeout = PATIENCE;
    let namespace = settings.namespace.clone();
    let Ok(client) = settings.client(Some(Arc::new(|_| ()))) else { return Vec::new() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return Vec::new() };
    let names = runtime.block_on(async {
        tokio::time::timeout(PATIENCE, listed(names, &client, &namespace)).await
    });
    // A DNS query without an answer blocks a thread; do not wait for it.
    runtime.shutdown_background();
    names.ok().and_then(Result::ok).unwrap_or_default()
}

async fn listed(
    names: Names,
    client: &Client,
    namespace: &str,
) -> Result<Vec<String>, ClientError> {
    let (what, read) = ("complete a name", CallOptions::read());
    let namespace = || namespace.to_owned();
    Ok(match names {
        Names::Runs => {
            let runs = client.with_leader_opts(what, read, |channel| {
                let request = v1::ListRunsRequest { namespace: namespace() };
                async move { services::runs(channel).list_runs(request).await }
            });
            runs.await?.runs.into_iter().map(|run| run.name).collect()
        }
        Names::Workers => {
            let workers = client.with_leader_opts(what, read, |channel| {
                let request = v1::ListWorkersRequest { namespace: namespace() };
                async move { services::cluster(channel).list_workers(request).await }
            });
            workers.await?.workers.into_iter().map(|worker| worker.name).collect()
        }
        Names::Members => {
            let members = client.with_leader_opts(what, read, |channel| async move {
                services::members(channel).list_members(v1::ListMembersRequest {}).await
            });
            let members = members.await?.members.into_iter();
            members.filter_map(|member| Some(member.member?.name)).collect()
        }
        Names::Namespaces => {
            let spaces = client.with_leader_opts(what, read, |channel| async move {
                services::namespaces(channel).list_namespaces(v1::ListNamespacesRequest {}).await
            });
            spaces.await?.namespaces.into_iter().map(|space| space.name).collect()
        }
        Names::Contexts | Names::EventKinds => Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use clap::CommandFactory as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Tree {
        #[command(flatten)]
        connect: ConnectArgs,
        #[command(subcommand)]
        noun: Noun,
    }

    #[derive(clap::Subcommand)]
    enum Noun {
        Run {
            name: String,
            #[arg(long)]
            wanted: String,
        },
    }

    fn parsed(line: &str) -> ConnectArgs {
        connection(Tree::command(), line.split(' ').map(OsString::from))
    }

    #[test]
    fn an_unfinished_line_says_which_cluster_it_is_about_wherever_its_flags_stand() {
        for line in [
            "ctl run --context prod -n team ni",
            "ctl --context prod -n team run ni",
            "ctl --context prod run ni -n team --wanted",
            "ctl --context prod -n team run ni --nobody-knows-this",
            "ctl -n other --context prod run -n team",
        ] {
            let said = parsed(line);
            assert_eq!(said.context.as_deref(), Some(Path::new("prod")), "{line}");
            assert_eq!(said.namespace.as_deref(), Some("team"), "{line}");
        }
        assert_eq!(parsed("ctl run --help").context, None);
    }

    #[test]
    fn contexts_are_those_of_the_file_and_a_file_that_is_none_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("contexts.toml");
        assert!(contexts(&file).is_empty());
        std::fs::write(&file, "[context.prod]\n[context.dev]\n").unwrap();
        assert_eq!(contexts(&file), ["dev", "prod"]);
        std::fs::write(&file, "[context").unwrap();
        assert!(contexts(&file).is_empty());
    }

    #[test]
    fn a_cluster_that_does_not_answer_is_not_waited_for() {
        // It accepts connections and never answers.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let line = ConnectArgs {
            endpoints: vec![silent.local_addr().unwrap().to_string()],
            insecure_plaintext: true,
            ..ConnectArgs::default()
        };
        for names in [Names::Runs, Names::Workers, Names::Members, Names::Namespaces] {
            let begun = Instant::now();
            assert!(names_of(names, line.clone()).is_empty());
            // Plus half a second for a busy machine.
            assert!(begun.elapsed() < PATIENCE + Duration::from_millis(500), "{names:?}");
        }
        let wrong = ConnectArgs { cert: Some("/nowhere".into()), ..line };
        assert!(names_of(Names::Runs, wrong).is_empty());
    }
}
