//! `rolloutctl context remove NAME...`: forgets contexts; their files stay.

use super::{ContextReport, find, kept};
use crate::completer::{self, Names};
use crate::output::{self, Format};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which contexts.
#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    /// The contexts' names
    #[arg(required = true, value_name = "NAME", add = completer::of(Names::Contexts))]
    names: Vec<String>,
}

impl Verb for RemoveArgs {
    const KIND: Kind<Self> = Kind::Once;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        for_each_name(self.names, globals.format, None, async |name, format| remove(&name, format))
            .await
    }
}

fn remove(name: &str, format: Format) -> anyhow::Result<()> {
    let (path, mut contexts) = kept()?;
    let gone = find(&contexts, name)?;
    contexts.context.remove(name);
    if gone.current {
        contexts.current = None;
    }
    contexts.write(&path)?;
    output::emit(format, &ContextReport(gone))
}
