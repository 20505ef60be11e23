//! `rolloutctl config schema`: a JSON Schema of a configuration file, for editors and linters.
//!
//! Invariant: the schema derives from the types with which the daemon reads the file. Absent: the envelope;
//! editors want the schema alone.

use super::Daemon;
use crate::output::write_stdout;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Whose.
#[derive(Debug, clap::Args)]
pub(crate) struct SchemaArgs {
    /// Daemon whose schema to print
    #[arg(long, value_enum, default_value = "coordinator")]
    of: Daemon,
}

impl Verb for SchemaArgs {
    const KIND: Kind<Self> = Kind::Once;

    async fn run(self, _globals: &Globals) -> anyhow::Result<()> {
        let schema = rollout_config::schema(self.of.settings());
        write_stdout(&(serde_json::to_string_pretty(&schema)? + "\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schemas_are_those_that_are_kept() {
        for daemon in [Daemon::Coordinator, Daemon::Worker] {
            let schema = rollout_config::schema(daemon.settings());
            let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/schema");
            let file = format!("{folder}/{}.json", daemon.program());
            rollout_recorded::check(file, &text);
        }
    }
}
