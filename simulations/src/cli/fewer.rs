//! `--nodes-per-site M`: reduces a scenario for a level that cannot run all of it.

use std::collections::BTreeMap;

use toml::{Table, Value};

/// How many nodes a site has from the start, and how many join: before and after.
type Cut = ((i64, i64), (i64, i64));

/// Keeps at most this many nodes of each site (but at least its origins), and as many that join
/// later. References to removed nodes are moved to the last one kept. Returns a message for the
/// user.
pub(super) fn apply(document: &mut Table, most: usize) -> String {
    let most = i64::try_from(most).unwrap_or(i64::MAX).max(1);
    let (mut before, mut after) = (0, 0);
    let mut cuts = BTreeMap::new();
    let sites = document.get_mut("site").and_then(Value::as_array_mut);
    for site in sites.into_iter().flatten().filter_map(Value::as_table_mut) {
        let number = |site: &Table, key| site.get(key).and_then(Value::as_integer).unwrap_or(0);
        let (nodes, joining) = (number(site, "nodes"), number(site, "joining"));
        let kept = (nodes.min(most.max(number(site, "origins"))), joining.min(most));
        before += nodes + joining;
        after += kept.0 + kept.1;
        if let Some(name) = site.get("name").and_then(Value::as_str) {
            cuts.insert(name.to_owned(), ((nodes, joining), kept));
        }
        site.insert("nodes".into(), Value::from(kept.0));
        if joining > 0 {
            site.insert("joining".into(), Value::from(kept.1));
        }
    }
    let mut moved = Vec::new();
    let events = document.get_mut("event").and_then(Value::as_array_mut);
    for event in events.into_iter().flatten().filter_map(Value::as_table_mut) {
        event.iter_mut().for_each(|(_, value)| aim(value, &cuts, &mut moved));
    }
    let load = document.get_mut("load").and_then(Value::as_table_mut);
    if let Some(on) = load.and_then(|load| load.get_mut("on")) {
        aim(on, &cuts, &mut moved);
    }
    moved.sort_unstable();
    moved.dedup();
    let moved = match moved.is_empty() {
        true => String::new(),
        false => format!("; instead of nodes that do not: {}", moved.join(", ")),
    };
    format!(
        "{after} of the scenario's {before} nodes take part, at most {most} of each site{moved}"
    )
}

/// Replaces the names of removed nodes at the start of a target, or in a list of names.
fn aim(value: &mut Value, cuts: &BTreeMap<String, Cut>, moved: &mut Vec<String>) {
    match value {
        Value::String(words) => {
            let (first, rest) = words.split_at(words.find(' ').unwrap_or(words.len()));
            if let Some(other) = stand_in(first, cuts) {
                moved.push(format!("{other} for {first}"));
                *words = format!("{other}{rest}");
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| aim(value, cuts, moved)),
        _ => {}
    }
}

/// The node that stands in for a removed one.
fn stand_in(name: &str, cuts: &BTreeMap<String, Cut>) -> Option<String> {
    let (site, number) = name.rsplit_once('-')?;
    let ((nodes, joining), kept) = cuts.get(site)?;
    let number: i64 = number.parse().ok().filter(|number| *number <= nodes + joining)?;
    let other = match number - nodes {
        ..=0 => number.min(kept.0),
        later => kept.0 + later.min(kept.1),
    };
    (other != number).then(|| format!("{site}-{other}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_stay_and_the_rest_is_cut() {
        let text = "[[site]]\nnodes = 20\norigins = 3\n[[site]]\nnodes = 1\njoining = 9\n";
        let mut document: Table = text.parse().expect("TOML");
        let told = apply(&mut document, 2);
        assert_eq!(told, "6 of the scenario's 30 nodes take part, at most 2 of each site");
        let sites = document["site"].as_array().expect("sites");
        assert_eq!(sites[0]["nodes"].as_integer(), Some(3));
        assert_eq!(sites[1]["joining"].as_integer(), Some(2));
    }

    #[test]
    fn what_was_about_a_node_that_is_gone_is_about_the_last_that_is_there() {
        let text = "[load]\non = \"a-5\"\n[[site]]\nname = \"a\"\nnodes = 5\njoining = 4\n\
                    [[event]]\ncrash = \"a-4 any\"\n[[event]]\njoin = \"a-6\"\n\
                    [[event]]\njoin = \"a-9\"\n[[event]]\ncut = [\"a-1\", \"a-5\"]\n\
                    [[event]]\nleave = \"a\"\n";
        let mut document: Table = text.parse().expect("TOML");
        let told = apply(&mut document, 3);
        assert!(told.ends_with("a-3 for a-4, a-3 for a-5, a-4 for a-6, a-6 for a-9"), "{told}");
        let events = document["event"].as_array().expect("events");
        let words = |at: usize, key: &str| events[at][key].to_string();
        assert_eq!(words(0, "crash"), "\"a-3 any\"");
        assert_eq!((words(1, "join"), words(2, "join")), ("\"a-4\"".into(), "\"a-6\"".into()));
        assert_eq!(
            (words(3, "cut"), words(4, "leave")),
            ("[\"a-1\", \"a-3\"]".into(), "\"a\"".into())
        );
        assert_eq!(document["load"]["on"].as_str(), Some("a-3"));
    }

    /// A scenario that is run at another level keeps all of its events.
    #[test]
    fn every_ready_scenario_can_be_made_small() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
        let mut count = 0;
        for file in std::fs::read_dir(folder).expect("the scenarios") {
            let path = file.expect("a file").path();
            let text = std::fs::read_to_string(&path).expect("a scenario");
            let mut document: Table = text.parse().expect("TOML");
            apply(&mut document, 3);
            let small = crate::scenario::Scenario::parse(&document.to_string());
            assert!(small.is_ok(), "{}: {:?}", path.display(), small.err());
            count += 1;
        }
        assert!(count >= 13, "{count} scenarios");
    }
}
