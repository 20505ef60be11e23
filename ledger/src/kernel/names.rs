//! Names that people type, and labels.
//!
//! *Invariant:* both are bounded before they are stored.
//! Absent: names of members, URLs and free texts.

use crate::kernel::limits;
use crate::kernel::reply::Rejection;
use std::collections::BTreeMap;

pub(crate) fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), Rejection> {
    if labels.len() > limits::LABELS_MAX {
        return Err(Rejection::Invalid(format!("more than {} labels", limits::LABELS_MAX)));
    }
    if labels.iter().any(|(k, v)| k.len().max(v.len()) > limits::NAME_BYTES_MAX) {
        return Err(Rejection::Invalid("a label is too long".into()));
    }
    Ok(())
}

/// A name that people type: letters, digits, `.`, `_`, `-`, not at its start.
pub(crate) fn check_name(what: &str, name: &str) -> Result<(), Rejection> {
    let mut chars = name.chars();
    let good = chars.next().is_some_and(|c| c.is_ascii_alphanumeric())
        && chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
        && name.len() <= limits::NAME_BYTES_MAX;
    match good {
        true => Ok(()),
        false => Err(Rejection::Invalid(format!(
            "the {what} name has to be 1 to {} of a-z A-Z 0-9 . _ - and to begin with a letter \
             or digit",
            limits::NAME_BYTES_MAX
        ))),
    }
}
