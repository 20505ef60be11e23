//! The items that a report lists, and their names: found in its JSON, so that all commands agree.
//!
//! Invariant: a name is what the commands accept as NAME. Absent: prefixes with the kind, which no
//! command accepts.

use serde_json::{Map, Value};

/// The keys that name an item, the most specific first.
const KEYS: [&str; 13] = [
    "keyId", "name", "member", "worker", "barrier", "dataset", "row", "number", "key", "run",
    "job", "code", "file",
];
/// Reports that wrap the item under one of these keys.
const WRAPPERS: [&str; 2] = ["run", "job"];

/// The items that a report lists; `None` if it is about a single item.
pub(super) fn listed(data: &Value) -> Option<&Vec<Value>> {
    let Value::Object(map) = data else { return None };
    let wraps = WRAPPERS.iter().any(|key| map.get(*key).is_some_and(Value::is_object));
    match name(map) {
        None if !wraps => map.values().find_map(Value::as_array),
        _ => None,
    }
}

/// The names in a report, in order; `None` if it has none.
pub(super) fn names(data: &Value) -> Option<Vec<String>> {
    if let Some(list) = listed(data) {
        return list.iter().map(one).collect();
    }
    one(data).map(|name| vec![name])
}

fn one(data: &Value) -> Option<String> {
    match data {
        Value::Object(map) => name(map).or_else(|| {
            WRAPPERS
                .iter()
                .find_map(|key| map.get(*key).and_then(one))
                .or_else(|| text(map.get("leader")?))
        }),
        other => text(other),
    }
}

fn name(map: &Map<String, Value>) -> Option<String> {
    KEYS.iter().find_map(|key| map.get(*key).and_then(text))
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_those_that_commands_take() {
        let of = |value: Value| names(&value);
        let runs = json!({"runs": [{"run": 1, "name": "a"}, {"run": 2, "name": "b"}]});
        assert_eq!(of(runs), Some(vec!["a".into(), "b".into()]));
        let members = json!({"leader": "c1", "members": [{"name": "c1"}, {"name": "c2"}]});
        assert_eq!(of(members), Some(vec!["c1".into(), "c2".into()]));
        assert_eq!(of(json!({"leader": "c2", "coordEpoch": "7"})), Some(vec!["c2".into()]));
        let described = json!({"run": {"run": 3, "name": "eval"}, "failures": [{"row": "7"}]});
        assert_eq!(of(described), Some(vec!["eval".into()]));
        assert_eq!(of(json!({"items": [{"row": "17"}]})), Some(vec!["17".into()]));
        assert_eq!(of(json!({"runs": []})), Some(Vec::new()));
        assert_eq!(of(json!({"version": "1"})), None);
    }
}
