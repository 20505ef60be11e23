//! The timeline of one object, operation by operation, with the answer that no order explains.
//!
//! *Invariant:* every operation on the object is shown, up to a bound. The page says how many lie before and after
//! those shown, and the first blamed operation is among them.

use super::axes::{Axis, WIDTH};
use super::escaped;
use crate::operations::{Operation, Outcome};
use crate::value::Value;
use crate::verdict::{Judged, Recorded};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::Range;

/// The most objects to show, and the most operations of each.
const KEYS_MAX: usize = 20;
const OPERATIONS_MAX: usize = 300;
const ROW: f64 = 15.0;
const BLAMED: &str = "#cc3311";

/// The objects that violations name, in order; those that no order explains come first.
pub(super) fn failing<'a>(run: &'a Recorded, judged: &Judged) -> Vec<&'a str> {
    let keys: BTreeSet<&str> =
        run.operations.iter().filter_map(|operation| operation.key.as_deref()).collect();
    let violated = judged.violated_keys.iter().map(String::as_str);
    let firsts = judged.violations.iter().filter_map(|violation| violation.lines().next());
    let mut found: Vec<&str> = Vec::new();
    for name in violated.chain(firsts.flat_map(named)) {
        if let Some(key) = keys.get(name).filter(|key| !found.contains(*key)) {
            found.push(*key);
        }
    }
    found.truncate(KEYS_MAX);
    found
}

/// Possible object names in a violation: any word after `item`, and other words that no sentence contains.
fn named(violation: &str) -> impl Iterator<Item = &str> {
    let words = violation.split([' ', ',']).map(|word| word.trim_end_matches([':', ';', '.']));
    let behind = std::iter::once("").chain(words.clone());
    let name = |(before, word): &(&str, &str)| {
        *before == "item" || word.contains(|c: char| !c.is_ascii_alphabetic())
    };
    behind.zip(words).filter(name).map(|(_, word)| word)
}

/// Whether a violation names the operation, by its lines.
fn blamed(operation: &Operation, judged: &Judged) -> bool {
    let Outcome::Answered { line: end, .. } = &operation.outcome else { return false };
    let line = operation.line;
    let names = [format!("(lines {line} and {end})"), format!("line {line}-{end}: ")];
    judged.violations.iter().any(|violation| {
        // For a search, only the unexplained answer counts; the operations listed after it are explained.
        let blame = violation.split("an order of what was answered before").next();
        blame.is_some_and(|blame| names.iter().any(|name| blame.contains(name.as_str())))
    })
}

/// Which of these operations are shown: those around the first blamed one, or else the last ones.
fn shown(count: usize, blamed: Option<usize>) -> Range<usize> {
    let latest = count.saturating_sub(OPERATIONS_MAX);
    let from = blamed.map_or(latest, |at| at.saturating_sub(OPERATIONS_MAX / 2).min(latest));
    from..count.min(from + OPERATIONS_MAX)
}

fn left_out(text: &mut String, count: usize, side: &str) {
    if count > 0 {
        let _ = write!(text, "<p class=\"key\">{count} more operations {side}</p>");
    }
}

/// Its operations, each from its call to its answer.
pub(super) fn of(run: &Recorded, judged: &Judged, key: &str) -> String {
    let mut all: Vec<&Operation> =
        run.operations.iter().filter(|operation| operation.key.as_deref() == Some(key)).collect();
    all.sort_by_key(|operation| operation.called_at);
    let shown = shown(all.len(), all.iter().position(|operation| blamed(operation, judged)));
    let of = &all[shown.clone()];
    let from = of.first().map_or(0, |operation| operation.called_at);
    let last = |operation: &&Operation| operation.answered_at().unwrap_or(operation.called_at);
    // Ignore reads long after the last write: they would compress the interesting part.
    let done = of.iter().filter(|operation| &*operation.f != "read").map(last).max();
    let to = done.or(of.iter().map(last).max()).unwrap_or(0).max(from);
    let axis = Axis::of(run).part(from, to + (to - from) / 50 + 1);
    let mut body = String::new();
    for (row, operation) in of.iter().enumerate() {
        drawn(&mut body, &axis, row as f64 * ROW, operation, blamed(operation, judged));
    }
    let mut text = String::new();
    left_out(&mut text, shown.start, "before these");
    text += &axis.svg(of.len() as f64 * ROW, &body);
    left_out(&mut text, all.len() - shown.end, "behind these");
    text
}

fn drawn(body: &mut String, axis: &Axis, y: f64, operation: &Operation, blamed: bool) {
    let left = axis.x(operation.called_at);
    let (right, answer, color) = match &operation.outcome {
        Outcome::Unknown => (WIDTH, "unknown".to_owned(), "#aa7700"),
        Outcome::Answered { value, at, position, .. } => {
            let position =
                position.map_or_else(String::new, |position| format!(" at {}", position.at));
            let color = match value {
                _ if blamed => BLAMED,
                _ if &*operation.f == "read" => "#228833",
                Value::Bool(false) => "#ee6677",
                _ => "#4477aa",
            };
            (axis.x(*at), format!("{value}{position}"), color)
        }
    };
    let Operation { f, input, line, .. } = operation;
    let called = operation.called_at as f64 / 1e9;
    let what = format!("{called:.3} s, line {line}: {f} {input} -> {answer}");
    let weight = if blamed { " font-weight=\"bold\"" } else { "" };
    // Put the text where there is room for it.
    let (x, anchor) = if left > WIDTH / 2.0 {
        (left - 4.0, "end")
    } else {
        (right.min(WIDTH / 2.0) + 4.0, "start")
    };
    let _ = write!(
        body,
        "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{}\" fill=\"{color}\" \
         fill-opacity=\".6\"/><text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" \
         style=\"fill:{color}\"{weight}>{}</text>",
        y + 2.0,
        (right - left).max(2.0),
        ROW - 4.0,
        y + 11.0,
        escaped(&what)
    );
}
