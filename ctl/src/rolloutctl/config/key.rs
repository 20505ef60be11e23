//! One key of a configuration.
//!
//! Invariant: a path is that of the file, `section.key`; `engine[].` stands for each `[[engine]]` block. Deliberately
//! absent: checks that take several keys; `check` has them.

use toml::Value;

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    /// Any text.
    Text,
    /// A file or directory.
    Path,
    /// An IP address and port, without a host name.
    Address,
    /// A whole number within inclusive bounds.
    Integer(u64, u64),
    /// A number.
    Float,
    /// `true` or `false`.
    Bool,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A number of bytes, or text such as `"8MiB"`.
    Bytes,
    /// A list of texts.
    Texts,
    /// A list of whole numbers.
    Integers,
    /// A whole number within bounds, or this word.
    Count(u64, u64, &'static str),
    /// A list of whole numbers and texts.
    Devices,
    /// Names with texts, or with other values that the daemon accepts.
    Map,
}

/// A key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key {
    pub(super) path: &'static str,
    pub(super) kind: Kind,
    /// In TOML; empty if there is none.
    pub(super) default: &'static str,
    /// The default with `[raft] profile = "far-zones"`, if it differs.
    pub(super) far_default: &'static str,
    pub(super) required: bool,
    pub(super) env: &'static str,
    pub(super) flag: &'static str,
    /// The kinds of engine that have it; empty for all.
    pub(super) engines: &'static [&'static str],
    pub(super) about: &'static str,
}

/// A key with its default in TOML, or `""`.
pub(super) const fn key(
    path: &'static str,
    kind: Kind,
    default: &'static str,
    about: &'static str,
) -> Key {
    let none = "";
    Key {
        path,
        kind,
        default,
        far_default: none,
        required: false,
        env: none,
        flag: none,
        engines: &[],
        about,
    }
}

impl Key {
    pub(super) const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    pub(super) const fn env(mut self, name: &'static str) -> Self {
        self.env = name;
        self
    }

    pub(super) const fn flag(mut self, name: &'static str) -> Self {
        self.flag = name;
        self
    }

    pub(super) const fn far(mut self, default: &'static str) -> Self {
        self.far_default = default;
        self
    }

    pub(super) const fn of(mut self, engines: &'static [&'static str]) -> Self {
        self.engines = engines;
        self
    }

    /// Whether an engine of this kind has it.
    pub(super) fn has(&self, engine: &str) -> bool {
        self.engines.is_empty() || self.engines.contains(&engine)
    }

    /// What is wrong with a value in a file; `None` if it is valid.
    pub(super) fn problem(&self, value: &Value) -> Option<String> {
        let good = match (self.kind, value) {
            (Kind::Text | Kind::Path, Value::String(_)) | (Kind::Bool, Value::Boolean(_)) => true,
            (Kind::Address, Value::String(text)) => text.parse::<std::net::SocketAddr>().is_ok(),
            (Kind::Integer(min, max) | Kind::Count(min, max, _), Value::Integer(number)) => {
                let within = u64::try_from(*number).is_ok_and(|n| (min..=max).contains(&n));
                if !within {
                    return Some(format!("{number} is not in {min} to {max}"));
                }
                true
            }
            (Kind::Float, Value::Float(_) | Value::Integer(_)) => true,
            (Kind::Choice(words), Value::String(text)) => words.contains(&text.as_str()),
            (Kind::Bytes, Value::Integer(number)) => *number >= 0,
            (Kind::Bytes, Value::String(text)) => is_size(text),
            (Kind::Texts, Value::Array(list)) => list.iter().all(Value::is_str),
            (Kind::Integers, Value::Array(list)) => list.iter().all(Value::is_integer),
            (Kind::Count(_, _, word), Value::String(text)) => text == word,
            (Kind::Devices, Value::Array(list)) => {
                list.iter().all(|device| device.is_integer() || device.is_str())
            }
            (Kind::Map, Value::Table(_)) => true,
            _ => false,
        };
        (!good).then(|| format!("{value} is not {}", self.wanted()))
    }

    fn wanted(&self) -> String {
        match self.kind {
            Kind::Text | Kind::Path => "a text in quotes".to_owned(),
            Kind::Address => "an address and port, such as 0.0.0.0:7420".to_owned(),
            Kind::Integer(..) => "a whole number".to_owned(),
            Kind::Float => "a number".to_owned(),
            Kind::Bool => "true or false".to_owned(),
            Kind::Choice(words) => format!("one of {}", words.join(", ")),
            Kind::Bytes => "a number of bytes, or text such as \"8MiB\"".to_owned(),
            Kind::Texts => "a list of texts".to_owned(),
            Kind::Integers => "a list of whole numbers".to_owned(),
            Kind::Count(_, _, word) => format!("a whole number, or \"{word}\""),
            Kind::Devices => "a list of device numbers or UUIDs".to_owned(),
            Kind::Map => "a table of names".to_owned(),
        }
    }
}

fn is_size(text: &str) -> bool {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == ' ');
    let unit = text[digits.len()..].trim();
    digits.parse::<u64>().is_ok() && ["", "B", "KiB", "MiB", "GiB"].contains(&unit)
}
