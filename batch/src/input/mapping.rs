//! Owns: rows whose columns have other names than the fields: which column is which field, and the row as workers read
//! it.
//!
//! A mapped column gets the field's name, all others keep theirs. An unmapped column that has a field's name becomes
//! `input_<name>`. A template's prompt comes first.
//! Invariant: the same row gives the same bytes; values are copied as they were written.
//! Absent: which values are valid (`row`).

use std::borrow::Cow;
use std::collections::BTreeMap;

use rollout_config::nearest::nearest;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::column::{COLUMNS, Column, FieldValues};
use super::task::Task;
use super::template::Template;
use crate::canonical::{Fields, write_string};

/// The column settings of a batch file, which the run's spec keeps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MappingSpec {
    /// The column of each field that has another name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub columns: BTreeMap<String, String>,
    /// The template of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_template: Option<String>,
}

/// How many columns an error lists.
const COLUMNS_LISTED: usize = 20;
/// How many characters of each it shows.
const NAME_CHARACTERS: usize = 60;

/// How columns become fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    task: Task,
    /// The column of each field.
    columns: Vec<(Column, String)>,
    template: Option<Template>,
    template_bytes: usize,
}

/// The prompt that a template built, as a JSON string.
pub(crate) struct Mapped<'a> {
    pub(crate) found: FieldValues<'a>,
    pub(crate) prompt_json: Option<String>,
    /// Which of the mapped columns the row has, one bit each.
    pub(crate) present: u16,
    fields: Vec<(Cow<'a, str>, &'a RawValue)>,
}

impl Mapping {
    /// Checks a mapping; None if every field has its own name. An error names the key at fault.
    pub fn new(spec: &MappingSpec, task: Task) -> Result<Option<Self>, (&'static str, String)> {
        if spec.columns.is_empty() && spec.prompt_template.is_none() {
            return Ok(None);
        }
        if task == Task::Openai {
            let message = "means nothing for the OpenAI Batch format, whose fields are fixed";
            return Err(("input.columns", message.to_owned()));
        }
        let mut columns = Vec::new();
        for (field, column) in &spec.columns {
            let Some(field_column) = Column::of(field, task) else {
                let allowed = COLUMNS.iter().filter(|column| column.is_of(task));
                let names: Vec<&str> = allowed.map(|column| column.name(task)).collect();
                let message = match nearest(field, names.iter().copied()) {
                    Some(near) => format!("{field:?} is not a field; did you mean {near:?}?"),
                    None => format!("unknown field {field:?}; the fields are {}", names.join(", ")),
                };
                return Err(("input.columns", message));
            };
            if !column.is_empty() && columns.iter().any(|(_, other)| other == column) {
                let message = format!("column {column:?} is two fields");
                return Err(("input.columns", message));
            }
            columns.push((field_column, column.clone()));
        }
        let wrong = |message: String| ("input.prompt_template", message);
        let template = spec.prompt_template.as_deref().map(Template::parse).transpose();
        let template = template.map_err(wrong)?;
        if template.is_some() {
            if !Column::Prompt.is_of(task) {
                return Err(wrong("this task has no prompt".to_owned()));
            }
            let required = [Column::Prompt, Column::Messages];
            if columns.iter().any(|(column, _)| required.contains(column)) {
                return Err(wrong("makes the prompt; map no column to it".to_owned()));
            }
        }
        let template_bytes = spec.prompt_template.as_ref().map_or(0, String::len);
        Ok(Some(Self { task, columns, template, template_bytes }))
    }

    /// How many bytes a row may grow, approximately.
    pub fn growth(&self) -> usize {
        self.template_bytes
    }

    /// The field of a column.
    fn field(&self, column: &str) -> Option<Column> {
        let named = |name: &str| name == column && !name.is_empty();
        if let Some((field, _)) = self.columns.iter().find(|(_, name)| named(name)) {
            return Some(*field);
        }
        let field = Column::of(column, self.task)?;
        let taken = self.columns.iter().any(|(mapped, _)| *mapped == field);
        let made = self.template.is_some() && matches!(field, Column::Prompt | Column::Messages);
        (!taken && !made).then_some(field)
    }

    /// Finds the fields of a row. An error is about the whole row.
    pub(crate) fn find<'a>(&self, fields: Fields<'a>) -> Result<Mapped<'a>, String> {
        let Fields(fields) = fields;
        let mut found = FieldValues::default();
        for (name, value) in &fields {
            if let Some(field) = self.field(name)
                && !found.set(field, value)
            {
                return Err(format!("\"{name}\" appears twice"));
            }
        }
        for (field, column) in &self.columns {
            if field.is_asked() && !column.is_empty() && found.get(*field).is_none() {
                return Err(format!("the row has no column {column:?}"));
            }
        }
        let prompt = self.template.as_ref().map(|template| template.fill(&fields)).transpose()?;
        let prompt_json = prompt.map(|prompt| {
            let mut json = String::with_capacity(prompt.len() + 2);
            write_string(&prompt, &mut json);
            json
        });
        let mut present = 0;
        for (at, (field, column)) in self.columns.iter().enumerate() {
            present |= u16::from(column.is_empty() || found.get(*field).is_some()) << at;
        }
        Ok(Mapped { found, prompt_json, present, fields })
    }

    /// The error for a table with exactly these columns, if any.
    pub(crate) fn lacks(&self, columns: &[String]) -> Option<String> {
        let has = |name: &str| name.is_empty() || columns.iter().any(|column| column == name);
        let mapped = self.columns.iter().find(|(_, column)| !has(column));
        let named = || self.template.iter().flat_map(Template::columns).find(|name| !has(name));
        let lacking = match mapped {
            Some((field, column)) => self.no_column(*field, column),
            None => format!("no column {:?}, which [input] prompt_template names", named()?),
        };
        Some(lacking + &column_list(columns, mapped.map(|(_, column)| column)))
    }

    /// The error if all rows together have these mapped columns; `columns` are those of one row.
    pub(crate) fn absent(&self, present: u16, columns: &[String]) -> Option<String> {
        let mut mapped = self.columns.iter().enumerate();
        let (_, (field, column)) = mapped.find(|(at, _)| present >> at & 1 == 0)?;
        Some(self.no_column(*field, column) + &column_list(columns, Some(column)))
    }

    fn no_column(&self, field: Column, column: &str) -> String {
        let name = field.name(self.task);
        let leave = match field.is_asked() {
            true => String::new(),
            false => format!(" (write {name} = \"\" to read none)"),
        };
        format!("no column {column:?}, which [input] columns maps to {name:?}{leave}")
    }

    /// The row as workers read it.
    pub(crate) fn write(&self, mapped: &Mapped<'_>, out: &mut String) {
        out.push('{');
        let mut separator = "";
        if let Some(prompt) = &mapped.prompt_json {
            out.push_str("\"prompt\":");
            out.push_str(prompt);
            separator = ",";
        }
        for (name, value) in &mapped.fields {
            out.push_str(separator);
            separator = ",";
            write_string(&self.name_of(name, &mapped.fields), out);
            out.push(':');
            out.push_str(value.get());
        }
        out.push('}');
    }

    fn name_of<'a>(&self, name: &'a str, fields: &[(Cow<'_, str>, &RawValue)]) -> Cow<'a, str> {
        if let Some(field) = self.field(name) {
            return Cow::Borrowed(field.name(self.task));
        }
        if Column::of(name, self.task).is_none() {
            return Cow::Borrowed(name);
        }
        let mut other = format!("input_{name}");
        while fields.iter().any(|(taken, _)| *taken == other) {
            other.insert_str(0, "input_");
        }
        Cow::Owned(other)
    }
}

/// The columns that exist, for an error about one that does not.
fn column_list(columns: &[String], lacking: Option<&String>) -> String {
    let short =
        |name: &String| format!("{:?}", name.chars().take(NAME_CHARACTERS).collect::<String>());
    let listed: Vec<String> = columns.iter().take(COLUMNS_LISTED).map(short).collect();
    let more = match columns.len().saturating_sub(COLUMNS_LISTED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let near = lacking.and_then(|lacking| nearest(lacking, columns.iter().map(String::as_str)));
    let near = near.map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
    format!("; the columns are {}{more}{near}", listed.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(columns: &[(&str, &str)], template: Option<&str>) -> Mapping {
        let columns = columns.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        let spec = MappingSpec { columns, prompt_template: template.map(str::to_owned) };
        Mapping::new(&spec, Task::Generate).unwrap().unwrap()
    }

    #[test]
    fn an_error_names_the_column_that_is_missing_and_those_that_exist() {
        let has = ["question".to_owned(), "doc_id".to_owned()];
        let lacks = |columns, template| mapping(columns, template).lacks(&has);
        assert_eq!(lacks(&[("prompt", "question"), ("id", "doc_id")], None), None);
        assert_eq!(
            lacks(&[("prompt", "question"), ("sampling_params", ""), ("lora", "")], None),
            None
        );
        let columns = "; the columns are \"question\", \"doc_id\"";
        assert_eq!(
            lacks(&[("prompt", "questions")], None).unwrap(),
            format!(
                "no column \"questions\", which [input] columns maps to \"prompt\"{columns}; did you mean \"question\"?"
            )
        );
        assert_eq!(
            lacks(&[("id", "key")], None).unwrap(),
            format!(
                "no column \"key\", which [input] columns maps to \"id\" (write id = \"\" to read none){columns}"
            )
        );
        assert_eq!(
            lacks(&[], Some("{question} {title}")).unwrap(),
            format!("no column \"title\", which [input] prompt_template names{columns}")
        );
        let many: Vec<String> = (0..25).map(|n| format!("{n}{}", "x".repeat(100))).collect();
        let text = mapping(&[("id", "key")], None).lacks(&many).unwrap();
        assert!(text.ends_with(" and 5 more") && text.len() < 1500, "{text}");
    }
}
