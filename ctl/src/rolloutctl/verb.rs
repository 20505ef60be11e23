//! Owns: what a verb declares about itself, and the way from a parsed command line to the verb.
//!
//! Invariant: each verb declares its kind once, in its own file, and does not compile without it. Which of `--watch`,
//! `--request-id`, `--dry-run` and `--yes` it accepts, and which of them its help shows, follows from the kind.
//! Absent: the names of the verbs, which are in `cli`; the flags themselves.

use std::collections::BTreeMap;
use std::pin::Pin;

use super::Failure;
use super::consent::Consent;
use super::request::RequestName;
use super::verbosity::VerbosityArgs;
use crate::connect::ConnectArgs;
use crate::output::Format;

/// The values of the flags that all verbs share.
pub(crate) struct Globals {
    /// Where the cluster is.
    pub(crate) connect: ConnectArgs,
    /// How results are printed.
    pub(crate) format: Format,
    /// The earlier request to repeat. Only for verbs that declare `numbered`.
    pub(crate) again: Option<RequestName>,
    /// Only for verbs that declare `confirm`.
    pub(crate) consent: Consent,
    /// How much is printed on stderr.
    pub(crate) verbosity: VerbosityArgs,
}

/// A boxed future. The future that dispatches a hundred verbs stays small, because it does not contain theirs.
pub(crate) type Boxed<'a> = Pin<Box<dyn Future<Output = anyhow::Result<()>> + 'a>>;

/// Prints what a verb would change, and changes nothing.
pub(crate) type DryRun<V> = for<'a> fn(V, &'a Globals) -> Boxed<'a>;

/// What a verb does.
pub(crate) enum Kind<V> {
    /// Reads, prints, and ends. `--watch` repeats it.
    ReadOnly,
    /// Changes nothing in a cluster, and `--watch` does not repeat it: it follows a stream, verifies, measures, or
    /// works on local files.
    Once,
    /// Changes a cluster, or creates files that a cluster depends on.
    Change {
        /// Whether its request has a number: `--request-id` repeats the request, which takes effect at most once.
        numbered: bool,
        /// Whether it asks for confirmation, which `--yes` gives.
        confirm: bool,
        /// What `--dry-run` does: `planned`, `client_plan` or `planned_here` of module `dry_run`, or a function of
        /// the verb's file.
        dry_run: DryRun<V>,
    },
}

/// The flags that a verb accepts, besides those that all accept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Accepts {
    pub(super) watch: bool,
    pub(super) request_id: bool,
    pub(super) dry_run: bool,
    pub(super) yes: bool,
}

impl<V> Kind<V> {
    fn accepts(&self) -> Accepts {
        match *self {
            Self::ReadOnly => Accepts { watch: true, ..Accepts::default() },
            Self::Once => Accepts::default(),
            Self::Change { numbered, confirm, .. } => {
                Accepts { watch: false, request_id: numbered, dry_run: true, yes: confirm }
            }
        }
    }
}

/// A verb of `rolloutctl`. Its arguments implement it.
pub(crate) trait Verb: Sized + 'static {
    /// What it does. There is no default: a change that passed for read-only would be repeated by `--watch`.
    const KIND: Kind<Self>;

    /// Runs it, and prints its results.
    async fn run(self, globals: &Globals) -> anyhow::Result<()>;
}

/// A noun with its verbs, or a verb: what a variant of the command tree holds.
pub(super) trait Branch: Sized {
    /// The flags that the chosen verb accepts.
    fn accepts(&self) -> Accepts;

    /// Runs the chosen verb.
    fn dispatch(self, globals: &Globals) -> Boxed<'_>;

    /// Prints what the chosen verb would change. Exit status 2 if it changes nothing.
    fn dry_run(self, globals: &Globals) -> Boxed<'_>;

    /// Adds the verbs of this branch, which is at `path`, by their paths.
    fn collect(path: &str, verbs: &mut BTreeMap<String, Accepts>);
}

/// The refusal of a verb that changes nothing. Exit status 2.
pub(super) fn no_dry_run() -> anyhow::Error {
    Failure::usage("--dry-run is for commands that change something; this one has no such mode")
        .into()
}

impl<V: Verb> Branch for V {
    fn accepts(&self) -> Accepts {
        V::KIND.accepts()
    }

    fn dispatch(self, globals: &Globals) -> Boxed<'_> {
        Box::pin(self.run(globals))
    }

    fn dry_run(self, globals: &Globals) -> Boxed<'_> {
        match V::KIND {
            Kind::ReadOnly | Kind::Once => Box::pin(std::future::ready(Err(no_dry_run()))),
            Kind::Change { dry_run, .. } => dry_run(self, globals),
        }
    }

    fn collect(path: &str, verbs: &mut BTreeMap<String, Accepts>) {
        verbs.insert(path.to_owned(), V::KIND.accepts());
    }
}

/// The path of a variant of the command tree below `above`, with the name that clap gives it.
pub(super) fn path(above: &str, variant: &str) -> String {
    let mut path = above.to_owned();
    for (at, letter) in variant.char_indices() {
        match at {
            0 if above.is_empty() => {}
            0 => path.push(' '),
            _ if letter.is_ascii_uppercase() => path.push('-'),
            _ => {}
        }
        path.push(letter.to_ascii_lowercase());
    }
    path
}

/// Declares an enum of the command tree, with a variant for each verb or noun. Each variant holds what implements
/// [`Branch`]; the compiler refuses a verb that does not.
macro_rules! branch {
    (
        $(#[$($outer:tt)*])*
        enum $name:ident {
            $($(#[$($attribute:tt)*])* $variant:ident($held:ty),)+
        }
    ) => {
        $(#[$($outer)*])*
        #[derive(Debug, clap::Subcommand)]
        pub(crate) enum $name {
            $($(#[$($attribute)*])* $variant($held),)+
        }

        const _: () = {
            use std::collections::BTreeMap;

            use $crate::rolloutctl::verb::{Accepts, Boxed, Branch, Globals, path};

            impl Branch for $name {
                fn accepts(&self) -> Accepts {
                    match self {
                        $(Self::$variant(held) => held.accepts(),)+
                    }
                }

                fn dispatch(self, globals: &Globals) -> Boxed<'_> {
                    match self {
                        $(Self::$variant(held) => held.dispatch(globals),)+
                    }
                }

                fn dry_run(self, globals: &Globals) -> Boxed<'_> {
                    match self {
                        $(Self::$variant(held) => held.dry_run(globals),)+
                    }
                }

                fn collect(above: &str, verbs: &mut BTreeMap<String, Accepts>) {
                    $(<$held>::collect(&path(above, stringify!($variant)), verbs);)+
                }
            }
        };
    };
}
pub(super) use branch;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_has_the_name_that_clap_gives_it() {
        assert_eq!(path("", "Run"), "run");
        assert_eq!(path("namespace", "SetQuota"), "namespace set-quota");
    }
}
