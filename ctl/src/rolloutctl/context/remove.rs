//! `rolloutctl context remove NAME`: forgets a context; its files stay.

use super::{ContextReport, find, kept};
use crate::completer::{self, Names};
use crate::output;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which context.
#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    /// Its name
    #[arg(add = completer::of(Names::Contexts))]
    name: String,
}

impl Verb for RemoveArgs {
    const KIND: Kind<Self> = Kind::Once;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let (path, mut contexts) = kept()?;
        let gone = find(&contexts, &self.name)?;
        contexts.context.remove(&self.name);
        if gone.current {
            contexts.current = None;
        }
        contexts.write(&path)?;
        output::emit(globals.format, &ContextReport(gone))
    }
}
