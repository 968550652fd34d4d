//! `--set KEY=VALUE`: settings under test from the command line.

use toml::{Table, Value};

use crate::Error;

/// Sets one value in the text of a scenario.
pub(super) fn apply(document: &mut Table, set: &str) -> Result<(), Error> {
    let (key, value) = split(set)?;
    put(document, key, parse(value))
}

/// The key and the values of a set that sweeps.
pub(super) fn values(set: &str) -> Result<(&str, Vec<&str>), Error> {
    let (key, all) = split(set)?;
    let mut depth = 0;
    let values = all.split(|letter: char| {
        depth += i32::from(letter == '[') - i32::from(letter == ']');
        letter == ',' && depth == 0
    });
    Ok((key, values.collect()))
}

fn split(set: &str) -> Result<(&str, &str), Error> {
    set.split_once('=').ok_or_else(|| Error::Scenario(format!("--set {set}: expected KEY=VALUE")))
}

/// As TOML if it parses, else as a string (durations such as 2s).
fn parse(text: &str) -> Value {
    let parsed = format!("it = {text}").parse::<Table>().ok();
    parsed.and_then(|mut table| table.remove("it")).unwrap_or_else(|| Value::from(text))
}

fn put(document: &mut Table, key: &str, value: Value) -> Result<(), Error> {
    let parts: Vec<&str> = match key.strip_prefix("scenario.") {
        Some(rest) => rest.split('.').collect(),
        None => ["settings"].into_iter().chain(key.split('.')).collect(),
    };
    let wrong = |part: &str| Error::Scenario(format!("--set {key}: no key \"{part}\""));
    let (last, parents) = parts.split_last().expect("a split gives at least one part");
    let mut root = Value::Table(std::mem::take(document));
    let mut current = &mut root;
    for part in parents {
        current = match current {
            Value::Table(table) => {
                table.entry((*part).to_owned()).or_insert_with(|| Value::Table(Table::new()))
            }
            Value::Array(list) => {
                let count = list.len();
                let index = part.parse::<usize>().ok();
                index.and_then(|index| list.get_mut(index)).ok_or_else(|| {
                    Error::Scenario(format!(
                        "--set {key}: no item \"{part}\" in a list of {count} (items are \
                         numbered from 0)"
                    ))
                })?
            }
            _ => return Err(wrong(part)),
        };
    }
    match current {
        Value::Table(table) => {
            table.insert((*last).to_owned(), value);
        }
        _ => return Err(wrong(last)),
    }
    if let Value::Table(table) = root {
        *document = table;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_goes_to_the_settings_or_into_the_scenario() {
        let mut document: Table = "[[site]]\nnodes = 3".parse().expect("TOML");
        for set in ["discovery.suspicion=4s", "scenario.site.0.nodes=50", "scenario.loss-percent=1"]
        {
            apply(&mut document, set).expect("a place");
        }
        assert_eq!(document["settings"]["discovery"]["suspicion"].as_str(), Some("4s"));
        assert_eq!(document["site"][0]["nodes"].as_integer(), Some(50));
        assert_eq!(document["loss-percent"].as_integer(), Some(1));
        for wrong in ["scenario.site.1.nodes=5", "scenario.loss-percent.x=1", "nothing"] {
            let mut document = document.clone();
            assert!(apply(&mut document, wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn values_are_split_outside_of_brackets() {
        assert_eq!(values("a.b=1s,2s").expect("two"), ("a.b", vec!["1s", "2s"]));
        assert_eq!(values("a=[1,2],[3]").expect("two").1, ["[1,2]", "[3]"]);
    }
}
