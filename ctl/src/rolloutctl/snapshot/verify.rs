//! `rolloutctl snapshot verify FILE`: reads a snapshot file to its last bit. Needs no cluster.
//!
//! Invariant: `restore` of a program of the same or a newer version accepts every file that this command calls intact.

use std::path::PathBuf;

use super::shown::Shown;
use crate::output::{self, Format};
use crate::progress::Progress;
use crate::say;

/// Which file.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// The snapshot file
    file: PathBuf,
}

/// Reads the whole file and shows its description.
pub(crate) fn run(format: Format, args: &VerifyArgs) -> anyhow::Result<()> {
    output::emit(format, &Shown::read(&args.file, &args.file, &Progress::new(say::is_quiet()))?)
}
