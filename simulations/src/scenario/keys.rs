//! Which keys have an effect together.
//!
//! One table for events, and one for keys that have an effect only with another key. The refusals,
//! the JSON schema and the reference come from them, so they cannot drift apart. A key without an
//! effect is an error: its author believes that it does something.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::event::When;
use super::{Event, Site, SitePath, strict};
use crate::Error;

/// An event: its key, and the keys that go with it.
#[derive(Debug)]
pub(super) struct Kind {
    /// The key that defines the event.
    pub(super) key: &'static str,
    /// Keys that it requires.
    pub(super) needs: &'static [&'static str],
    /// Further keys that it accepts.
    pub(super) takes: &'static [&'static str],
}

const fn kind(
    key: &'static str,
    needs: &'static [&'static str],
    takes: &'static [&'static str],
) -> Kind {
    Kind { key, needs, takes }
}

/// Keys of every event: when, and how often.
pub(super) const COMMON: [&str; 3] = ["at-s", "times", "every-s"];

/// All kinds of events.
pub(super) const KINDS: [Kind; 23] = [
    kind("kill", &[], &["for-s", "over-s"]),
    kind("hang", &[], &["for-s", "over-s"]),
    kind("stall", &[], &["for-s", "over-s"]),
    kind("unready", &[], &["for-s", "over-s"]),
    kind("recover", &[], &["over-s"]),
    kind("crash", &[], &["for-s", "over-s", "without-state"]),
    kind("restart", &[], &["over-s", "without-state"]),
    kind("rolling-restart", &[], &["gap-s", "down-s", "without-state"]),
    kind("join", &[], &["over-s"]),
    kind("leave", &[], &["over-s"]),
    kind("cut", &[], &["for-s", "one-way"]),
    kind("heal", &[], &["one-way"]),
    kind("isolate", &[], &["for-s"]),
    kind("degrade", &[], &["for-s"]),
    kind("restore", &[], &[]),
    kind("flap", &["for-s"], &["period-s", "one-way"]),
    kind("clock-step", &["by-s"], &["over-s"]),
    kind("starve", &["for-s"], &["stall-ms"]),
    kind("rebind", &[], &["over-s"]),
    kind("roam", &["to"], &["over-s"]),
    kind("configure", &[], &["settings", "over-s"]),
    kind("lie", &["how"], &["for-s", "over-s"]),
    kind("revoke", &[], &["through", "over-s"]),
];

/// A key that has an effect only with another one, which is not `false` there.
#[derive(Debug)]
pub(super) struct Beside {
    /// The table: its name in the schema.
    pub(super) table: &'static str,
    /// The kind of event this applies to; any table of that name if absent.
    pub(super) kind: Option<&'static str>,
    pub(super) key: &'static str,
    pub(super) other: &'static str,
}

const fn beside(table: &'static str, key: &'static str, other: &'static str) -> Beside {
    Beside { table, kind: None, key, other }
}

/// All such keys.
pub(super) const BESIDE: [Beside; 6] = [
    beside("Event", "every-s", "times"),
    // Without it the crashed node does not start again.
    Beside { kind: Some("crash"), ..beside("Event", "without-state", "for-s") },
    beside("SitePath", "jitter", "jitter-ms"),
    beside("SitePath", "loss-burst-ms", "loss-percent"),
    beside("SitePath", "queue-ms", "rate-mbit"),
    beside("Site", "nat-timeout-s", "nat"),
];

/// Repeated at one moment, an event happens once.
const TIMES_NEEDS: &str = "\"times\" means nothing without \"every-s\" or an at-s of two numbers";

/// Checks that an event is one event, without keys that have no effect in it.
pub(super) fn check_event(event: &Event) -> Result<(), Error> {
    let given = given(event);
    let has = |key: &str| given.contains_key(key);
    let kinds: Vec<&Kind> = KINDS.iter().filter(|kind| has(kind.key)).collect();
    let [kind] = kinds[..] else { return Err(not_one(&kinds)) };
    let own = |key: &str| key == kind.key || COMMON.contains(&key);
    let mut others = given.keys().map(String::as_str).filter(|key| !own(key));
    if let Some(key) = others.find(|key| !kind.needs.contains(key) && !kind.takes.contains(key)) {
        let with = either(&takers(key), "or");
        let wrong = format!("\"{key}\" means nothing here, it goes with {with}; leave it out");
        return Err(Error::Scenario(wrong));
    }
    let needed = ["at-s"].iter().chain(kind.needs);
    if let Some(key) = needed.copied().find(|key| !has(key)) {
        return Err(Error::Scenario(format!("{} needs \"{key}\"; add it", kind.key)));
    }
    check_beside("Event", Some(kind.key), &given)?;
    if has("times") && !has("every-s") && !matches!(event.at_s, Some(When::Between(_))) {
        return Err(Error::Scenario(format!("{TIMES_NEEDS}; add one of them, or leave it out")));
    }
    Ok(())
}

/// Checks that a path or a `degrade` has no keys without effect.
pub(super) fn check_path(path: &SitePath) -> Result<(), Error> {
    if path.one_way && path.between[0] == path.between[1] {
        let wrong = "\"one-way\" means nothing within one site; leave it out";
        return Err(Error::Scenario(wrong.into()));
    }
    check_beside("SitePath", None, &given(path))
}

/// Checks that a site has no keys without effect.
pub(super) fn check_site(site: &Site) -> Result<(), Error> {
    check_beside("Site", None, &given(site))
}

fn check_beside(table: &str, kind: Option<&str>, given: &Map<String, Value>) -> Result<(), Error> {
    let here = |it: &&Beside| it.table == table && (it.kind.is_none() || it.kind == kind);
    let is_there = |key: &str| given.get(key).is_some_and(|value| *value != Value::Bool(false));
    let alone = |it: &&Beside| given.contains_key(it.key) && !is_there(it.other);
    match BESIDE.iter().filter(here).find(alone) {
        None => Ok(()),
        Some(Beside { key, other, .. }) => Err(Error::Scenario(format!(
            "\"{key}\" means nothing without \"{other}\"; add that, or leave it out"
        ))),
    }
}

/// The keys that a table has.
fn given(table: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(table) {
        Ok(Value::Object(keys)) => keys.into_iter().filter(|(_, value)| !value.is_null()).collect(),
        _ => Map::new(),
    }
}

fn not_one(kinds: &[&Kind]) -> Error {
    let said: Vec<&str> = kinds.iter().map(|kind| kind.key).collect();
    let all: Vec<&str> = KINDS.iter().map(|kind| kind.key).collect();
    Error::Scenario(match said[..] {
        [] => format!("it has to say exactly one thing; add {}", either(&all, "or")),
        _ => {
            let said = either(&said, "and");
            format!("an event says exactly one thing, not {said}; make an event of each")
        }
    })
}

/// The kinds of events that take a key.
pub(super) fn takers(key: &str) -> Vec<&'static str> {
    let takes = |kind: &&Kind| kind.needs.contains(&key) || kind.takes.contains(&key);
    KINDS.iter().filter(takes).map(|kind| kind.key).collect()
}

/// Words in a row: "a, b or c".
fn either(words: &[&str], last: &str) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [most @ .., end] => format!("{} {last} {end}", most.join(", ")),
    }
}

/// An error of an event, with facts that identify it: its number from 1, its key, its time.
pub(super) fn of_event(index: usize, event: &Event, error: Error) -> Error {
    let given = given(event);
    let kinds = KINDS.iter().map(|kind| kind.key).filter(|key| given.contains_key(*key));
    let mut words = vec![either(&kinds.collect::<Vec<_>>(), "and")];
    match event.at_s {
        Some(When::At(at)) => words.push(format!("at-s = {at}")),
        Some(When::Between([from, to])) => words.push(format!("at-s = [{from}, {to}]")),
        None => {}
    }
    words.retain(|word| !word.is_empty());
    strict::of_item("event", index, &words.join(", "), error)
}

/// Adds the rules of these tables to the schema of a scenario.
pub(super) fn constrain(schema: &mut Value) {
    let one_of: Vec<Value> = KINDS.iter().map(branch).collect();
    let tables = &mut schema["$defs"];
    tables["Event"]["oneOf"] = Value::Array(one_of);
    let often = json!({ "anyOf": [
        { "required": ["every-s"] },
        { "properties": { "at-s": { "type": "array" } } },
    ] });
    tables["Event"]["dependentSchemas"]["times"] = often;
    for Beside { table, key, other, .. } in BESIDE.iter().filter(|it| it.kind.is_none()) {
        let is_switch = tables[table]["properties"][other]["type"] == "boolean";
        let mut needs = json!({ "required": [other] });
        if is_switch {
            needs["properties"] = json!({ *other: { "const": true } });
        }
        tables[table]["dependentSchemas"][key] = needs;
    }
}

/// The schema of one kind of event: required and allowed keys.
fn branch(kind: &Kind) -> Value {
    let needed: Vec<&str> = [kind.key, "at-s"].iter().chain(kind.needs).copied().collect();
    let more = COMMON.iter().chain(kind.takes).filter(|key| !needed.contains(key));
    let all: Vec<&str> = needed.iter().chain(more).copied().collect();
    let mut branch = json!({
        "title": kind.key,
        "required": needed,
        "propertyNames": { "enum": all },
    });
    for Beside { key, other, .. } in BESIDE.iter().filter(|it| it.kind == Some(kind.key)) {
        branch["dependentRequired"][key] = json!([other]);
    }
    branch
}
