//! `rolloutctl context use NAME`: the context that commands use by default.

use super::{ContextReport, find, kept};
use crate::completer::{self, Names};
use crate::output;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which context.
#[derive(Debug, clap::Args)]
pub(crate) struct UseArgs {
    /// Its name
    #[arg(add = completer::of(Names::Contexts))]
    name: String,
}

impl Verb for UseArgs {
    const KIND: Kind<Self> = Kind::Once;

    /// Makes a context the current one.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let (path, mut contexts) = kept()?;
        find(&contexts, &self.name)?;
        contexts.current = Some(self.name.clone());
        contexts.write(&path)?;
        output::emit(globals.format, &ContextReport(find(&contexts, &self.name)?))
    }
}
