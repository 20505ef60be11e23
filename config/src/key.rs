//! One key of a configuration, read from the schema of its type.
//!
//! Invariant: a path is that of the file, `section.key`; `engine[].` stands for each `[[engine]]` block.
//! Absent: checks that take several keys.

use schemars::JsonSchema;
use serde_json::Value as Json;
use toml::Value;

use crate::{schema, size};

/// The type of a value.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// Any text, also of a path.
    Text,
    /// An IP address and port, without a host name.
    Address,
    /// A whole number within inclusive bounds.
    Integer(u64, u64),
    /// A number.
    Float,
    /// `true` or `false`.
    Bool,
    /// One of these words.
    Choice(Vec<String>),
    /// A number of bytes within bounds, or text such as `"8MiB"`.
    Bytes(u64, u64),
    /// A list of texts.
    Texts,
    /// A list of whole numbers.
    Integers,
    /// A whole number within bounds, or this word.
    Count(u64, u64, String),
    /// A list of whole numbers and texts.
    Devices,
    /// Names with texts, or with other values that the daemon accepts.
    Map,
}

#[derive(Debug, Clone)]
pub struct Key {
    pub path: String,
    /// Its type.
    pub kind: Kind,
    /// Its default in TOML; empty if there is none.
    pub default: String,
    /// The default with `[raft] profile = "far-zones"`, if it differs.
    pub far_default: String,
    /// A file that has its section must have it, unless a flag or a variable gives it.
    pub required: bool,
    /// A file may omit its section.
    pub section_optional: bool,
    /// The variable that overrides the file; empty if there is none.
    pub env: String,
    /// The flag that overrides the variable; empty if there is none.
    pub flag: String,
    /// The kinds of engine that have it; empty for all.
    pub engines: Vec<String>,
    /// What it is for, in a line.
    pub about: String,
    /// More about it, in Markdown, for the page of the settings.
    pub more: String,
}

/// Every key of a file of this type.
pub(crate) fn keys_of<T: JsonSchema>() -> Vec<Key> {
    let file = schema::annotated::<T>();
    let mut keys = Vec::new();
    for (name, property) in properties(&file) {
        let optional = !requires(&file, name);
        let (section, prefix) = match property.get("items") {
            Some(items) if items["properties"].is_object() => (items, format!("{name}[].")),
            _ => (property, format!("{name}.")),
        };
        if section["properties"].is_object() {
            let inner = properties(section).map(|(name, schema)| {
                let required = requires(section, name);
                Key::read(format!("{prefix}{name}"), schema, required, optional)
            });
            keys.extend(inner);
        } else {
            keys.push(Key::read(name.clone(), property, !optional, false));
        }
    }
    keys
}

fn properties(section: &Json) -> impl Iterator<Item = (&String, &Json)> {
    section["properties"].as_object().into_iter().flatten()
}

fn requires(section: &Json, name: &str) -> bool {
    section["required"].as_array().is_some_and(|list| list.iter().any(|one| one == name))
}

impl Key {
    fn read(path: String, schema: &Json, required: bool, section_optional: bool) -> Self {
        let text = |name: &str| schema[name].as_str().unwrap_or_default().to_owned();
        // A default is a JSON value, and all of these are TOML too.
        let toml = |name: &str| schema.get(name).map(Json::to_string).unwrap_or_default();
        Self {
            path,
            kind: Kind::read(schema),
            default: toml("default"),
            far_default: toml("x-far"),
            required: required || schema.get("x-required").is_some(),
            section_optional,
            env: text("x-env"),
            flag: text("x-flag"),
            engines: texts(&schema["x-engines"]),
            about: text("description"),
            more: text("x-more"),
        }
    }

    /// Its section, or the key itself if it is in none.
    pub fn root(&self) -> &str {
        self.path.split(['.', '[']).next().unwrap_or(&self.path)
    }

    /// Whether an engine of this kind has it.
    pub fn has(&self, engine: &str) -> bool {
        self.engines.is_empty() || self.engines.iter().any(|of| of == engine)
    }

    /// Whether every file must have it, unless a flag or a variable gives it.
    pub fn is_needed(&self) -> bool {
        self.required && !self.section_optional
    }

    /// What is wrong with a value in a file; `None` if it is valid.
    pub fn problem(&self, value: &Value) -> Option<String> {
        let good = match (&self.kind, value) {
            (Kind::Text, Value::String(_)) | (Kind::Bool, Value::Boolean(_)) => true,
            (Kind::Address, Value::String(text)) => text.parse::<std::net::SocketAddr>().is_ok(),
            (
                Kind::Integer(min, max) | Kind::Count(min, max, _) | Kind::Bytes(min, max),
                Value::Integer(number),
            ) => return outside((*number).into(), *min, *max),
            (Kind::Bytes(min, max), Value::String(text)) => match size::parse(text) {
                Ok(number) => return outside(number.into(), *min, *max),
                Err(_) => false,
            },
            (Kind::Float, Value::Float(_) | Value::Integer(_)) => true,
            (Kind::Choice(words), Value::String(text)) => words.contains(text),
            (Kind::Texts, Value::Array(list)) => list.iter().all(Value::is_str),
            (Kind::Integers, Value::Array(list)) => list.iter().all(Value::is_integer),
            (Kind::Count(_, _, word), Value::String(text)) => text == word,
            (Kind::Devices, Value::Array(list)) => {
                list.iter().all(|device| device.is_integer() || device.is_str())
            }
            (Kind::Map, Value::Table(_)) => true,
            _ => false,
        };
        (!good).then(|| format!("{value} is not {}", self.kind.wanted()))
    }
}

/// What is wrong with a number; `None` if it is within the bounds.
pub(crate) fn outside(number: i128, min: u64, max: u64) -> Option<String> {
    let within = (i128::from(min)..=i128::from(max)).contains(&number);
    // No file can exceed the second bound.
    let open = max == i64::MAX as u64;
    match (within, open) {
        (true, _) => None,
        (false, true) => Some(format!("{number} is less than {min}")),
        (false, false) => Some(format!("{number} is not in {min} to {max}")),
    }
}

fn texts(list: &Json) -> Vec<String> {
    let texts = list.as_array().into_iter().flatten().filter_map(Json::as_str);
    texts.map(str::to_owned).collect()
}

impl Kind {
    fn read(schema: &Json) -> Self {
        let bound = |schema: &Json| {
            let of = |name: &str, none| schema[name].as_u64().unwrap_or(none);
            (of("minimum", 0), of("maximum", i64::MAX as u64))
        };
        if let [number, word] = schema["anyOf"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let ((min, max), word) = (bound(number), word["const"].as_str().unwrap_or_default());
            return Self::Count(min, max, word.to_owned());
        }
        if schema["enum"].is_array() {
            return Self::Choice(texts(&schema["enum"]));
        }
        let (min, max) = bound(schema);
        match schema["type"].as_str() {
            Some("integer") => Self::Integer(min, max),
            Some("number") => Self::Float,
            Some("boolean") => Self::Bool,
            Some("object") => Self::Map,
            Some("array") => match schema["items"]["type"].as_str() {
                Some("integer") => Self::Integers,
                Some(_) => Self::Texts,
                None => Self::Devices,
            },
            Some(_) if schema["format"] == "address" => Self::Address,
            Some(_) => Self::Text,
            None => Self::Bytes(min, max),
        }
    }

    fn wanted(&self) -> String {
        match self {
            Self::Text => "a text in quotes".to_owned(),
            Self::Address => "an address and port, such as 0.0.0.0:7420".to_owned(),
            Self::Integer(..) => "a whole number".to_owned(),
            Self::Float => "a number".to_owned(),
            Self::Bool => "true or false".to_owned(),
            Self::Choice(words) => format!("one of {}", words.join(", ")),
            Self::Bytes(..) => "a number of bytes, or text such as \"8MiB\"".to_owned(),
            Self::Texts => "a list of texts".to_owned(),
            Self::Integers => "a list of whole numbers".to_owned(),
            Self::Count(_, _, word) => format!("a whole number, or \"{word}\""),
            Self::Devices => "a list of device numbers or UUIDs".to_owned(),
            Self::Map => "a table of names".to_owned(),
        }
    }
}
