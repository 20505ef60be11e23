//! Owns: the fields of a row that are read, and finding them in a line.
//!
//! Invariant: finding builds no tree and copies no value; a duplicate field is an error, and so is a value that is not
//! JSON.
//! Absent: which values are valid (`row`).

use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::task::Task;
use crate::canonical::Text;

/// A field that is read. The variants are in the order of their names, as in canonical JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Column {
    /// In an OpenAI Batch line: the request.
    Body,
    /// Arguments of the chat template.
    ChatTemplateKwargs,
    /// The document to score.
    Document,
    /// The row's own id.
    Id,
    /// The adapter's name.
    Lora,
    /// A conversation.
    Messages,
    /// In an OpenAI Batch line: POST.
    Method,
    /// A text to continue.
    Prompt,
    /// The query for which documents are scored.
    Query,
    /// Sampling parameters that override the run's.
    SamplingParams,
    /// In an OpenAI Batch line: the path.
    Url,
}

/// All of them.
pub const COLUMNS: [Column; 11] = [
    Column::Body,
    Column::ChatTemplateKwargs,
    Column::Document,
    Column::Id,
    Column::Lora,
    Column::Messages,
    Column::Method,
    Column::Prompt,
    Column::Query,
    Column::SamplingParams,
    Column::Url,
];

impl Column {
    /// Its name in a row of that task.
    pub fn name(self, task: Task) -> &'static str {
        match self {
            Self::Body => "body",
            Self::ChatTemplateKwargs => "chat_template_kwargs",
            Self::Document => "document",
            Self::Id => task.id_field(),
            Self::Lora => "lora",
            Self::Messages => "messages",
            Self::Method => "method",
            Self::Prompt => "prompt",
            Self::Query => "query",
            Self::SamplingParams => "sampling_params",
            Self::Url => "url",
        }
    }

    /// The field of that name, if the task reads it.
    pub fn of(name: &str, task: Task) -> Option<Self> {
        COLUMNS.into_iter().find(|column| column.is_of(task) && column.name(task) == name)
    }

    /// Whether it is part of the request to the model, without which a row is invalid.
    pub fn is_asked(self) -> bool {
        matches!(self, Self::Prompt | Self::Messages | Self::Query | Self::Document)
    }

    /// Whether a task reads it.
    pub fn is_of(self, task: Task) -> bool {
        match self {
            Self::Id => true,
            Self::Body | Self::Method | Self::Url => task == Task::Openai,
            Self::Document | Self::Query => task == Task::Score,
            Self::Lora => task != Task::Openai,
            Self::ChatTemplateKwargs | Self::Messages | Self::Prompt => {
                matches!(task, Task::Generate | Task::Embed)
            }
            Self::SamplingParams => task == Task::Generate,
        }
    }
}

/// The values of a row's fields, as they were written.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FieldValues<'a>([Option<&'a RawValue>; COLUMNS.len()]);

impl<'a> FieldValues<'a> {
    pub(crate) fn get(&self, column: Column) -> Option<&'a RawValue> {
        self.0[column as usize]
    }

    /// The same, but a null counts as missing.
    pub(crate) fn given(&self, column: Column) -> Option<&'a RawValue> {
        self.get(column).filter(|value| value.get() != "null")
    }

    /// Records a value; false if there already is one.
    pub(crate) fn set(&mut self, column: Column, value: &'a RawValue) -> bool {
        self.0[column as usize].replace(value).is_none()
    }
}

/// Finds the fields of a task in an object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Find(pub(crate) Task);

impl<'de> DeserializeSeed<'de> for Find {
    type Value = FieldValues<'de>;

    fn deserialize<D: serde::Deserializer<'de>>(self, de: D) -> Result<Self::Value, D::Error> {
        de.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Find {
    type Value = FieldValues<'de>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a row, a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = FieldValues::default();
        while let Some(Text(key)) = map.next_key()? {
            let Some(column) = Column::of(&key, self.0) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if !found.set(column, map.next_value()?) {
                return Err(serde::de::Error::custom(format!("\"{key}\" appears twice")));
            }
        }
        Ok(found)
    }
}
