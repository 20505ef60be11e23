//! `rolloutctl context list`: every context.

use serde::Serialize;

use super::{Line, kept, shown};
use crate::output::{self, Report, Table};
use crate::rolloutctl::list_options::ListOptions;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which contexts.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    options: ListOptions,
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

impl Verb for ListArgs {
    const KIND: Kind<Self> = Kind::Once;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let (_, contexts) = kept()?;
        let current = contexts.current.as_deref();
        let lines =
            contexts.context.iter().map(|(name, context)| Line::new(name, context, current));
        let mut contexts: Vec<Line> = lines.collect();
        self.options.apply(&mut contexts)?;
        output::emit(globals.format, &ContextList { contexts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::Context;

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
    }
}
