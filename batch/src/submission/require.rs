//! Owns: `[workers] require`, the conditions on a worker's versions and devices, in the form in which they are
//! submitted.
//!
//! Invariant: two ways to write a condition become one text, and therefore one spec.
//! Absent: whether a worker meets a condition; the cluster's ledger decides that.

use std::collections::BTreeMap;

/// Signs, the longer ones first.
const SIGNS: [&str; 7] = [">=", "<=", "==", "!=", ">", "<", "="];

/// The same conditions without superfluous spaces.
///
/// # Errors
/// Names the condition that is empty or too long.
pub(super) fn plain(require: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, String> {
    let plain = require.into_iter().map(|(name, condition)| {
        let terms = condition.split(',').map(|term| {
            let term = term.trim();
            let sign = SIGNS.iter().find(|sign| term.starts_with(**sign)).copied().unwrap_or("");
            let operand = term[sign.len()..].trim();
            match operand.is_empty() {
                true => {
                    Err(format!("{name} = {condition:?} asks for nothing; write it as \">=0.32\""))
                }
                false => Ok(format!("{}{operand}", if sign == "==" { "=" } else { sign })),
            }
        });
        let text = terms.collect::<Result<Vec<_>, _>>()?.join(",");
        match name.is_empty() || name.len().max(text.len()) > 128 {
            true => Err(format!("{name:?} or its condition is empty or longer than 128 bytes")),
            false => Ok((name, text)),
        }
    });
    plain.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(asked: &str) -> Result<String, String> {
        let require = BTreeMap::from([("vllm".to_owned(), asked.to_owned())]);
        plain(require).map(|all| all["vllm"].clone())
    }

    #[test]
    fn one_condition_is_one_text_however_it_is_written() {
        for (asked, text) in [
            (">= 0.32", ">=0.32"),
            (" >=0.32 ,< 0.40", ">=0.32,<0.40"),
            ("== 0.32", "=0.32"),
            ("H100", "H100"),
            ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
        ] {
            assert_eq!(of(asked).unwrap(), text);
        }
        for bad in ["", ">=", ">=0.3,", &"x".repeat(200)] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
