//! Owns: what a row is: the request to the model, an optional ID, its own parameters, any other fields.
//!
//! Invariant: parsing borrows from the line, builds no tree, and never panics. An error has the column of the problem,
//! in characters from 1.
//! Absent: the meaning of other fields; they are returned as they were written.

use std::borrow::Cow;

use serde::de::DeserializeSeed;
use serde_json::value::RawValue;

use super::column::{Column, FieldValues, Find};
use super::line_fault::{LineCode, LineFault};
use super::mapping::Mapping;
use super::openai::{self, Refused};
use super::task::Task;
use crate::canonical::{Fields, canonical, plain_message};
use crate::sampling::{Sampling, SamplingProblem};

/// The most bytes of a row's own id, as JSON.
pub const ID_BYTES_MAX: usize = 1024;
/// The most bytes of an adapter's name.
const LORA_BYTES_MAX: usize = 1024;

/// What is wrong with a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowError {
    /// In characters, from 1.
    pub column: usize,
    /// Lower case, without a full stop.
    pub message: String,
    /// Its code, which matters for lines of the OpenAI Batch format.
    pub fault: LineFault,
}

/// A row, borrowed from its line.
#[derive(Debug)]
pub struct Row<'a> {
    /// The canonical JSON of the request: a prompt alone is a string, messages alone are an array, anything else is an
    /// object with the parts of the request by name.
    pub request_json: Cow<'a, str>,
    /// The canonical JSON of the row's own id.
    pub id_json: Option<Cow<'a, str>>,
    /// If the row has its own parameters: the canonical JSON of the run's parameters, overridden by these.
    pub sampling_json: Option<String>,
    /// If columns are mapped: the row as workers read it.
    pub rewritten: Option<String>,
    /// Which of the mapped columns it has, one bit each.
    pub present: u16,
    /// Why an engine will refuse it, if known: the row then fails, but the input is valid.
    pub refused: Option<RowError>,
    /// A parameter of it that an engine may not know.
    pub unknown: Option<RowError>,
}

/// The line that the values of a row are in, for errors.
struct Line<'a>(&'a str);

impl Line<'_> {
    fn at(&self, value: &RawValue, message: String) -> RowError {
        self.at_fault(value, message, LineFault::whole(LineCode::InvalidJsonLine))
    }

    fn at_fault(&self, value: &RawValue, message: String, fault: LineFault) -> RowError {
        RowError { column: characters(self.0, offset(self.0, value.get())), message, fault }
    }

    fn whole(message: impl Into<String>) -> RowError {
        Self::lacking(message, LineFault::whole(LineCode::InvalidJsonLine))
    }

    fn lacking(message: impl Into<String>, fault: LineFault) -> RowError {
        RowError { column: 1, message: message.into(), fault }
    }

    fn syntax(&self, error: &serde_json::Error) -> RowError {
        let column = characters(self.0, error.column().saturating_sub(1));
        let fault = LineFault::whole(LineCode::InvalidJsonLine);
        RowError { column, message: plain_message(error), fault }
    }
}

impl<'a> Row<'a> {
    /// Parses one line of a run with that task and sampling, or a row that was stored in a segment.
    pub fn parse(
        line: &'a str,
        task: Task,
        sampling: &Sampling,
        mapping: Option<&Mapping>,
    ) -> Result<Self, RowError> {
        let of = Line(line);
        let Some(mapping) = mapping else {
            let found = fields(line, task).map_err(|error| of.syntax(&error))?;
            return Self::of(&of, &found, None, task, sampling);
        };
        let fields = serde_json::from_str::<Fields<'a>>(line).map_err(|error| of.syntax(&error))?;
        let mapped = mapping.find(fields).map_err(Line::whole)?;
        let mut row = Self::of(&of, &mapped.found, mapped.prompt_json.clone(), task, sampling)?;
        let mut rewritten = String::with_capacity(line.len() + mapping.growth());
        mapping.write(&mapped, &mut rewritten);
        row.rewritten = Some(rewritten);
        row.present = mapped.present;
        Ok(row)
    }

    fn of(
        line: &Line<'a>,
        found: &FieldValues<'a>,
        made: Option<String>,
        task: Task,
        sampling: &Sampling,
    ) -> Result<Self, RowError> {
        let id_json = match found.given(Column::Id) {
            Some(id) => {
                let fault = LineFault::new(LineCode::InvalidCustomId, task.id_field());
                let wrong = |message: String| {
                    line.at_fault(id, format!("\"{}\" {message}", task.id_field()), fault)
                };
                Some(own_id(id, task).map_err(wrong)?)
            }
            None if task == Task::Openai => {
                let message = "an OpenAI Batch line needs a \"custom_id\"";
                return Err(Line::lacking(message, LineFault::missing("custom_id")));
            }
            None => None,
        };
        let request_json = match task {
            Task::Openai => openai::request(found)
                .map_err(|Refused { value, message, fault }| match value {
                    Some(value) => line.at_fault(value, message, fault),
                    None => Line::lacking(message, fault),
                })?
                .into(),
            Task::Score => score_request(line, found)?.into(),
            Task::Generate | Task::Embed => prompt_request(line, found, made)?,
        };
        let own = found.given(Column::SamplingParams);
        let mut row = Self {
            request_json,
            id_json,
            sampling_json: None,
            rewritten: None,
            present: 0,
            refused: None,
            unknown: None,
        };
        if let Some(own) = own {
            let wrong = |message| line.at(own, format!("\"sampling_params\": {message}"));
            let (merged, problem) = sampling.of_row(own).map_err(wrong)?;
            row.sampling_json = Some(merged);
            match problem {
                Some(SamplingProblem::Refused(why)) => row.refused = Some(wrong(why)),
                Some(SamplingProblem::Unknown(why)) => row.unknown = Some(wrong(why)),
                None => {}
            }
        }
        Ok(row)
    }
}

/// The own ID of a row that was validated before.
pub fn own_id_of(body: &[u8], task: Task) -> Option<String> {
    let found = fields(std::str::from_utf8(body).ok()?, task).ok()?;
    own_id(found.given(Column::Id)?, task).ok().map(Cow::into_owned)
}

fn fields(line: &str, task: Task) -> Result<FieldValues<'_>, serde_json::Error> {
    let mut de = serde_json::Deserializer::from_str(line);
    let found = Find(task).deserialize(&mut de)?;
    de.end()?;
    Ok(found)
}

/// The request of a prompt or messages, with related fields.
fn prompt_request<'a>(
    line: &Line<'a>,
    found: &FieldValues<'a>,
    made: Option<String>,
) -> Result<Cow<'a, str>, RowError> {
    let made = made.map(Cow::Owned);
    let prompt = found.given(Column::Prompt);
    let (name, request) = match (made, prompt, found.given(Column::Messages)) {
        (Some(made), ..) => ("prompt", made),
        (None, Some(prompt), None) => ("prompt", text(line, prompt, "prompt")?),
        (None, None, Some(messages)) => {
            check_messages(messages).map_err(|message| line.at(messages, message))?;
            ("messages", value(line, messages, "messages")?)
        }
        (None, Some(_), Some(messages)) => {
            let message = "a row has \"prompt\" or \"messages\", not both";
            return Err(line.at(messages, message.to_owned()));
        }
        (None, None, None) => {
            return Err(Line::whole("a row needs \"prompt\" or \"messages\""));
        }
    };
    let kwargs = found.given(Column::ChatTemplateKwargs);
    if let Some(kwargs) = kwargs
        && (name == "prompt" || !kwargs.get().starts_with('{'))
    {
        let message = "\"chat_template_kwargs\" has to be an object, and goes with \"messages\"";
        return Err(line.at(kwargs, message.to_owned()));
    }
    let lora = lora(line, found)?;
    if kwargs.is_none() && lora.is_none() {
        return Ok(request);
    }
    // The names must be in order.
    let kwargs = kwargs.map(|kwargs| value(line, kwargs, "chat_template_kwargs")).transpose()?;
    let pairs = [("chat_template_kwargs", kwargs), ("lora", lora), (name, Some(request))];
    Ok(object(pairs).into())
}

/// The request of a query and a document, with related fields.
fn score_request<'a>(line: &Line<'a>, found: &FieldValues<'a>) -> Result<String, RowError> {
    let one = |column: Column, name: &str| match found.given(column) {
        Some(value) => text(line, value, name),
        None => {
            Err(Line::whole(format!("a row needs \"query\" and \"document\", it has no {name}")))
        }
    };
    let (document, query) = (one(Column::Document, "document")?, one(Column::Query, "query")?);
    let pairs =
        [("document", Some(document)), ("lora", lora(line, found)?), ("query", Some(query))];
    Ok(object(pairs))
}

fn lora<'a>(line: &Line<'a>, found: &FieldValues<'a>) -> Result<Option<Cow<'a, str>>, RowError> {
    let Some(lora) = found.given(Column::Lora) else { return Ok(None) };
    let name = text(line, lora, "lora")?;
    match name.len() {
        0..=2 => Err(line.at(lora, "\"lora\" is empty; leave it out or give a name".to_owned())),
        3..=LORA_BYTES_MAX => Ok(Some(name)),
        _ => Err(line.at(lora, format!("\"lora\" is longer than {LORA_BYTES_MAX} bytes"))),
    }
}

/// The canonical JSON of a string.
fn text<'a>(line: &Line<'a>, raw: &'a RawValue, name: &str) -> Result<Cow<'a, str>, RowError> {
    if !raw.get().starts_with('"') {
        return Err(line.at(raw, format!("\"{name}\" has to be a string")));
    }
    value(line, raw, name)
}

/// The canonical JSON of a value.
fn value<'a>(line: &Line<'a>, raw: &'a RawValue, name: &str) -> Result<Cow<'a, str>, RowError> {
    canonical(raw).map_err(|error| line.at(raw, format!("\"{name}\": {error}")))
}

/// An object of canonical values, given in the order of their names.
fn object<const N: usize>(pairs: [(&str, Option<Cow<'_, str>>); N]) -> String {
    let mut json = String::from("{");
    for (name, value) in pairs {
        let Some(value) = value else { continue };
        if json.len() > 1 {
            json.push(',');
        }
        json.push('"');
        json.push_str(name);
        json.push_str("\":");
        json.push_str(&value);
    }
    json.push('}');
    json
}

fn own_id(id: &RawValue, task: Task) -> Result<Cow<'_, str>, String> {
    let text = id.get();
    let digits = text.strip_prefix('-').unwrap_or(text);
    let integer = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let right = text.starts_with('"') || (integer && task != Task::Openai);
    if !right {
        let kinds = if task == Task::Openai { "a string" } else { "a string or an integer" };
        return Err(format!("has to be {kinds}"));
    }
    if text == "\"\"" {
        return Err("is empty; leave it out or give one".to_owned());
    }
    if text.len() > ID_BYTES_MAX {
        return Err(format!("has {} bytes, the most is {ID_BYTES_MAX}", text.len()));
    }
    canonical(id).map_err(|error| format!("cannot be read: {error}"))
}

fn check_messages(messages: &RawValue) -> Result<(), String> {
    let wrong = || {
        "\"messages\" has to be an array, not empty, of objects with a \"role\", a string"
            .to_owned()
    };
    let list: Vec<&RawValue> = serde_json::from_str(messages.get()).map_err(|_| wrong())?;
    if list.is_empty() {
        return Err(wrong());
    }
    for message in list {
        let Fields(fields) = serde_json::from_str(message.get()).map_err(|_| wrong())?;
        let mut roles = fields.iter().filter(|(key, _)| key == "role");
        if !roles.next().is_some_and(|(_, role)| role.get().starts_with('"')) {
            return Err(wrong());
        }
    }
    Ok(())
}

/// The position of a value within the line that it is borrowed from.
fn offset(line: &str, value: &str) -> usize {
    (value.as_ptr() as usize).saturating_sub(line.as_ptr() as usize).min(line.len())
}

/// The column, in characters from 1, of the byte at `offset`.
fn characters(line: &str, offset: usize) -> usize {
    let before = &line.as_bytes()[..offset.min(line.len())];
    // A continuation byte of UTF-8 does not count.
    before.iter().filter(|byte| **byte & 0xc0 != 0x80).count() + 1
}

#[cfg(test)]
mod tests;
