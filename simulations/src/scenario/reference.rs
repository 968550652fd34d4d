//! The reference of all keys, made from the types of the format: as a JSON schema, and as Markdown.

use std::fmt::Write;

use schemars::schema_for;
use serde_json::Value;

use super::keys::{self, BESIDE, Beside, KINDS};
use super::{Event, Load, Scenario, Site, SitePath, Tuning};

/// The JSON schema of scenarios.
pub fn schema() -> String {
    let mut schema = schema_for!(Scenario).to_value();
    keys::constrain(&mut schema);
    let mut text = serde_json::to_string_pretty(&schema).expect("a schema is plain JSON");
    text.push('\n');
    text
}

/// One table of Markdown for each table of the format.
pub fn markdown() -> String {
    let mut text = String::new();
    for (heading, schema) in [
        ("The scenario", schema_for!(Scenario)),
        ("`[tuning]`", schema_for!(Tuning)),
        ("`[load]` and `[way-back]`", schema_for!(Load)),
        ("`[[site]]`", schema_for!(Site)),
        ("`[[path]]`, and `degrade` of an event", schema_for!(SitePath)),
        ("`[[event]]`", schema_for!(Event)),
    ] {
        table(&mut text, heading, &schema.to_value());
    }
    kinds(&mut text);
    text.truncate(text.trim_end().len());
    text
}

/// The keys that each event needs and takes.
fn kinds(text: &mut String) {
    let keys = |keys: &[&str]| {
        let keys = keys.iter().map(|key| format!("`{key}`"));
        keys.collect::<Vec<_>>().join(", ")
    };
    let _ = writeln!(
        text,
        "### Keys of each event\n\nAll need `at-s`, and take `times` with `every-s` (or \
         with an `at-s` of two numbers).\nAny other key is refused, since it would have no \
         effect.\n\n| event | needs | takes |\n| --- | --- | --- |"
    );
    for kind in &KINDS {
        let beside = BESIDE.iter().filter(|it| it.kind == Some(kind.key));
        let only = beside.map(|it| format!(" (`{}` with `{}` only)", it.key, it.other));
        let (needs, takes) = (keys(kind.needs), keys(kind.takes));
        let _ =
            writeln!(text, "| `{}` | {needs} | {takes}{} |", kind.key, only.collect::<String>());
    }
    text.push('\n');
}

fn table(text: &mut String, heading: &str, schema: &Value) {
    let _ = writeln!(text, "### {heading}\n\n| key | type | default | meaning |");
    let _ = writeln!(text, "| --- | --- | --- | --- |");
    let empty = serde_json::Map::new();
    let keys = schema["properties"].as_object().unwrap_or(&empty);
    let required = |key: &str| {
        let all = schema["required"].as_array();
        all.is_some_and(|all| all.iter().any(|it| it.as_str() == Some(key)))
    };
    for (key, value) in keys {
        let mut about = value["description"].as_str().unwrap_or_default().replace('\n', " ");
        let here = |it: &&Beside| schema["title"] == it.table && it.kind.is_none();
        if let Some(it) = BESIDE.iter().filter(here).find(|it| it.key == key) {
            let _ = write!(about, " Only with `{}`.", it.other);
        }
        let default = match &value["default"] {
            _ if required(key) => "required".to_owned(),
            Value::Null => String::new(),
            Value::Object(_) => String::new(),
            default => format!("`{default}`"),
        };
        let kind = kind(value);
        let _ = writeln!(text, "| `{key}` | {kind} | {default} | {about} |");
    }
    text.push('\n');
}

fn kind(value: &Value) -> String {
    let one = |name: &str| match name {
        "integer" => "whole number",
        "boolean" => "true or false",
        "array" => "list",
        "object" => "table",
        "string" => "text",
        _ => "number",
    };
    match &value["type"] {
        Value::String(name) => one(name).to_owned(),
        Value::Array(names) => {
            let name = names.iter().filter_map(Value::as_str).find(|name| *name != "null");
            one(name.unwrap_or_default()).to_owned()
        }
        _ if value.to_string().contains("When") => "number, or two".into(),
        _ if value.to_string().contains("Arrival") => "text".into(),
        _ if value.to_string().contains("Lie") => "text".into(),
        _ if value.to_string().contains("Level") => "text".into(),
        _ => "table".into(),
    }
}
