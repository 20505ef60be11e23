//! Owns: what a row requests, read from its JSON object and its run.
//!
//! Invariant: the row's own `sampling_params` override the run's, key by key. Unused fields are not parsed, however
//! deep they are.
//! Absent: whether an engine can serve it.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::{EngineFailure, EngineRow};
use crate::run::Task;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Input {
    /// A text to continue.
    Text(String),
    /// A conversation, as the OpenAI API writes it.
    Messages(Vec<Value>),
    /// Two texts to compare.
    Pair { query: String, document: String },
    /// A request to a path of the OpenAI API.
    Call { url: String, body: Map<String, Value> },
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Request {
    pub(crate) input: Input,
    /// The run's parameters, overridden by the row's.
    pub(crate) sampling: Map<String, Value>,
    /// Arguments of the model's chat template: the run's, overridden by the row's.
    pub(crate) template: Map<String, Value>,
    /// An adapter's name.
    pub(crate) lora: Option<String>,
    /// The row requests a vector, not a completion.
    pub(crate) embeds: bool,
}

const TEMPLATE: &str = "chat_template_kwargs";

type Fields<'a> = BTreeMap<String, &'a RawValue>;

impl EngineRow {
    /// Reads the row.
    pub(crate) fn request(&self) -> Result<Request, EngineFailure> {
        let fields: Fields<'_> = serde_json::from_slice(&self.body).map_err(not_json)?;
        let input = match self.run.task {
            Task::Generate | Task::Embed => prompt(&fields)?,
            Task::Score => Input::Pair {
                query: needed(&fields, "query")?,
                document: needed(&fields, "document")?,
            },
            Task::Openai => call(&fields)?,
        };
        let mut sampling = self.run.sampling.clone();
        // A request of the OpenAI format has everything in its body.
        let own = self.run.task != Task::Openai;
        if own && let Some(set) = field::<Map<String, Value>>(&fields, "sampling_params")? {
            sampling.extend(set);
        }
        let mut template = match sampling.remove(TEMPLATE) {
            Some(Value::Object(arguments)) => arguments,
            None | Some(Value::Null) => Map::new(),
            Some(_) => return Err(shape("chat_template_kwargs is not an object")),
        };
        if own && let Some(arguments) = field::<Map<String, Value>>(&fields, TEMPLATE)? {
            template.extend(arguments);
        }
        let lora = if own { field(&fields, "lora")? } else { None };
        Ok(Request { input, sampling, template, lora, embeds: self.run.task == Task::Embed })
    }
}

fn prompt(fields: &Fields<'_>) -> Result<Input, EngineFailure> {
    match (field(fields, "prompt")?, field::<Vec<Value>>(fields, "messages")?) {
        (Some(text), None) => Ok(Input::Text(text)),
        (None, Some(messages)) if !messages.is_empty() => Ok(Input::Messages(messages)),
        (None, Some(_)) => Err(shape("the row's messages are not a list of at least one message")),
        (Some(_), Some(_)) => Err(shape("a row has a prompt or messages, not both")),
        (None, None) => Err(shape("a row needs a prompt or messages")),
    }
}

fn call(fields: &Fields<'_>) -> Result<Input, EngineFailure> {
    let method: String = needed(fields, "method")?;
    if method != "POST" {
        return Err(shape("the row's method is not POST"));
    }
    Ok(Input::Call { url: needed(fields, "url")?, body: needed(fields, "body")? })
}

fn needed<T: DeserializeOwned>(fields: &Fields<'_>, name: &str) -> Result<T, EngineFailure> {
    field(fields, name)?.ok_or_else(|| shape(format!("the row has no {name}")))
}

/// A field; null counts as missing.
fn field<T: DeserializeOwned>(fields: &Fields<'_>, name: &str) -> Result<Option<T>, EngineFailure> {
    match fields.get(name) {
        Some(raw) => serde_json::from_str(raw.get())
            .map_err(|error| shape(format!("the row's {name}: {error}"))),
        None => Ok(None),
    }
}

fn not_json(error: serde_json::Error) -> EngineFailure {
    EngineFailure::invalid("ROW_NOT_JSON", format!("the row: {error}"))
}

fn shape(message: impl Into<String>) -> EngineFailure {
    EngineFailure::invalid("ROW_SHAPE", message)
}

#[cfg(test)]
mod tests {
    use rollout_proto::v1::FailureClass;
    use serde_json::json;

    use super::*;
    use crate::engine::test_row;
    use crate::run::RunInfo;

    fn read(task: Task, body: &str) -> Result<Request, EngineFailure> {
        let mut run = RunInfo { task, ..RunInfo::for_test(1) };
        run.sampling = serde_json::from_str(r#"{"temperature":0.5,"seed":1}"#).unwrap();
        test_row(run, 0, body).request()
    }

    #[test]
    fn arguments_of_the_chat_template_are_the_runs_with_the_rows_over_them_and_no_sampling() {
        let read = |body: &str| {
            let mut run = RunInfo { task: Task::Generate, ..RunInfo::for_test(1) };
            let set = r#"{"seed":1,"chat_template_kwargs":{"a":1,"b":2}}"#;
            run.sampling = serde_json::from_str(set).unwrap();
            test_row(run, 0, body).request()
        };
        let request = read(r#"{"messages":[{}],"chat_template_kwargs":{"b":3}}"#).unwrap();
        assert_eq!(Value::from(request.template), json!({"a": 1, "b": 3}));
        assert_eq!(Value::from(request.sampling), json!({"seed": 1}));
        let wrong = read(r#"{"messages":[{}],"sampling_params":{"chat_template_kwargs":7}}"#);
        assert_eq!(wrong.unwrap_err().code, "ROW_SHAPE");
    }

    #[test]
    fn a_row_has_a_prompt_or_messages() {
        let row = |body: &str| read(Task::Generate, body).map(|request| request.input);
        assert_eq!(row(r#"{"prompt":"a","x":1}"#), Ok(Input::Text("a".into())));
        assert!(matches!(row(r#"{"messages":[{"role":"user"}]}"#), Ok(Input::Messages(_))));
        let deep = format!(r#"{{"x":{}1{},"prompt":"a"}}"#, "[".repeat(9000), "]".repeat(9000));
        assert_eq!(row(&deep), Ok(Input::Text("a".into())));
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"prompt":1}"#,
            r#"{"messages":[]}"#,
            r#"{"prompt":"a","messages":[1]}"#,
            r#"{"prompt":"a","sampling_params":1}"#,
            r#"{"prompt":"a","lora":1}"#,
        ] {
            let failure = row(bad).unwrap_err();
            assert_eq!(failure.class, FailureClass::InvalidRow, "{bad}");
        }
    }

    #[test]
    fn a_rows_own_parameters_go_over_the_runs_key_by_key() {
        let body = r#"{"prompt":"a","sampling_params":{"seed":2,"n":3},"lora":"l"}"#;
        let request = read(Task::Generate, body).unwrap();
        let expected = json!({"temperature": 0.5, "seed": 2, "n": 3});
        assert_eq!(Value::from(request.sampling), expected);
        assert_eq!(request.lora.as_deref(), Some("l"));
        assert_eq!(Value::from(request.template), json!({}));
        let request = read(Task::Generate, r#"{"prompt":"a","sampling_params":null}"#).unwrap();
        assert_eq!(Value::from(request.sampling), json!({"temperature": 0.5, "seed": 1}));
    }

    #[test]
    fn each_task_reads_its_own_fields() {
        let pair = read(Task::Score, r#"{"query":"q","document":"d"}"#).unwrap().input;
        assert_eq!(pair, Input::Pair { query: "q".into(), document: "d".into() });
        assert!(read(Task::Score, r#"{"query":"q"}"#).is_err());
        assert!(read(Task::Embed, r#"{"prompt":"a"}"#).is_ok());
        let line = r#"{"custom_id":"c","method":"POST","url":"/v1/embeddings","body":{"input":"a"},"sampling_params":7}"#;
        let call = read(Task::Openai, line).unwrap();
        assert!(matches!(call.input, Input::Call { url, .. } if url == "/v1/embeddings"));
        assert!(read(Task::Openai, r#"{"method":"GET","url":"/","body":{}}"#).is_err());
        assert!(read(Task::Openai, r#"{"method":"POST","url":"/","body":[]}"#).is_err());
        for task in [Task::Generate, Task::Embed, Task::Score, Task::Openai] {
            assert_eq!(task.name().parse(), Ok(task));
        }
        assert!("dream".parse::<Task>().is_err());
    }
}
