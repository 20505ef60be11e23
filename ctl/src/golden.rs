//! Golden tests: help texts and outputs, compared with the files in `ctl/testdata`.
//!
//! Invariant: an added, removed or changed command, flag, default, column or field shows in the diff of a file that a
//! reviewer reads. Absent: the current environment.

use std::fmt::Write as _;
use std::path::Path;

use clap::Command;

use rollout_recorded::check;

use crate::output::{Format, Report, render};

const TESTDATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata");

/// Compares a report in every format.
pub(crate) fn report<R: Report>(file: &str, report: &R) {
    let formats =
        [Format::Table, Format::Wide, Format::Json, Format::Jsonl, Format::Yaml, Format::Name];
    let mut text = String::new();
    for format in formats {
        let shown = match render(format, report) {
            Ok(shown) => shown,
            Err(error) => format!("error: {error}\n"),
        };
        // invariant: writing to a string does not fail.
        let _ =
            writeln!(text, "$ -o {}\n{}", format!("{format:?}").to_lowercase(), timeless(&shown));
    }
    check(format!("{TESTDATA}/output/{file}"), &text);
}

/// The text without the time of printing.
fn timeless(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("asOf") {
        let (before, after) = rest.split_at(at + "asOf".len());
        shown.push_str(before);
        // The time ends with its Z and a quote.
        rest = after.split_once("Z\"").map_or("", |(_, rest)| rest);
        shown.push('…');
    }
    shown + rest
}

/// Compares the help of every command of a tree.
pub(crate) fn help(command: Command, file: &str) {
    command.clone().debug_assert();
    let mut command = plain(command).term_width(100);
    command.build();
    let mut text = String::new();
    let name = command.get_name().to_owned();
    let shared = command.get_arguments().filter(|arg| arg.is_global_set());
    let shared: Vec<clap::Id> = shared.map(|arg| arg.get_id().clone()).collect();
    walk(&mut command, &name, &shared, &mut text);
    check(format!("{TESTDATA}/help/{file}"), &text);
}

/// The command without the values of the test environment's variables.
fn plain(command: Command) -> Command {
    let names: Vec<String> =
        command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let command = command.mut_args(|arg| arg.hide_env_values(true));
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, plain))
}

/// `shared` has the arguments that all commands accept.
fn walk(command: &mut Command, path: &str, shared: &[clap::Id], text: &mut String) {
    // invariant: writing to a string does not fail.
    let _ = writeln!(text, "$ {path} --help\n{}", command.render_long_help());
    for sub in command.get_subcommands_mut() {
        if sub.get_name() != "help" && !sub.is_hide_set() {
            // Shown once, at the root. Arguments that only some commands share are shown at each of these.
            *sub = sub.clone().mut_args(|arg| match shared.contains(arg.get_id()) {
                true => arg.hide(true),
                false => arg,
            });
            let path = format!("{path} {}", sub.get_name());
            walk(sub, &path, shared, text);
        }
    }
}

/// The texts of all files under a directory.
fn texts(dir: &Path, into: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => texts(&path, into),
            false => into.push(std::fs::read_to_string(path).unwrap()),
        }
    }
}

#[test]
fn every_report_has_a_golden_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut sources, mut kept) = (Vec::new(), Vec::new());
    texts(&root.join("src/rolloutctl"), &mut sources);
    texts(&root.join("src/bench"), &mut sources);
    texts(&root.join("testdata/output"), &mut kept);
    let kept = kept.concat();
    let kinds = sources.iter().flat_map(|text| text.lines()).filter_map(|line| {
        line.trim().strip_prefix("const KIND: &'static str = \"")?.strip_suffix("\";")
    });
    let kinds: Vec<&str> = kinds.collect();
    assert!(kinds.len() > 60, "{kinds:?}");
    let without: Vec<&str> = kinds
        .into_iter()
        .filter(|kind| !kept.contains(&format!("\n  \"kind\": \"{kind}\",\n")))
        .collect();
    assert!(without.is_empty(), "no output of these is kept: {without:?}");
}
