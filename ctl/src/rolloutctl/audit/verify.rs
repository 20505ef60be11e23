//! `rolloutctl audit verify FILE...`: proves that the lines of a member's audit files form an unbroken chain. Needs no
//! cluster.
//!
//! Invariant: a line that was changed, removed or inserted between others is named, and the exit status is 1.
//! Absent: what a chain without a key cannot prove. An attacker who rewrites all later lines, or removes
//! the newest ones, leaves an unbroken chain; keep lines or hashes elsewhere too.

use std::path::PathBuf;

use serde::Serialize;

use super::chain::{Checked, in_order};
use crate::output::{self, Report, Table, count, u64_string};
use crate::rolloutctl::Failure;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which files.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// The audit files of one member, in any order: audit.log, audit.log.1, ...
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// The result of the verification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AuditVerification {
    /// Whether every line follows the one before it.
    whole: bool,
    /// The files, the oldest lines first.
    files: Vec<AuditFile>,
    /// The hash that the first line names, if no given file has that line. None if the first line is the first that
    /// the member wrote, or is older than the chain.
    follows: Option<String>,
    /// The hash of the last line.
    last: Option<String>,
    /// Where the chain breaks.
    breaks: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct AuditFile {
    file: String,
    #[serde(serialize_with = "u64_string")]
    lines: u64,
    #[serde(serialize_with = "u64_string")]
    unchained: u64,
    #[serde(serialize_with = "u64_string")]
    torn: u64,
}

impl Report for AuditVerification {
    const KIND: &'static str = "AuditVerification";

    fn table(&self) -> String {
        let mut table = Table::new(&["FILE", "LINES", "WITHOUT PREV", "TORN"]);
        for file in &self.files {
            let numbers = [file.lines, file.unchained, file.torn].map(count);
            table.row(std::iter::once(file.file.clone()).chain(numbers));
        }
        let state = if self.whole { "intact" } else { "BROKEN" };
        let none = |hash: &Option<String>| hash.clone().unwrap_or_else(|| "-".to_owned());
        let mut text = table.to_string();
        text += &format!(
            "\nChain    {state}\nFollows  {}\nLast     {}\n",
            none(&self.follows),
            none(&self.last)
        );
        for line in &self.breaks {
            text += &format!("Break    {line}\n");
        }
        text
    }
}

fn verify(paths: &[PathBuf]) -> anyhow::Result<AuditVerification> {
    let mut files = Vec::new();
    for path in paths {
        files.push(Checked::read(path)?);
    }
    let files = in_order(files);
    let breaks: Vec<String> = files.iter().flat_map(|file| file.breaks.clone()).collect();
    let read = files.iter().find(|file| file.last.is_some());
    Ok(AuditVerification {
        whole: breaks.is_empty(),
        follows: read.and_then(|file| file.follows()).map(str::to_owned),
        last: files.iter().rev().find_map(|file| file.last.clone()),
        breaks,
        files: files
            .into_iter()
            .map(|Checked { path, lines, unchained, torn, .. }| AuditFile {
                file: path.display().to_string(),
                lines,
                unchained,
                torn,
            })
            .collect(),
    })
}

impl Verb for VerifyArgs {
    const KIND: Kind<Self> = Kind::Once;

    /// Reads the files, shows the result, and fails if the chain breaks.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let found = verify(&self.files)?;
        output::emit(globals.format, &found)?;
        let Some(first) = found.breaks.first() else { return Ok(()) };
        let others = match found.breaks.len() {
            1 => String::new(),
            n => format!(" ({} more)", n - 1),
        };
        Err(Failure::failed(format!("the audit files are not an unbroken chain: {first}{others}"))
            .into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Lines as a member writes them, each after its predecessor.
    fn chain(lines: usize) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for n in 0..lines {
            let prev = all.last().map(|line| blake3::hash(line.as_bytes()).to_hex().to_string());
            let prev = serde_json::to_string(&prev).unwrap();
            all.push(format!(
                r#"{{"time":"2026-11-27T00:00:{n:02}Z","method":"m{n}","prev":{prev}}}"#
            ));
        }
        all
    }

    fn file(dir: &Path, name: &str, lines: &[String]) -> PathBuf {
        let path = dir.join(name);
        std::fs::write(&path, lines.iter().map(|line| format!("{line}\n")).collect::<String>())
            .unwrap();
        path
    }

    fn breaks_of(lines: &[String]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        verify(&[file(dir.path(), "audit.log", lines)]).unwrap().breaks
    }

    #[test]
    fn files_in_any_order_are_one_chain() {
        let dir = tempfile::tempdir().unwrap();
        let all = chain(9);
        let paths =
            [("audit.log", &all[6..]), ("audit.log.1", &all[3..6]), ("audit.log.2", &all[..3])]
                .map(|(name, lines)| file(dir.path(), name, lines));
        let found = verify(&paths).unwrap();
        assert!(found.whole, "{found:?}");
        let names: Vec<_> = found.files.iter().map(|file| file.file.clone()).collect();
        assert!(names[0].ends_with(".2") && names[2].ends_with("audit.log"), "{names:?}");
        let last = blake3::hash(all[8].as_bytes()).to_hex().to_string();
        assert_eq!((found.follows, found.last), (None, Some(last)));
        // Without the oldest file, the first line names a missing one.
        assert!(verify(&paths[..2]).unwrap().follows.is_some());
    }

    #[test]
    fn a_line_that_is_changed_removed_or_inserted_is_found_with_file_and_line() {
        let all = chain(6);
        assert!(breaks_of(&all).is_empty());
        let mut changed = all.clone();
        changed[2] = changed[2].replace("m2", "mX");
        let mut removed = all.clone();
        removed.remove(2);
        let mut inserted = all.clone();
        inserted.insert(3, all[2].clone());
        let mut without = all.clone();
        without[3] = r#"{"method":"m3"}"#.to_owned();
        for (lines, at) in [(changed, 4), (removed, 3), (inserted, 4), (without, 4)] {
            let breaks = breaks_of(&lines);
            assert!(breaks[0].contains(&format!("audit.log:{at}: ")), "{breaks:?}");
        }
    }

    #[test]
    fn a_missing_file_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let all = chain(9);
        let newest = file(dir.path(), "audit.log", &all[6..]);
        let oldest = file(dir.path(), "audit.log.2", &all[..3]);
        let breaks = verify(&[newest, oldest]).unwrap().breaks;
        assert_eq!(breaks.len(), 1);
        assert!(breaks[0].contains("audit.log:1: "), "{breaks:?}");
    }

    #[test]
    fn lines_from_before_the_chain_and_lines_written_in_part_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let mut all = vec![r#"{"method":"old"}"#.to_owned()];
        let prev = blake3::hash(all[0].as_bytes()).to_hex();
        all.push(format!(r#"{{"method":"m1","prev":"{prev}"}}"#));
        let prev = blake3::hash(all[1].as_bytes()).to_hex();
        all.push(r#"{"method":"ha"#.to_owned());
        all.push(format!(r#"{{"method":"m2","prev":"{prev}"}}"#));
        let found = verify(&[file(dir.path(), "audit.log", &all)]).unwrap();
        assert!(found.whole, "{found:?}");
        let AuditFile { lines, unchained, torn, .. } = found.files[0];
        assert_eq!((lines, unchained, torn), (2, 1, 1));
        assert!(verify(&[dir.path().join("absent")]).unwrap_err().to_string().contains("absent"));
    }

    #[test]
    fn output_matches_the_golden_file() {
        let file = AuditFile { file: "audit.log".into(), lines: 1_200, unchained: 0, torn: 1 };
        let report = AuditVerification {
            whole: false,
            files: vec![file],
            follows: Some("aa".repeat(32)),
            last: Some("bb".repeat(32)),
            breaks: vec!["audit.log:7: it has no `prev`, and lines before it have one".into()],
        };
        crate::golden::report("audit-verify.txt", &report);
    }
}
