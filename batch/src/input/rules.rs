//! Owns: how the rows of one run are read, and how their IDs are computed.
//!
//! Invariant: it depends on the run's spec alone, so every client that adds, checks or reuses rows reads them alike.
//! Absent: files.

use std::sync::Arc;

use rollout_proto::v1;
use serde::{Deserialize, Serialize};

use super::mapping::{Mapping, MappingSpec};
use super::row::{Row, RowError};
use super::task::Task;
use crate::canonical::{CanonicalError, Fields, plain_message};
use crate::item_id::{ItemIds, Key, ModelId};
use crate::sampling::Sampling;

/// What a client stores in a run's spec, beside what workers need.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientOptions {
    /// How columns become fields.
    #[serde(skip_serializing_if = "is_default")]
    pub input: MappingSpec,
}

fn is_default(spec: &MappingSpec) -> bool {
    *spec == MappingSpec::default()
}

/// How the rows of a run are read.
#[derive(Debug, Clone)]
pub struct Rules {
    task: Task,
    sampling: Arc<Sampling>,
    mapping: Option<Arc<Mapping>>,
    ids: ItemIds,
    /// A row that an engine will refuse is an error.
    strict: bool,
}

impl Rules {
    /// The rules of a spec.
    pub fn new(spec: &v1::RunSpec, model: ModelId) -> Result<Self, CanonicalError> {
        let task = Task::of(spec.engine.as_ref().map_or("", |engine| &engine.task));
        let options: ClientOptions = match spec.options_json.trim() {
            "" => ClientOptions::default(),
            json => serde_json::from_str(json)
                .map_err(|error| CanonicalError::Syntax(plain_message(&error)))?,
        };
        let mapping = Mapping::new(&options.input, task)
            .map_err(|(key, message)| CanonicalError::Syntax(format!("{key}: {message}")))?;
        Ok(Self {
            task,
            sampling: Arc::new(Sampling::of_spec(&spec.sampling_json)?),
            mapping: mapping.map(Arc::new),
            ids: ItemIds::new(model, &spec.sampling_json),
            strict: false,
        })
    }

    /// The same rules, but a row that an engine will refuse is an error, and a parameter that it may not know a
    /// warning.
    pub fn strict(self) -> Self {
        Self { strict: true, ..self }
    }

    /// What is asked.
    pub fn task(&self) -> Task {
        self.task
    }

    /// Whether rows are rewritten, and if so, how many bytes one may grow, approximately.
    pub fn growth(&self) -> Option<usize> {
        self.mapping.as_ref().map(|mapping| mapping.growth())
    }

    /// The error for a table with exactly these columns, if any.
    pub(super) fn lacks(&self, columns: &[String]) -> Option<String> {
        self.mapping.as_ref()?.lacks(columns)
    }

    /// The error if all rows together have these mapped columns; `columns` are those of one row.
    pub(super) fn absent(&self, present: u16, columns: &[String]) -> Option<String> {
        self.mapping.as_ref()?.absent(present, columns)
    }

    /// The columns of a line, if columns are mapped.
    pub(super) fn columns(&self, line: &str) -> Vec<String> {
        match (&self.mapping, serde_json::from_str(line)) {
            (Some(_), Ok(Fields(fields))) => {
                fields.into_iter().map(|(name, _)| name.into_owned()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Reads a line of the input.
    pub fn read<'a>(&self, line: &'a str) -> Result<Row<'a>, RowError> {
        let row = Row::parse(line, self.task, &self.sampling, self.mapping.as_deref())?;
        match row.refused {
            Some(refused) if self.strict => Err(refused),
            _ => Ok(Row { unknown: row.unknown.filter(|_| self.strict), ..row }),
        }
    }

    /// Reads a row as workers do: its columns already have the fields' names.
    pub fn stored<'a>(&self, body: &'a [u8]) -> Option<Row<'a>> {
        let body = std::str::from_utf8(body).ok()?;
        Row::parse(body, self.task, &self.sampling, None).ok()
    }

    /// The item ID of a row; `occurrence` counts if it has no ID of its own.
    pub fn item_id(&mut self, row: &Row<'_>, occurrence: u64) -> [u8; 32] {
        let key = row.id_json.as_deref().map_or(Key::Occurrence(occurrence), Key::Own);
        match &row.sampling_json {
            Some(sampling) => self.ids.item_id_sampled(&row.request_json, sampling, key),
            None => self.ids.item_id(&row.request_json, key),
        }
    }
}
