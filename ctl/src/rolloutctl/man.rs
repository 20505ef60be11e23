//! `rolloutctl man`: manual pages, made from the command tree itself, for both programs.
//!
//! Invariant: they describe a command as its `--help` does.

use std::path::PathBuf;

use anyhow::Context as _;

use super::completion::Program;
use crate::output::write_stdout;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Where the pages go.
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Directory for a page per command, such as /usr/local/share/man/man1 [default: print the
    /// first page on stdout]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Program to describe
    #[arg(long, value_enum, default_value_t)]
    program: Program,
}

impl Verb for ManArgs {
    const KIND: Kind<Self> = Kind::Once;

    async fn run(self, _globals: &Globals) -> anyhow::Result<()> {
        man(&self)
    }
}

/// Prints the program's page, or writes all pages.
fn man(args: &ManArgs) -> anyhow::Result<()> {
    let mut command = args.program.command();
    match &args.dir {
        Some(dir) => std::fs::create_dir_all(dir)
            .and_then(|()| clap_mangen::generate_to(command, dir))
            .with_context(|| format!("cannot write pages to {}", dir.display())),
        None => {
            command.build();
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            write_stdout(&String::from_utf8_lossy(&page))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_manual_page() {
        let dir = tempfile::tempdir().unwrap();
        let path = Some(dir.path().to_owned());
        man(&ManArgs { dir: path, program: Program::Rolloutctl }).unwrap();
        for page in ["rolloutctl.1", "rolloutctl-run-pause.1", "rolloutctl-cluster-verify.1"] {
            let text = std::fs::read_to_string(dir.path().join(page)).expect(page);
            assert!(text.contains(".SH NAME"), "{page}");
        }
    }
}
