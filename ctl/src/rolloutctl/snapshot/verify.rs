//! `rolloutctl snapshot verify FILE`: reads a snapshot file to its last bit. Needs no cluster.
//!
//! Invariant: `restore` of a program of the same or a newer version accepts every file that this command calls intact.

use std::path::PathBuf;

use super::summary::SnapshotFile;
use crate::output;
use crate::progress::Progress;
use crate::rolloutctl::verb::{Globals, Kind, Verb};
use crate::stdio;

/// Which file.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// The snapshot file
    file: PathBuf,
}

impl Verb for VerifyArgs {
    const KIND: Kind<Self> = Kind::Once;

    /// Reads the whole file and shows its description.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        output::emit(
            globals.format,
            &SnapshotFile::read(
                &self.file,
                &self.file,
                &Progress::new(stdio::are_notes_suppressed()),
            )?,
        )
    }
}
