//! Reads and writes YAML: kubeconfig files, and the panels of the dashboard.
//!
//! A kubeconfig is JSON written as YAML: its readers convert it to JSON first, and so does this
//! module. The writer quotes every string that some YAML reader takes for another type: Kubernetes
//! follows YAML 1.1, where a bare `yes` is a boolean, and writers for YAML 1.2 do not quote it.
//! Only this file uses the YAML crate.

use serde_json::{Map, Value};

/// Not YAML, with line and column.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(in crate::cli) struct YamlError(#[from] yaml_serde::Error);

/// Words that YAML 1.1 or 1.2 does not read as strings.
const RESERVED: [&str; 9] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];

/// Parses a document as JSON; an empty one is an empty mapping.
pub(in crate::cli) fn parse(text: &str) -> Result<Value, YamlError> {
    match yaml_serde::from_str(text)? {
        Value::Null => Ok(Value::Object(Map::new())),
        value => Ok(value),
    }
}

/// A mapping as lines in block style, `indent` spaces in.
pub(super) fn mapping(map: &Map<String, Value>, indent: usize) -> String {
    let mut text = String::new();
    write_mapping(&mut text, map, indent, indent);
    text
}

/// An item of a list as lines in block style, with its dash after `indent` spaces.
pub(super) fn item(value: &Value, indent: usize) -> String {
    let mut text = String::new();
    write_item(&mut text, value, indent);
    text
}

/// A scalar, quoted if necessary.
pub(super) fn scalar(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./@+=:-".contains(c);
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(plain)
        && !text.ends_with(':')
        && !RESERVED.iter().any(|word| text.eq_ignore_ascii_case(word));
    // A JSON string is a double-quoted YAML string.
    if is_plain { text.to_owned() } else { Value::from(text).to_string() }
}

/// `first` is the indentation still missing on the first line: 0 right after a dash.
fn write_mapping(text: &mut String, map: &Map<String, Value>, indent: usize, first: usize) {
    for (index, (key, value)) in map.iter().enumerate() {
        let spaces = if index == 0 { first } else { indent };
        text.push_str(&" ".repeat(spaces));
        text.push_str(&scalar(key));
        text.push(':');
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                text.push('\n');
                write_mapping(text, inner, indent + 2, indent + 2);
            }
            Value::Array(items) if !items.is_empty() => {
                text.push('\n');
                for value in items {
                    write_item(text, value, indent);
                }
            }
            other => write_leaf(text, other),
        }
    }
}

fn write_item(text: &mut String, value: &Value, indent: usize) {
    text.push_str(&" ".repeat(indent));
    text.push('-');
    match value {
        Value::Object(map) if !map.is_empty() => {
            text.push(' ');
            write_mapping(text, map, indent + 2, 0);
        }
        other => write_leaf(text, other),
    }
}

/// A scalar or an empty collection; a list directly inside a list stays JSON, which is YAML too.
fn write_leaf(text: &mut String, value: &Value) {
    text.push(' ');
    match value {
        Value::String(string) => text.push_str(&scalar(string)),
        other => text.push_str(&other.to_string()),
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn what_some_reader_takes_for_something_else_is_quoted() {
        for word in
            ["yes", "No", "ON", "y", "null", "True", "12", "1e3", "0x1F", "-", "~", "", "a "]
        {
            assert!(scalar(word).starts_with('"'), "{word:?}");
        }
        for word in [": x", "# x", "*a", "a: b", "a:", "a #b", "{}", "2020-01-01", "ünï", "a\nb"]
        {
            assert!(scalar(word).starts_with('"'), "{word:?}");
        }
        for word in ["kubernetes-admin@kubernetes", "https://10.0.0.1:6443/", "LS0t+/=="] {
            assert_eq!(scalar(word), word);
        }
    }

    #[test]
    fn layout_is_that_of_kubectl() {
        let cluster = json!({"server": "https://a:1", "x": [], "l": ["p", 7]});
        let value = json!({"cluster": cluster, "name": "a"});
        let lines = ["  - cluster:", "      l:", "      - p", "      - 7"];
        let more = ["      server: https://a:1", "      x: []", "    name: a", ""];
        let expected = [lines, more].concat().join("\n");
        assert_eq!(item(&value, 2), expected);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[ -~äß\n\t\"'#:]{0,12}".prop_map(Value::from),
            "(yes|no|on|[0-9._eE+-]{1,6}|[a-z:]{1,5})".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z -]{0,6}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(value in any_value(), indent in 0_usize..5) {
            let text = format!("items:\n{}", item(&value, indent));
            let read = parse(&text);
            let read = read.map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
            prop_assert_eq!(read, json!({"items": [value]}), "{}", text);
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "[ -~\n]{0,200}") {
            let _ = parse(&text);
        }
    }
}
