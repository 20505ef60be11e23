//! Checks that of all requests that create one object, exactly one is answered as its creator.

use crate::operations::{Operation, Outcome};
use crate::value::Value;
use std::collections::BTreeMap;

/// Every object with two creators, or with none although all requests were answered.
pub(super) fn broken(operations: &[Operation]) -> Vec<String> {
    let mut objects: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
    for operation in operations.iter().filter(|operation| &*operation.f == "create") {
        let key = operation.key.as_deref().unwrap_or("?");
        let (made, found, unknown) = objects.entry(key).or_default();
        match &operation.outcome {
            Outcome::Answered { value: Value::Bool(true), .. } => *made += 1,
            Outcome::Answered { .. } => *found += 1,
            Outcome::Unknown => *unknown += 1,
        }
    }
    let mut broken = Vec::new();
    for (key, (made, found, unknown)) in objects {
        if made > 1 {
            broken.push(format!("{made} requests were answered as the creator of {key}"));
        }
        if made == 0 && unknown == 0 && found > 0 {
            broken.push(format!("{found} requests found {key}, which no request created"));
        }
    }
    broken
}
