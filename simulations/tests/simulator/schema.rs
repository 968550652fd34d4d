//! The JSON schema of scenarios agrees with the parser: on every scenario that is kept here, on
//! random worlds of the hunt, and on bad ones. An editor that checks against it is neither stricter
//! nor more lenient about keys and their combinations.

use std::fs;
use std::path::{Path, PathBuf};

use meshport_simulations::scenario::{Scenario, reference};
use meshport_simulations::storm;
use serde_json::Value;

/// Keywords that are only for people.
const WORDS: [&str; 6] = ["$schema", "$defs", "title", "description", "default", "format"];

/// The error in a value: its path, and the keyword. Panics at keywords that the schema does not use
/// so far, so that none is ignored.
fn wrong(root: &Value, schema: &Value, value: &Value, place: &str) -> Result<(), String> {
    let Value::Object(keywords) = schema else {
        return match schema {
            Value::Bool(true) => Ok(()),
            _ => Err(format!("{place}: nothing is allowed")),
        };
    };
    for (keyword, says) in keywords {
        if WORDS.contains(&keyword.as_str()) {
            continue;
        }
        let fails = || format!("{place}: {keyword} {says}");
        let holds = match keyword.as_str() {
            "$ref" => {
                let pointer = says.as_str().expect("a reference").trim_start_matches('#');
                let there = root.pointer(pointer).expect("a definition");
                wrong(root, there, value, place)?;
                true
            }
            "anyOf" | "oneOf" => {
                let fits = |it: &&Value| wrong(root, it, value, place).is_ok();
                let count = list(says).iter().filter(fits).count();
                if keyword == "anyOf" { count > 0 } else { count == 1 }
            }
            "type" => match says {
                Value::Array(kinds) => kinds.iter().any(|kind| is(value, kind)),
                kind => is(value, kind),
            },
            "const" => value == says,
            "enum" => list(says).contains(value),
            "minimum" => value.as_f64().is_none_or(|it| it >= says.as_f64().expect("a bound")),
            "maximum" => value.as_f64().is_none_or(|it| it <= says.as_f64().expect("a bound")),
            "minItems" => value.as_array().is_none_or(|it| it.len() as u64 >= count(says)),
            "maxItems" => value.as_array().is_none_or(|it| it.len() as u64 <= count(says)),
            "items" => {
                for item in value.as_array().into_iter().flatten() {
                    wrong(root, says, item, place)?;
                }
                true
            }
            _ => object(root, keyword, says, schema, value, place)?,
        };
        if !holds {
            return Err(fails());
        }
    }
    Ok(())
}

/// Keywords about tables; other values ignore them.
fn object(
    root: &Value,
    keyword: &str,
    says: &Value,
    schema: &Value,
    value: &Value,
    place: &str,
) -> Result<bool, String> {
    let Some(table) = value.as_object() else { return Ok(true) };
    let has = |key: &Value| table.contains_key(key.as_str().expect("a key"));
    match keyword {
        "required" => return Ok(list(says).iter().all(has)),
        "properties" => {
            for (key, it) in says.as_object().expect("properties") {
                if let Some(value) = table.get(key) {
                    wrong(root, it, value, &format!("{place}.{key}"))?;
                }
            }
        }
        "additionalProperties" => {
            let known = &schema["properties"];
            for (key, value) in table.iter().filter(|(key, _)| known.get(key).is_none()) {
                wrong(root, says, value, &format!("{place}.{key}"))?;
            }
        }
        "propertyNames" => {
            for key in table.keys() {
                wrong(root, says, &Value::from(key.as_str()), &format!("{place}.{key}"))?;
            }
        }
        "dependentRequired" => {
            let alone = |(key, others): (&String, &Value)| {
                table.contains_key(key) && !list(others).iter().all(has)
            };
            return Ok(!says.as_object().expect("keys").iter().any(alone));
        }
        "dependentSchemas" => {
            for (_, it) in
                says.as_object().expect("keys").iter().filter(|it| table.contains_key(it.0))
            {
                wrong(root, it, value, place)?;
            }
        }
        other => panic!("the schema says \"{other}\", which this test does not know"),
    }
    Ok(true)
}

fn is(value: &Value, kind: &Value) -> bool {
    match kind.as_str().expect("the name of a type") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no type: {other}"),
    }
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().expect("a list")
}

fn count(value: &Value) -> u64 {
    value.as_u64().expect("a count")
}

fn by_schema(text: &str) -> Result<(), String> {
    let schema: Value = serde_json::from_str(&reference::schema()).expect("JSON");
    let document: toml::Table = text.parse().expect("TOML");
    let document = serde_json::to_value(document).expect("plain values");
    wrong(&schema, &schema, &document, "scenario")
}

/// All scenarios in the repository.
fn kept() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders: Vec<PathBuf> = ["scenarios", "bars", "tests"].map(|it| root.join(it)).into();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension() == Some("toml".as_ref()) {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

#[test]
fn every_scenario_fits_the_schema_and_the_parser() {
    let files = kept();
    assert!(files.len() >= 29, "{}", files.len());
    for file in files {
        let text = fs::read_to_string(&file).expect("a scenario");
        let name = file.display();
        by_schema(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        Scenario::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    for seed in 0..100 {
        let text = storm::scenario(seed);
        by_schema(&text).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"));
    }
}

const GOOD: &str = r#"
description = "two sites"
duration-s = 100
[[site]]
name = "fra"
nodes = 4
origins = 2
[[site]]
name = "ams"
nodes = 2
"#;

#[test]
fn the_schema_refuses_what_the_parser_refuses() {
    let event = |keys: &str| format!("{GOOD}[[event]]\n{keys}\n");
    let path = |keys: &str| format!("{GOOD}[[path]]\nbetween = [\"fra\", \"ams\"]\n{keys}\n");
    let site = |keys: &str| format!("{GOOD}[[site]]\nname = \"shop\"\nnodes = 1\n{keys}\n");
    for good in [
        GOOD.to_owned(),
        event("at-s = 1\nkill = \"fra-1\""),
        event("at-s = [1, 5]\ntimes = 2\nflap = [\"fra\", \"ams\"]\nfor-s = 3\none-way = true"),
        event("at-s = 1\ncrash = \"ams-2\"\nfor-s = 3\nwithout-state = true"),
        path("loss-percent = 1\nloss-burst-ms = 60\nrate-mbit = 5\nqueue-ms = 9"),
        site("nat = true\nnat-timeout-s = 9"),
    ] {
        by_schema(&good).unwrap_or_else(|error| panic!("{error}\n{good}"));
        Scenario::parse(&good).unwrap_or_else(|error| panic!("{error}\n{good}"));
    }
    for bad in [
        GOOD.replace("duration-s = 100", ""),
        GOOD.replace("nodes = 4", "nodes = -4"),
        GOOD.replace("nodes = 4", "nodes = \"4\""),
        format!("levl = \"wide\"\n{GOOD}"),
        format!("level = \"narrow\"\n{GOOD}"),
        event("at-s = 1"),
        event("kill = \"fra-1\""),
        event("at-s = [1, 2, 3]\nkill = \"fra-1\""),
        event("at-s = 1\nkill = \"fra-1\"\ncrash = \"fra-1\""),
        event("at-s = 1\nkill = \"fra-1\"\nperiod-s = 2"),
        event("at-s = 1\nkill = \"fra-1\"\none-way = false"),
        event("at-s = 1\ncut = [\"fra\"]"),
        event("at-s = 1\ncut = [\"fra\", \"ams\"]\nwithout-state = true"),
        event("at-s = 1\nflap = [\"fra\", \"ams\"]"),
        event("at-s = 1\nroam = \"fra-3\""),
        event("at-s = 1\nlie = \"fra-3\"\nhow = \"loudly\""),
        event("at-s = 1\nleave = \"fra-3\"\nfor-s = 9"),
        event("at-s = 1\ncrash = \"fra-3\"\nwithout-state = true"),
        event("at-s = 1\ncrash = \"all any\"\ntimes = 3"),
        event("at-s = 1\ncrash = \"all any\"\nevery-s = 3"),
        event("at-s = 1\ndegrade = { between = [\"fra\", \"ams\"], queue-ms = 9 }"),
        path("queue-ms = 9"),
        path("loss-burst-ms = 60"),
        path("jitter = \"uniform\""),
        site("nat-timeout-s = 9"),
        site("nat = false\nnat-timeout-s = 9"),
    ] {
        assert!(by_schema(&bad).is_err(), "the schema takes\n{bad}");
        assert!(Scenario::parse(&bad).is_err(), "the parser takes\n{bad}");
    }
}
