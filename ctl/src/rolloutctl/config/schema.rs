//! `rolloutctl config schema`: a JSON Schema of a configuration file, for editors and linters.
//!
//! Invariant: the schema is the same table that `validate` and `view` read. Deliberately absent: the envelope; editors
//! want the schema alone.

use serde_json::{Map, Value, json};

use super::Daemon;
use super::key::{Key, Kind};
use crate::output::write_stdout;
use crate::rolloutctl::verb::{self, Globals, Verb};

/// Whose.
#[derive(Debug, clap::Args)]
pub(crate) struct SchemaArgs {
    /// Daemon whose configuration to show
    #[arg(long, value_enum, default_value = "coordinator")]
    of: Daemon,
}

fn object(properties: Map<String, Value>, required: Vec<&str>) -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
        "required": required,
    })
}

fn of_key(key: &Key) -> Value {
    let mut schema = match key.kind {
        Kind::Text | Kind::Path | Kind::Address => json!({"type": "string"}),
        Kind::Integer(min, max) => json!({"type": "integer", "minimum": min, "maximum": max}),
        Kind::Float => json!({"type": "number"}),
        Kind::Bool => json!({"type": "boolean"}),
        Kind::Choice(words) => json!({"type": "string", "enum": words}),
        Kind::Bytes => json!({"type": ["integer", "string"]}),
        Kind::Texts => json!({"type": "array", "items": {"type": "string"}}),
        Kind::Integers => json!({"type": "array", "items": {"type": "integer"}}),
        Kind::Count(min, max, word) => json!({"anyOf": [
            {"type": "integer", "minimum": min, "maximum": max}, {"const": word}
        ]}),
        Kind::Devices => json!({"type": "array", "items": {"type": ["integer", "string"]}}),
        Kind::Map => json!({"type": "object"}),
    };
    schema["description"] = match key.engines {
        [] => key.about.into(),
        engines => format!("{}: {}", engines.join(", "), key.about).into(),
    };
    // A default is a TOML value, and all of these defaults are JSON too.
    if let Ok(default) = serde_json::from_str::<Value>(key.default) {
        schema["default"] = default;
    }
    schema
}

fn schema(daemon: Daemon) -> Value {
    let mut root = Map::new();
    let mut sections: Vec<(&str, Map<String, Value>, Vec<&str>)> = Vec::new();
    for key in daemon.keys() {
        let Some((section, name)) = key.path.split_once('.') else {
            root.insert(key.path.to_owned(), of_key(key));
            continue;
        };
        let at = sections.iter().position(|(known, ..)| *known == section).unwrap_or_else(|| {
            sections.push((section, Map::new(), Vec::new()));
            sections.len() - 1
        });
        sections[at].1.insert(name.to_owned(), of_key(key));
        if key.required {
            sections[at].2.push(name);
        }
    }
    for (section, properties, required) in sections {
        let block = object(properties, required);
        match section.strip_suffix("[]") {
            Some(list) => root.insert(list.to_owned(), json!({"type": "array", "items": block})),
            None => root.insert(section.to_owned(), block),
        };
    }
    // A key that a flag or a variable can set is not required in the file.
    let required = daemon.keys().iter().filter(|key| key.required && key.flag.is_empty());
    let mut required: Vec<&str> =
        required.filter_map(|key| key.path.split(['.', '[']).next()).collect();
    required.dedup();
    let mut schema = object(root, required);
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = daemon.program().into();
    schema
}

impl Verb for SchemaArgs {
    const KIND: verb::Kind<Self> = verb::Kind::Once;

    /// Prints the schema.
    async fn run(self, _globals: &Globals) -> anyhow::Result<()> {
        write_stdout(&(serde_json::to_string_pretty(&schema(self.of))? + "\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schemas_are_those_that_are_kept() {
        for daemon in [Daemon::Coordinator, Daemon::Worker] {
            let text = serde_json::to_string_pretty(&schema(daemon)).unwrap() + "\n";
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/schema");
            let file = format!("{folder}/{}.json", daemon.program());
            rollout_recorded::check(file, &text);
        }
    }

    #[test]
    fn a_schema_has_every_key_with_its_bounds_and_default() {
        let member = schema(Daemon::Coordinator);
        let heartbeat = &member["properties"]["raft"]["properties"]["heartbeat_ms"];
        assert_eq!((&heartbeat["minimum"], &heartbeat["default"]), (&5.into(), &50.into()));
        assert_eq!(member["properties"]["listen"]["required"], json!(["client", "peer"]));
        assert_eq!(member["required"], json!(["listen", "store"]));
        let worker = schema(Daemon::Worker);
        let engine = &worker["properties"]["engine"]["items"];
        assert_eq!(engine["required"], json!(["kind"]));
        assert_eq!(engine["properties"]["models"]["default"], json!(["*"]));
        let count = |schema: &Value| schema.to_string().matches("\"description\"").count();
        assert_eq!(count(&member), Daemon::Coordinator.keys().len());
        assert_eq!(count(&worker), Daemon::Worker.keys().len());
    }
}
