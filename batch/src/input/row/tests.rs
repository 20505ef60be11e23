use proptest::prelude::*;

use super::super::mapping::MappingSpec;
use super::*;

fn parse(line: &str) -> Result<Row<'_>, RowError> {
    Row::parse(line, Task::Generate, &Sampling::default(), None)
}

fn error(line: &str) -> (usize, String) {
    let error = parse(line).expect_err(line);
    (error.column, error.message)
}

fn mapped(toml: &str, line: &str) -> Result<(String, String, Option<String>), (usize, String)> {
    let spec: MappingSpec = toml::from_str(toml).unwrap();
    let mapping = Mapping::new(&spec, Task::Generate).unwrap().unwrap();
    let row = Row::parse(line, Task::Generate, &Sampling::default(), Some(&mapping))
        .map_err(|error| (error.column, error.message))?;
    let id = row.id_json.map(Cow::into_owned);
    let again = row.rewritten.clone().unwrap();
    let stored = parse(&again).expect("what is written can be read");
    assert_eq!(stored.request_json, row.request_json);
    assert_eq!(stored.id_json.map(Cow::into_owned), id);
    Ok((row.request_json.into_owned(), again, id))
}

#[test]
fn a_row_is_a_prompt_or_messages_with_an_optional_id() {
    let row = parse(r#"{"x": {"prompt": 3}, "prompt": "a\u0062"}"#).unwrap();
    assert_eq!((&*row.request_json, row.id_json), (r#""ab""#, None));
    let row = parse(r#"{"id":-7,"messages":[{"role":"user","content":null}]}"#).unwrap();
    assert_eq!(row.request_json, r#"[{"content":null,"role":"user"}]"#);
    assert_eq!(row.id_json.as_deref(), Some("-7"));
}

#[test]
fn fields_that_belong_to_a_prompt_are_part_of_the_request() {
    let asked = |line| parse(line).unwrap().request_json.into_owned();
    assert_eq!(asked(r#"{"prompt":"a","lora":"x"}"#), r#"{"lora":"x","prompt":"a"}"#);
    assert_eq!(
        asked(r#"{"messages":[{"role":"u"}],"chat_template_kwargs":{"b":1, "a":2}, "lora":"x"}"#),
        r#"{"chat_template_kwargs":{"a":2,"b":1},"lora":"x","messages":[{"role":"u"}]}"#
    );
    assert_eq!(
        asked(r#"{"prompt":"a","lora":null,"chat_template_kwargs":null,"query":1}"#),
        r#""a""#
    );
    let row = parse(r#"{"prompt":"a","sampling_params":{"temperature":1}}"#).unwrap();
    assert_eq!(row.sampling_json.as_deref(), Some(r#"{"temperature":1.0}"#));
    assert_eq!(error(r#"{"prompt":"a","lora":7}"#).0, 22);
    assert!(error(r#"{"prompt":"a","lora":""}"#).1.contains("empty"));
    assert!(error(r#"{"prompt":"a","chat_template_kwargs":{}}"#).1.contains("goes with"));
    let (column, message) = error(r#"{"prompt":"a","sampling_params":{"top_p":null}}"#);
    assert_eq!(column, 33);
    assert_eq!(message, "\"sampling_params\": top_p is null; leave it out");
    let row = parse(r#"{"prompt":"a","sampling_params":{"top_p":2}}"#).unwrap();
    assert_eq!(row.sampling_json.as_deref(), Some(r#"{"top_p":2.0}"#));
    let refused = row.refused.expect("an engine refuses it");
    assert_eq!(refused.message, "\"sampling_params\": top_p: 2 is not 0 to 1");
}

#[test]
fn a_score_is_of_a_query_and_a_document() {
    let parse = |line| Row::parse(line, Task::Score, &Sampling::default(), None);
    let row = parse(r#"{"query":"q","document":"d","prompt":7,"sampling_params":7}"#).unwrap();
    assert_eq!(row.request_json, r#"{"document":"d","query":"q"}"#);
    assert!(parse(r#"{"query":"q"}"#).unwrap_err().message.contains("no document"));
    assert_eq!(parse(r#"{"document":"d","query":["q"]}"#).unwrap_err().column, 25);
}

#[test]
fn a_line_of_the_openai_batch_format_is_taken_as_it_is() {
    let parse = |line| Row::parse(line, Task::Openai, &Sampling::default(), None);
    let line = r#"{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{"b":1,"a":1.0}}"#;
    let row = parse(line).unwrap();
    assert_eq!(
        row.request_json,
        r#"{"body":{"a":1.0,"b":1},"method":"POST","url":"/v1/embeddings"}"#
    );
    assert_eq!(row.id_json.as_deref(), Some("\"a\""));
    assert!(openai::looks_like(line) && !openai::looks_like(r#"{"prompt":"a"}"#));
    for (from, to, why) in [
        ("\"a\",", "7,", "\"custom_id\" has to be a string"),
        ("POST", "GET", "POST"),
        ("/v1", "v1", "a path"),
        ("{\"b\":1,\"a\":1.0}", "[]", "an object"),
        ("custom_id", "id", "needs a \"custom_id\""),
        ("body", "bodies", "needs a \"body\""),
    ] {
        let changed = line.replacen(from, to, 1);
        let parsed = Row::parse(&changed, Task::Openai, &Sampling::default(), None);
        let message = parsed.unwrap_err().message;
        assert!(message.contains(why), "{to}: {message}");
    }
}

#[test]
fn columns_are_fields_under_other_names() {
    let columns = r#"columns = { prompt = "question", id = "doc" }"#;
    let line = r#"{"doc": 7, "question" : "a\u0062", "id": 1.5, "prompt": [], "n": 1.50}"#;
    let (asked, written, id) = mapped(columns, line).unwrap();
    assert_eq!(asked, "\"ab\"");
    assert_eq!(id.as_deref(), Some("7"));
    assert_eq!(written, r#"{"id":7,"prompt":"a\u0062","input_id":1.5,"input_prompt":[],"n":1.50}"#);
    let template = r#"prompt_template = "{title}: {n}""#;
    let (asked, written, _) =
        mapped(template, r#"{"title": "t", "n": 2, "prompt": "p", "input_prompt": 0}"#).unwrap();
    assert_eq!(asked, "\"t: 2\"");
    assert_eq!(
        written,
        r#"{"prompt":"t: 2","title":"t","n":2,"input_input_prompt":"p","input_prompt":0}"#
    );
}

#[test]
fn a_column_that_a_row_lacks_or_that_is_no_field_is_an_error() {
    let columns = r#"columns = { prompt = "question" }"#;
    let (column, message) = mapped(columns, r#"{"prompt": "x"}"#).unwrap_err();
    assert_eq!((column, message.as_str()), (1, "the row has no column \"question\""));
    assert_eq!(mapped(columns, r#"{"n": 1, "question": 7}"#).unwrap_err().0, 22);
    let (_, message) = mapped("prompt_template = \"{a}{b}\"", r#"{"a": 1}"#).unwrap_err();
    assert!(message.contains("no column \"b\""), "{message}");
    for (toml, task, why) in [
        ("columns = { promt = \"x\" }", Task::Generate, "did you mean \"prompt\""),
        ("columns = { prompt = \"x\", id = \"x\" }", Task::Generate, "is two fields"),
        ("columns = { query = \"x\" }", Task::Generate, "unknown field"),
        ("columns = { prompt = \"x\" }", Task::Openai, "fixed"),
        ("prompt_template = \"{a}\"", Task::Score, "no prompt"),
        ("prompt_template = \"{a}\"\ncolumns = { prompt = \"x\" }", Task::Embed, "map no column"),
    ] {
        let spec: MappingSpec = toml::from_str(toml).unwrap();
        let (_, message) = Mapping::new(&spec, task).unwrap_err();
        assert!(message.contains(why), "{toml}: {message}");
    }
}

#[test]
fn an_error_names_its_column() {
    assert_eq!(error(r#"{"prompt": 7}"#).0, 12);
    assert_eq!(error(r#"{"é": 1, "prompt": 7}"#).0, 20);
    assert_eq!(error(r#"{"prompt": "a", "id": 1.5}"#).0, 23);
    assert_eq!(error(r#"{"prompt": "a", "messages": []}"#).0, 29);
    assert_eq!(error(r#"{"text": "a"}"#).0, 1);
    assert_eq!(error(r#"{"prompt": "a" "b"}"#).0, 16);
    assert_eq!(error(r#"{"prompt": "\ud800"}"#).0, 12);
    assert!(error(r#"{"prompt":"a","prompt":"b"}"#).1.contains("appears twice"));
    assert!(error("[1]").1.contains("a row, a JSON object"));
    assert!(error(r#"{"messages":[{"content":"x"}]}"#).1.contains("role"));
    assert!(error(r#"{"prompt":"a"} x"#).1.contains("trailing"));
    assert!(error(r#"{"prompt":"a","id":""}"#).1.contains("empty"));
}

proptest! {
    #[test]
    fn any_text_is_a_row_or_an_error_within_its_line(line in "\\PC{0,60}|[{}\\[\\]\":,a-z0-9\\\\ ]{0,60}") {
        if let Err(error) = parse(&line) {
            prop_assert!(error.column >= 1);
            prop_assert!(error.column <= line.chars().count() + 1);
        }
    }

    #[test]
    fn any_prompt_comes_through(prompt in any::<String>(), id in any::<i64>()) {
        let line = serde_json::json!({"id": id, "prompt": prompt, "more": [1]}).to_string();
        let row = parse(&line).unwrap();
        let back: String = serde_json::from_str(&row.request_json).unwrap();
        prop_assert_eq!(back, prompt);
        prop_assert_eq!(row.id_json.unwrap(), id.to_string());
    }
}
