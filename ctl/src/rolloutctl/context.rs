//! `rolloutctl context`: clusters under names that the user chooses.
//!
//! Invariant: it works without any cluster and changes only the file of contexts. Deliberately absent: copies of
//! certificates and keys; a context names files.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::Failure;
use super::choose::ChooseArgs;
use crate::completer::{self, Names};
use crate::connect::{Context, Contexts};
use crate::output::{self, Report, Table};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which context.
#[derive(Debug, clap::Args)]
pub(crate) struct UseArgs {
    /// Its name
    #[arg(add = completer::of(Names::Contexts))]
    name: String,
}

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

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    name: String,
    current: bool,
    endpoints: Vec<String>,
    ca_file: Option<PathBuf>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    insecure_plaintext: bool,
    dial_map: Vec<String>,
    namespace: Option<String>,
}

impl Line {
    fn new(name: &str, context: &Context, current: Option<&str>) -> Self {
        let context = context.clone();
        Self {
            name: name.to_owned(),
            current: current == Some(name),
            endpoints: context.endpoints,
            ca_file: context.ca_file,
            cert_file: context.cert_file,
            key_file: context.key_file,
            insecure_plaintext: context.insecure_plaintext,
            dial_map: context.dial_map,
            namespace: context.namespace,
        }
    }
}

#[derive(Serialize)]
struct ContextList {
    contexts: Vec<Line>,
}

impl Report for ContextList {
    const KIND: &'static str = "ContextList";

    fn table(&self) -> String {
        let mut table = Table::new(&["CURRENT", "NAME", "ENDPOINTS", "CERTIFICATE", "NAMESPACE"]);
        for line in &self.contexts {
            table.row([
                if line.current { "*".into() } else { String::new() },
                line.name.clone(),
                line.endpoints.join(","),
                shown(line.cert_file.as_deref(), line.insecure_plaintext),
                line.namespace.clone().unwrap_or_else(|| "-".into()),
            ]);
        }
        table.to_string()
    }
}

fn shown(cert: Option<&Path>, plaintext: bool) -> String {
    match (cert, plaintext) {
        (_, true) => "none: plaintext".into(),
        (Some(file), false) => file.display().to_string(),
        (None, false) => "-".into(),
    }
}

#[derive(Serialize)]
#[serde(transparent)]
struct Shown(Line);

impl Report for Shown {
    const KIND: &'static str = "Context";

    fn table(&self) -> String {
        let line = &self.0;
        let file =
            |file: &Option<PathBuf>| file.as_ref().map_or("-".into(), |f| f.display().to_string());
        let rows = [
            ("Name", line.name.clone() + if line.current { " (current)" } else { "" }),
            ("Endpoints", line.endpoints.join(", ")),
            ("Authority", file(&line.ca_file)),
            ("Certificate", shown(line.cert_file.as_deref(), line.insecure_plaintext)),
            ("Key", file(&line.key_file)),
            ("Dial map", line.dial_map.join(", ")),
            ("Namespace", line.namespace.clone().unwrap_or_else(|| "default".into())),
        ];
        let shown = rows.into_iter().filter(|(_, value)| !value.is_empty());
        shown.map(|(title, value)| format!("{title:<12}{value}\n")).collect()
    }
}

/// The file, and its contexts.
fn kept() -> anyhow::Result<(PathBuf, Contexts)> {
    let path = Contexts::path().ok_or_else(|| {
        Failure::failed("there is no directory for contexts: set XDG_CONFIG_HOME or HOME")
    })?;
    let contexts = Contexts::read(&path)?;
    Ok((path, contexts))
}

fn find(contexts: &Contexts, name: &str) -> anyhow::Result<Line> {
    let context = contexts.find(name).map_err(|error| Failure::not_found(error.to_string()))?;
    Ok(Line::new(name, context, contexts.current.as_deref()))
}

/// Which contexts.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    choose: ChooseArgs,
}

impl Verb for ListArgs {
    const KIND: Kind<Self> = Kind::Once;

    /// Prints every context.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let (_, contexts) = kept()?;
        let current = contexts.current.as_deref();
        let lines =
            contexts.context.iter().map(|(name, context)| Line::new(name, context, current));
        let mut contexts: Vec<Line> = lines.collect();
        self.choose.apply(&mut contexts)?;
        output::emit(globals.format, &ContextList { contexts })
    }
}

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
        output::emit(globals.format, &Shown(find(&contexts, name)?))
    }
}

impl Verb for UseArgs {
    const KIND: Kind<Self> = Kind::Once;

    /// Makes a context the current one.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let (path, mut contexts) = kept()?;
        find(&contexts, &self.name)?;
        contexts.current = Some(self.name.clone());
        contexts.write(&path)?;
        output::emit(globals.format, &Shown(find(&contexts, &self.name)?))
    }
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
        output::emit(globals.format, &Shown(find(&contexts, &self.name)?))
    }
}

/// Which context.
#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    /// Its name
    #[arg(add = completer::of(Names::Contexts))]
    name: String,
}

impl Verb for RemoveArgs {
    const KIND: Kind<Self> = Kind::Once;

    /// Removes a context.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let (path, mut contexts) = kept()?;
        let gone = find(&contexts, &self.name)?;
        contexts.context.remove(&self.name);
        if gone.current {
            contexts.current = None;
        }
        contexts.write(&path)?;
        output::emit(globals.format, &Shown(gone))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_marks_the_current_context_and_warns_of_plaintext() {
        let context = Context { endpoints: vec!["a:1".into()], ..Context::default() };
        let plain = Context { insecure_plaintext: true, ..context.clone() };
        let contexts =
            vec![Line::new("dev", &plain, Some("prod")), Line::new("prod", &context, Some("prod"))];
        let table = ContextList { contexts }.table();
        assert!(table.contains("         dev   a:1        none: plaintext"), "{table}");
        assert!(table.contains("*        prod  a:1"), "{table}");
    }

    #[test]
    fn output_matches_the_golden_file() {
        let context = Context { endpoints: vec!["c1:7420".into()], ..Context::default() };
        let line = |name: &str| Line::new(name, &context, Some("prod"));
        let list = ContextList { contexts: vec![line("dev"), line("prod")] };
        crate::golden::report("context-list.txt", &list);
        crate::golden::report("context-show.txt", &Shown(line("prod")));
    }
}
