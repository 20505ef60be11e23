//! `rolloutctl context show [NAME]`: one context, or the current one.

use super::{ContextReport, find, kept};
use crate::completer::{self, Names};
use crate::output;
use crate::rolloutctl::Failure;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which context.
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// Its name
    #[arg(add = completer::of(Names::Contexts))]
    name: Option<String>,
}

impl Verb for ShowArgs {
    const KIND: Kind<Self> = Kind::Once;

    /// Prints one context, or the current one.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let (_, contexts) = kept()?;
        let Some(name) = self.name.as_deref().or(contexts.current.as_deref()) else {
            return Err(
                Failure::not_found("no context is current; see: rolloutctl context use").into()
            );
        };
        output::emit(globals.format, &ContextReport(find(&contexts, name)?))
    }
}
