//! The format: comments and blank lines, then one or more lines of input, `----`, and the answer up to the next blank
//! line.
//!
//! *Invariant:* replaying a file writes the same file except for its answers.

use super::world::World;
use std::collections::BTreeSet;
use std::path::Path;

/// Plays a story and returns it with the answers that were given, and the names of the refusals among them.
pub(crate) fn play(told: &str, name: &str) -> (String, BTreeSet<&'static str>) {
    let mut world = World::new();
    let mut out = String::new();
    let mut input: Vec<&str> = Vec::new();
    let mut lines = told.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let line = line.trim_end();
        if line != "----" {
            out.push_str(line);
            out.push('\n');
            let comment = line.is_empty() || line.starts_with('#');
            assert!(!comment || input.is_empty(), "{name}:{}: no ---- before this", number + 1);
            if !comment {
                input.push(line);
            }
            continue;
        }
        let answer =
            world.block(&input).unwrap_or_else(|error| panic!("{name}:{}: {error}", number + 1));
        input.clear();
        out.push_str("----\n");
        out.push_str(answer.trim_end());
        out.push_str("\n\n");
        for (_, line) in lines.by_ref() {
            if line.trim_end().is_empty() {
                break;
            }
        }
    }
    assert!(input.is_empty(), "{name}: the last input has no ----");
    out.truncate(out.trim_end().len());
    out.push('\n');
    (out, world.refused)
}

/// The first line at which two versions part, for a failing test.
pub(crate) fn difference(path: &Path, told: &str, happened: &str) -> String {
    let (mut told, mut happened) = (told.lines(), happened.lines());
    let mut number = 0;
    loop {
        number += 1;
        let (told, happened) = (told.next(), happened.next());
        if told != happened || told.is_none() {
            let path = path.display();
            return format!("{path}:{number}\n  told     {told:?}\n  happened {happened:?}");
        }
    }
}
