//! Messages of `rolloutctl` on stderr other than the reason for a failure: how many, and whether in color.
//!
//! Invariant: these settings change neither stdout nor the exit status. Colors are on stderr alone.
//! Absent: the usage errors of an invalid command line; clap colors them, and knows `NO_COLOR`.

use std::ffi::OsStr;
use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::stdio;

/// How much is printed on stderr, and whether in color.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct VerbosityArgs {
    /// Print only errors on stderr
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Print each action on stderr; with -vv each step of it. Overrides ROLLOUT_LOG
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Color on stderr
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    color: Color,
}

/// When stderr has colors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Color {
    /// On a terminal, where neither NO_COLOR is set nor TERM is dumb
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

impl Color {
    fn wanted(self, terminal: bool, no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            // no-color.org: set and not empty.
            Self::Auto => {
                terminal
                    && no_color.is_none_or(OsStr::is_empty)
                    && term.is_none_or(|term| term != "dumb")
            }
        }
    }
}

/// How errors are formatted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ErrorStyle {
    colored: bool,
}

impl VerbosityArgs {
    /// Applies the verbosity and color settings to this process.
    pub(super) fn begin(&self) -> ErrorStyle {
        let (no_color, term) = (std::env::var_os("NO_COLOR"), std::env::var_os("TERM"));
        let terminal = std::io::stderr().is_terminal();
        let colored = self.color.wanted(terminal, no_color.as_deref(), term.as_deref());
        if self.quiet {
            stdio::suppress_notes();
        }
        let filter = match self.filter() {
            Some(filter) => EnvFilter::new(filter),
            None => {
                EnvFilter::try_from_env("ROLLOUT_LOG").unwrap_or_else(|_| EnvFilter::new("warn"))
            }
        };
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(colored)
            .init();
        ErrorStyle { colored }
    }

    /// Whether terminal output has colors.
    pub(super) fn colors_a_terminal(&self) -> bool {
        let (no_color, term) = (std::env::var_os("NO_COLOR"), std::env::var_os("TERM"));
        self.color.wanted(true, no_color.as_deref(), term.as_deref())
    }

    /// The log filter for the flags.
    fn filter(&self) -> Option<&'static str> {
        match (self.quiet, self.verbose) {
            (true, _) => Some("error"),
            (false, 0) => None,
            (false, 1) => Some("warn,rollout=info"),
            (false, _) => Some("info,rollout=debug"),
        }
    }
}

impl ErrorStyle {
    /// The text of [`explain`](super::exit::explain), with its first word in bold red.
    pub(super) fn error(self, text: String) -> String {
        match text.strip_prefix("error:") {
            Some(rest) if self.colored => format!("\x1b[1;31merror:\x1b[0m{rest}"),
            _ => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::rolloutctl::cli::Cli;

    fn verbosity_args(args: &str) -> VerbosityArgs {
        let line = format!("rolloutctl {args}");
        Cli::try_parse_from(line.split_whitespace()).expect("a command line").verbosity
    }

    #[test]
    fn verbosity_flags_work_anywhere_and_the_variable_applies_without_them() {
        for (args, filter) in [
            ("status", None),
            ("-q status", Some("error")),
            ("run list --quiet", Some("error")),
            ("-v status", Some("warn,rollout=info")),
            ("member list -vv", Some("info,rollout=debug")),
        ] {
            assert_eq!(verbosity_args(args).filter(), filter, "{args}");
            assert!(filter.is_none_or(|text| EnvFilter::try_new(text).is_ok()), "{filter:?}");
        }
        let both = ["rolloutctl", "status", "-q", "-v"];
        assert!(Cli::try_parse_from(both).is_err(), "who is quiet says no more");
    }

    #[test]
    fn colors_need_a_terminal_and_no_opt_out() {
        let auto = |terminal, no_color: Option<&str>, term: Option<&str>| {
            Color::Auto.wanted(terminal, no_color.map(OsStr::new), term.map(OsStr::new))
        };
        assert!(auto(true, None, Some("xterm-256color")) && auto(true, Some(""), None));
        assert!(!auto(false, None, None) && !auto(true, Some("1"), None));
        assert!(!auto(true, None, Some("dumb")));
        assert_eq!(verbosity_args("--color always status").color, Color::Always);
        assert!(Color::Always.wanted(false, Some(OsStr::new("1")), None));
        assert!(!verbosity_args("status --color=never").color.wanted(true, None, None));

        let said = || "error: no leader\n  explain: …\n".to_owned();
        assert_eq!(ErrorStyle { colored: false }.error(said()), said());
        let painted = ErrorStyle { colored: true }.error(said());
        assert_eq!(painted, "\x1b[1;31merror:\x1b[0m no leader\n  explain: …\n");
    }
}
