//! Owns: `rollout run append RUN FILE…`.
//!
//! Invariant: exit status 0 means that the run has every row of the files, whichever client added it.
//! Absent: waiting for their results.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use indicatif::HumanCount;
use rollout_batch::input::files::{self, FilesError, InputFile, STDIN};
use rollout_batch::input::scan::ScanControl;
use rollout_batch::submission::append::{Append, Appended};
use rollout_batch::submission::error::BatchError;
use rollout_proto::Session;

use super::cli::AppendArgs;
use super::error::CommandError;
use super::{on_wait, read_input, report};
use crate::connect::ConnectArgs;
use crate::output::counted;
use crate::progress::Progress;
use crate::stdio::to_stderr;

pub(super) async fn run(connect: &ConnectArgs, args: &AppendArgs) -> Result<u8, CommandError> {
    let settings = connect.settings()?;
    let progress = Arc::new(Progress::new(args.quiet));
    let (copy, files) = find(&args.files).await?;
    let client = settings.client(Some(on_wait(&progress)))?;
    let session = client.open_session("rollout run append").await?;
    let to = (settings.namespace.as_str(), args.run.as_str());
    let outcome = append(&session, to, &files, Arc::default(), &progress).await;
    progress.finish();
    // This removes the copy of standard input.
    drop(copy);
    outcome.map(|()| 0)
}

/// Appends files to the run (namespace, name), and prints the result.
pub(super) async fn append(
    session: &Session,
    (namespace, name): (&str, &str),
    files: &[InputFile],
    control: Arc<ScanControl>,
    progress: &Progress,
) -> Result<(), CommandError> {
    let shown = Arc::clone(&control);
    let append =
        Append { session, namespace, name, files, options: read_input::options(), control };
    let appended = tokio::select! {
        appended = append.run() => appended?,
        never = read_input::show(progress, &shown, files) => match never {},
    };
    match appended {
        Appended::Whole { added, there, rows } => {
            progress.note(&summary(name, added, there, rows));
            Ok(())
        }
        Appended::Refused(scan) => {
            progress.finish();
            to_stderr(&report::errors(&scan, files, read_input::ERRORS_SHOWN));
            Err(BatchError::Input { count: scan.error_count }.into())
        }
    }
}

fn summary(name: &str, added: u64, there: u64, rows: u64) -> String {
    let mut text = format!("run {name}: {} appended", counted(added, "row"));
    if there > 0 {
        let were = if there == 1 { "was" } else { "were" };
        text += &format!(", {} {were} there already", HumanCount(there));
    }
    text + &format!("; it has {}", HumanCount(rows))
}

/// The files, and a copy of standard input if it is one of them, because an input is read more than once.
async fn find(
    patterns: &[String],
) -> Result<(Option<tempfile::NamedTempFile>, Vec<InputFile>), CommandError> {
    let (stdin, patterns): (Vec<_>, Vec<_>) =
        patterns.iter().cloned().partition(|pattern| pattern == STDIN);
    let mut found = match patterns.is_empty() {
        true => Vec::new(),
        false => files::find(&patterns, Path::new("")).await?,
    };
    if stdin.is_empty() {
        return Ok((None, found));
    }
    let copied =
        tempfile::Builder::new().prefix("rollout-stdin-").tempfile().and_then(|mut copy| {
            let bytes = std::io::copy(&mut std::io::stdin().lock(), &mut copy)?;
            copy.flush()?;
            Ok((copy, bytes))
        });
    let (copy, bytes) =
        copied.map_err(|source| FilesError::Io { path: PathBuf::from(STDIN), source })?;
    found.push(InputFile::local(copy.path().to_owned(), bytes));
    Ok((Some(copy), found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_append_is_reported_in_one_line() {
        assert_eq!(summary("a", 1200, 0, 1200), "run a: 1,200 rows appended; it has 1,200");
        assert_eq!(summary("a", 1, 1, 9), "run a: 1 row appended, 1 was there already; it has 9");
        assert_eq!(summary("a", 0, 3, 9), "run a: 0 rows appended, 3 were there already; it has 9");
    }
}
