//! Simple JSON Schemas of the settings' types.
//!
//! What `schemars` derives depends on Rust: `null` for `Option`, formats such as `uint64`, a `oneOf` for each enum. A
//! TOML file has neither `null` nor these formats, so a simpler schema says the same.
//!
//! *Invariant:* a property is a section, a list of sections, or a value. Only the annotated schema has the annotations
//! (`x-…`) and `format`; the fields of the settings set them.
//! Absent: their meaning; `key` reads them.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// The largest integer of a TOML file.
const INTEGER_MAX: u64 = i64::MAX as u64;

/// The schema of a file with annotations.
pub(crate) fn annotated<T: JsonSchema>() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    section(&Value::from(settings.into_generator().into_root_schema_for::<T>()))
}

/// The same schema as other programs read it.
pub(crate) fn plain(mut annotated: Value) -> Value {
    strip(&mut annotated);
    annotated
}

fn strip(schema: &mut Value) {
    let Value::Object(schema) = schema else { return };
    let engines = schema
        .get("x-engines")
        .and_then(Value::as_array)
        .map(|engines| engines.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "));
    if let (Some(engines), Some(Value::String(about))) = (engines, schema.get_mut("description")) {
        *about = format!("{engines}: {about}");
    }
    schema.retain(|name, _| name != "format" && !name.starts_with("x-"));
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().for_each(strip);
    }
    if let Some(items) = schema.get_mut("items") {
        strip(items);
    }
}

fn section(raw: &Value) -> Value {
    let properties = raw["properties"].as_object().into_iter().flatten();
    let properties: Map<String, Value> =
        properties.map(|(name, raw)| (name.clone(), property(raw))).collect();
    json!({
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
        "required": raw.get("required").cloned().unwrap_or_else(|| json!([])),
    })
}

fn property(raw: &Value) -> Value {
    let inner = present(raw);
    if inner["properties"].is_object() {
        return section(inner);
    }
    if inner["items"]["properties"].is_object() {
        return json!({"type": "array", "items": section(&inner["items"])});
    }
    value(raw)
}

/// What an optional value is if there is one.
fn present(raw: &Value) -> &Value {
    let choices = raw.get("anyOf").and_then(Value::as_array);
    let is_null = |choice: &&Value| choice["type"] == "null";
    match choices {
        Some(choices) if choices.iter().any(|choice| is_null(&choice)) => {
            choices.iter().find(|choice| !is_null(choice)).unwrap_or(raw)
        }
        _ => raw,
    }
}

fn value(raw: &Value) -> Value {
    let mut schema = shape(raw);
    let text = raw["description"].as_str().unwrap_or_default();
    let mut paragraphs = text
        .split("\n\n")
        .map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "));
    let about = paragraphs.next().unwrap_or_default();
    schema.insert("description".into(), about.strip_suffix('.').unwrap_or(&about).into());
    let more = paragraphs.collect::<Vec<_>>().join(" ");
    if !more.is_empty() {
        schema.insert("x-more".into(), more.into());
    }
    let default = raw.get("x-default").or_else(|| raw.get("default"));
    let is_none =
        |default: &Value| default.is_null() || default.is_object() || raw.get("x-unset").is_some();
    if let Some(default) = default.filter(|default| !is_none(default)) {
        schema.insert("default".into(), default.clone());
    }
    for (name, annotation) in raw.as_object().into_iter().flatten() {
        if name.starts_with("x-") {
            schema.insert(name.clone(), annotation.clone());
        }
    }
    Value::Object(schema)
}

/// The type and the bounds of a value.
fn shape(raw: &Value) -> Map<String, Value> {
    let object = |schema: Value| schema.as_object().cloned().unwrap_or_default();
    if let Some(words) = words(raw) {
        return object(json!({"type": "string", "enum": words}));
    }
    if let Some(choices) = raw.get("anyOf") {
        return object(json!({"anyOf": choices}));
    }
    let types: Vec<&Value> = match &raw["type"] {
        Value::Array(types) => types.iter().filter(|of| **of != "null").collect(),
        one => vec![one],
    };
    let mut schema = match &*types {
        [one] => object(json!({"type": one})),
        several => object(json!({"type": several})),
    };
    if schema["type"] == "integer" {
        let max = if raw["format"] == "uint32" { u64::from(u32::MAX) } else { INTEGER_MAX };
        schema.insert("minimum".into(), raw.get("minimum").cloned().unwrap_or_else(|| 0.into()));
        schema.insert("maximum".into(), raw.get("maximum").cloned().unwrap_or_else(|| max.into()));
    } else {
        for bound in ["minimum", "maximum"] {
            schema.extend(raw.get(bound).map(|value| (bound.to_owned(), value.clone())));
        }
    }
    if let Some(items) = raw.get("items") {
        schema.insert("items".into(), json!({"type": items["type"]}));
    }
    if raw["format"] == "address" {
        schema.insert("format".into(), "address".into());
    }
    schema
}

/// The words of an enum.
fn words(raw: &Value) -> Option<Vec<&Value>> {
    if let Some(words) = raw.get("enum").and_then(Value::as_array) {
        return Some(words.iter().collect());
    }
    raw.get("oneOf")?.as_array()?.iter().map(|choice| choice.get("const")).collect()
}
