//! `rolloutctl snapshot verify FILE...`: reads snapshot files to their last bit. Needs no cluster.
//!
//! Invariant: `restore` of a program of the same or a newer version accepts every file that this command calls intact.

use std::fmt;
use std::path::PathBuf;

use super::summary::SnapshotFile;
use crate::output;
use crate::progress::Progress;
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::verb::{Globals, Kind, Verb};
use crate::stdio;

/// Which files.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// The snapshot files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

#[derive(Clone)]
struct NamedFile(PathBuf);

impl fmt::Display for NamedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

impl Verb for VerifyArgs {
    const KIND: Kind<Self> = Kind::Once;

    /// Reads each file to its end and shows its description.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let files = self.files.into_iter().map(NamedFile).collect();
        for_each_name(files, globals.format, None, async |NamedFile(file), format| {
            let progress = Progress::new(stdio::are_notes_suppressed());
            output::emit(format, &SnapshotFile::read(&file, &file, &progress)?)
        })
        .await
    }
}
