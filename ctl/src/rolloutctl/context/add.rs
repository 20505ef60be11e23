//! `rolloutctl context add NAME`: a named cluster, from the connection flags of the command.

use std::path::PathBuf;

use super::{ContextReport, find, kept};
use crate::connect::Context;
use crate::output;
use crate::rolloutctl::Failure;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Under which name.
#[derive(Debug, clap::Args)]
pub(crate) struct AddArgs {
    /// Its name
    name: String,
    /// Take settings that the flags do not give from this context file, as `rollout dev` writes it
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Make it the current one
    #[arg(long = "use")]
    choose: bool,
}

impl Verb for AddArgs {
    const KIND: Kind<Self> = Kind::Once;

    /// Saves the connection flags under a name; replaces an existing context of that name.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        if self.name.is_empty() || self.name.contains(['/', '.', '\\']) {
            let text = format!("{:?} is not a valid name: a name has no slash or dot", self.name);
            return Err(Failure::usage(text).into());
        }
        let (path, mut contexts) = kept()?;
        let file = match &self.from {
            Some(file) => Context::read(file)?,
            None => Context::default(),
        };
        let absolute = |file: Option<PathBuf>| file.map(std::path::absolute).transpose();
        let given = Context {
            endpoints: globals.connect.endpoints.clone(),
            ca_file: globals.connect.ca_cert.clone(),
            cert_file: globals.connect.cert.clone(),
            key_file: globals.connect.key.clone(),
            insecure_plaintext: globals.connect.insecure_plaintext,
            dial_map: globals.connect.dial_map.clone(),
            namespace: globals.connect.namespace.clone(),
        };
        let mut context = given.over(&file);
        context.ca_file = absolute(context.ca_file)?;
        context.cert_file = absolute(context.cert_file)?;
        context.key_file = absolute(context.key_file)?;
        if context.endpoints.is_empty() {
            let text = "a context needs a member: give --endpoint, or --from a context file";
            return Err(Failure::usage(text).into());
        }
        contexts.context.insert(self.name.clone(), context);
        if self.choose || contexts.current.is_none() {
            contexts.current = Some(self.name.clone());
        }
        contexts.write(&path)?;
        output::emit(globals.format, &ContextReport(find(&contexts, &self.name)?))
    }
}
