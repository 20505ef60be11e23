//! The tables of docs/operating/configuration.md.
//!
//! Invariant: a table has a row for every key, in the order of the file.

use crate::key::{Key, Kind};

/// The largest bound that says nothing more than the type.
const OPEN: u64 = u32::MAX as u64;

/// The table of a daemon's keys, in Markdown.
pub fn table(keys: &[Key]) -> String {
    let mut text = "| key | default | meaning |\n| --- | --- | --- |\n".to_owned();
    let mut section = "";
    for key in keys {
        let (of, name) = key.path.split_once('.').unwrap_or(("", key.path.as_str()));
        let header = match of.strip_suffix("[]") {
            _ if of == section => String::new(),
            Some(list) => format!("**[[{list}]]** "),
            None => format!("**[{of}]** "),
        };
        section = of;
        let header = if of.is_empty() { String::new() } else { header };
        text.push_str(&format!("| {header}`{name}` | {} | {} |\n", default(key), meaning(key)));
    }
    text
}

fn default(key: &Key) -> String {
    let shown = |toml: &str| match toml.starts_with(['"', '[']) {
        true => format!("`{toml}`"),
        false => toml.to_owned(),
    };
    match (key.required, key.default.as_str(), key.far_default.as_str()) {
        (true, ..) if key.section_optional => "required there".to_owned(),
        (true, ..) => "required".to_owned(),
        (false, "", _) => "none".to_owned(),
        (false, default, "") => shown(default),
        (false, near, far) => format!("{} (far: {})", shown(near), shown(far)),
    }
}

fn meaning(key: &Key) -> String {
    let mut sentences = vec![format!("{}.", key.about)];
    if !key.engines.is_empty() {
        sentences.insert(0, format!("{}:", key.engines.join(", ")));
    }
    sentences.extend(Some(key.more.clone()).filter(|more| !more.is_empty()));
    sentences.extend(bounds(&key.kind).map(|bounds| format!("{bounds}.")));
    let names: Vec<String> = [&key.flag, &key.env]
        .into_iter()
        .filter(|name| !name.is_empty())
        .map(|name| format!("`{name}`"))
        .collect();
    sentences.extend(Some(names.join(", ")).filter(|names| !names.is_empty()));
    sentences.join(" ")
}

/// What may be given, where the type allows less than it seems to.
fn bounds(kind: &Kind) -> Option<String> {
    match kind {
        Kind::Choice(words) => {
            let words: Vec<String> = words.iter().map(|word| format!("`\"{word}\"`")).collect();
            Some(format!("One of {}", words.join(", ")))
        }
        Kind::Integer(0 | 1, OPEN..) | Kind::Bytes(_, OPEN..) => None,
        Kind::Integer(min, OPEN..) => Some(format!("At least {min}")),
        Kind::Integer(min, max) | Kind::Count(min, max, _) | Kind::Bytes(min, max) => {
            Some(format!("{min} to {max}"))
        }
        _ => None,
    }
}
