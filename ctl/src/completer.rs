//! Completion of an argument by the names of a kind, as a flag or an argument declares it.
//!
//! Invariant: without a source of names, completion offers none that it would have to look up.
//! Absent: that source, and the answers to a shell; [`shell_completion`](crate::shell_completion) has both.

use std::ffi::OsStr;
use std::sync::OnceLock;

use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter as _,
};
use rollout_proto::EVENT_KINDS;

/// The maximum number of names offered.
const NAMES_MAX: usize = 1000;

/// Looks up the names of a kind; set once a shell asks.
static LOOK_UP: OnceLock<fn(Names) -> Vec<String>> = OnceLock::new();

/// Kinds of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Names {
    /// Of the line's namespace.
    Runs,
    /// Of the line's namespace.
    Workers,
    Members,
    Namespaces,
    /// Of the user's own file.
    Contexts,
    /// Those that this build knows.
    EventKinds,
}

/// Completes an argument with such names.
pub(crate) fn of(names: Names) -> ArgValueCompleter {
    ArgValueCompleter::new(move |typed: &OsStr| candidates(names, typed))
}

/// Completes an argument with the names of contexts, and with files.
pub(crate) fn of_contexts_and_files() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let mut found = candidates(Names::Contexts, typed);
        found.extend(PathCompleter::any().complete(typed));
        found
    })
}

/// Has this function look up names. It stays the one that is set first.
pub(crate) fn look_up_with(look_up: fn(Names) -> Vec<String>) {
    let _ = LOOK_UP.set(look_up);
}

fn candidates(names: Names, typed: &OsStr) -> Vec<CompletionCandidate> {
    // No name begins with a dash, so such a word is a flag and needs no request.
    let Some(typed) = typed.to_str().filter(|typed| !typed.starts_with('-')) else {
        return Vec::new();
    };
    let names = match names {
        Names::EventKinds => EVENT_KINDS.map(str::to_owned).to_vec(),
        names => LOOK_UP.get().map(|look_up| look_up(names)).unwrap_or_default(),
    };
    fitting(names, typed).into_iter().map(CompletionCandidate::new).collect()
}

fn fitting(mut names: Vec<String>, typed: &str) -> Vec<String> {
    names.retain(|name| name.starts_with(typed));
    names.sort_unstable();
    names.dedup();
    names.truncate(NAMES_MAX);
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_events_are_completed_without_a_cluster() {
        let found = candidates(Names::EventKinds, OsStr::new("member_"));
        let found: Vec<_> = found.iter().map(CompletionCandidate::get_value).collect();
        assert_eq!(
            found,
            ["member_reachable", "member_started", "member_stopped", "member_unreachable"]
        );
    }

    #[test]
    fn matching_names_are_offered_once_in_order_and_bounded() {
        let known = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(fitting(known(&["nb", "x", "na", "nb"]), "n"), ["na", "nb"]);
        assert!(fitting(known(&["na"]), "m").is_empty());
        let many = (0..NAMES_MAX + 5).map(|n| format!("n{n:05}")).collect();
        assert_eq!(fitting(many, "").len(), NAMES_MAX);
        assert!(candidates(Names::Runs, OsStr::new("--out")).is_empty());
    }
}
