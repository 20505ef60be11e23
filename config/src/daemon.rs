//! The daemons, their keys and their schemas.

use std::sync::LazyLock;

use serde_json::Value;

use crate::key::{self, Key};
use crate::{coordinator, schema as derived, worker};

/// A daemon with a configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Daemon {
    /// A member.
    Coordinator,
    Worker,
}

impl Daemon {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Coordinator, Self::Worker];

    /// The name of its program.
    pub fn program(self) -> &'static str {
        match self {
            Self::Coordinator => "rollout-coordinator",
            Self::Worker => "rollout-worker",
        }
    }
}

/// Every key of a daemon's file, in the order of its type.
pub fn keys(daemon: Daemon) -> &'static [Key] {
    static COORDINATOR: LazyLock<Vec<Key>> = LazyLock::new(key::keys_of::<coordinator::File>);
    static WORKER: LazyLock<Vec<Key>> = LazyLock::new(key::keys_of::<worker::Config>);
    match daemon {
        Daemon::Coordinator => &COORDINATOR,
        Daemon::Worker => &WORKER,
    }
}

/// The JSON Schema of a daemon's file.
pub fn schema(daemon: Daemon) -> Value {
    let mut schema = match daemon {
        Daemon::Coordinator => derived::plain(derived::annotated::<coordinator::File>()),
        Daemon::Worker => derived::plain(derived::annotated::<worker::Config>()),
    };
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = daemon.program().into();
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at<'a>(schema: &'a Value, path: &str) -> &'a Value {
        path.split('.').fold(schema, |schema, name| &schema["properties"][name])
    }

    #[test]
    fn a_schema_has_every_key_with_its_bounds_and_default() {
        let member = schema(Daemon::Coordinator);
        let heartbeat = at(&member, "raft.heartbeat_ms");
        assert_eq!((&heartbeat["minimum"], &heartbeat["default"]), (&5.into(), &50.into()));
        assert_eq!(at(&member, "raft.profile")["enum"], serde_json::json!(["near", "far-zones"]));
        assert_eq!(at(&member, "listen")["required"], serde_json::json!(["client", "peer"]));
        assert_eq!(member["required"], serde_json::json!(["listen", "store"]));
        let worker = schema(Daemon::Worker);
        let engine = &at(&worker, "engine")["items"];
        assert_eq!(engine["required"], serde_json::json!(["kind"]));
        assert_eq!(at(engine, "models")["default"], serde_json::json!(["*"]));
        for (daemon, schema) in [(Daemon::Coordinator, member), (Daemon::Worker, worker)] {
            let text = schema.to_string();
            assert_eq!(text.matches("\"description\"").count(), keys(daemon).len(), "{daemon:?}");
            for absent in ["null", "\"x-", "\"format\"", "$ref", "oneOf"] {
                assert!(!text.contains(absent), "{absent} in {text}");
            }
        }
    }

    #[test]
    fn every_key_says_what_it_is_for_in_one_line() {
        for key in Daemon::ALL.into_iter().flat_map(keys) {
            let about = &key.about;
            assert!(!about.is_empty() && !about.ends_with('.'), "{}: {about}", key.path);
            assert!(about.len() <= 100 && !about.contains("]("), "{}: {about}", key.path);
        }
    }
}
