use std::collections::BTreeSet;

use meshport_daemon::admin::metrics::{Kind, by_name};
use serde_json::Value;

use super::*;

/// Base of the alerts' links.
const RUNBOOKS: &str = "https://docs.example.com/meshport";

/// The metrics that an expression names.
fn metrics(expr: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
    let starts = expr.match_indices("meshport_").map(|(at, _)| &expr[at..]);
    starts.map(|rest| &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())]).collect()
}

/// The labels in selectors and groupings of an expression.
fn labels(expr: &str) -> impl Iterator<Item = &str> {
    let selectors = expr.split('{').skip(1).filter_map(|rest| rest.split('}').next());
    let selected =
        selectors.flat_map(|it| it.split(',')).filter_map(|it| it.split(['=', '!']).next());
    let groups = ["by (", "ignoring ("].into_iter();
    let groups = groups.flat_map(|word| expr.split(word).skip(1));
    let grouped = groups.filter_map(|rest| rest.split(')').next()).flat_map(|it| it.split(", "));
    selected.chain(grouped)
}

/// Every name and label in an expression exists.
#[track_caller]
fn exists(expr: &str) {
    let mut known = BTreeSet::from(["instance", "le"]);
    assert!(!metrics(expr).is_empty(), "{expr}");
    for name in metrics(expr) {
        let family = ["_bucket", "_sum", "_count"].into_iter().find_map(|end| {
            by_name(name.strip_suffix(end)?).filter(|metric| metric.kind == Kind::Histogram)
        });
        let metric = family.or(by_name(name).filter(|metric| metric.kind != Kind::Histogram));
        known.extend(metric.unwrap_or_else(|| panic!("{name} is no metric: {expr}")).labels);
    }
    for label in labels(expr) {
        assert!(known.contains(label), "{label} is no label of {expr}");
    }
}

fn groups(text: &str, pointer: &str) -> Vec<Value> {
    let rules = yaml::parse(text).expect("YAML");
    rules.pointer(pointer).and_then(Value::as_array).expect("groups").clone()
}

#[test]
fn alerts_name_metrics_that_exist_and_sections_that_exist() {
    let page = include_str!("../../../../../docs/troubleshoot.md");
    let headings = page.lines().filter_map(|line| line.strip_prefix('#'));
    let anchor = |heading: &str| -> String {
        let kept = heading.trim_start_matches('#').trim().chars();
        let kept = kept.filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-'));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    let anchors: BTreeSet<String> = headings.map(anchor).collect();
    let groups = groups(&generate(Format::Rules, RUNBOOKS), "/groups");
    let rules = groups[0]["rules"].as_array().expect("rules");
    let mut names = BTreeSet::new();
    for rule in rules {
        let name = rule["alert"].as_str().expect("a name");
        assert!(name.starts_with("Meshport") && names.insert(name), "{name}");
        exists(rule["expr"].as_str().expect("an expression"));
        let severity = rule["labels"]["severity"].as_str().expect("a severity");
        assert!(["critical", "warning", "info"].contains(&severity), "{name}");
        let link = rule["annotations"]["runbook_url"].as_str().expect("a link");
        let section = link.strip_prefix(&format!("{RUNBOOKS}/troubleshoot.md#"));
        let section = section.unwrap_or_else(|| panic!("{name}: {link}"));
        let is_any_finding = section == "{{ $labels.id | toLower }}";
        assert!(is_any_finding || anchors.contains(section), "{name}: {section}");
    }
    assert!(names.len() >= 8, "{names:?}");
}

/// Each alert is fired and resolved by the unit tests that suite `monitoring` gives promtool.
#[test]
fn every_alert_has_a_unit_test() {
    let tests = include_str!("../../../../../tests/monitoring/alerts.test.yaml");
    let groups = groups(RULES, "/groups");
    for rule in groups[0]["rules"].as_array().expect("rules") {
        let name = rule["alert"].as_str().expect("a name");
        let cases: Vec<&str> = tests.split(&format!("alertname: {name}\n")).skip(1).collect();
        let silent = |case: &&&str| case.trim_start().starts_with("exp_alerts: []");
        assert!(cases.len() >= 2 && cases.iter().any(|it| silent(&it)), "{name}");
        assert!(!cases.iter().all(|it| silent(&it)), "{name}");
    }
}

#[test]
fn the_rules_are_the_same_for_the_operator() {
    let plain = groups(&generate(Format::Rules, RUNBOOKS), "/groups");
    let text = generate(Format::PrometheusRule, RUNBOOKS);
    assert_eq!(groups(&text, "/spec/groups"), plain);
    let rule = yaml::parse(&text).expect("YAML");
    assert_eq!(rule["apiVersion"], "monitoring.coreos.com/v1");
    assert_eq!(
        (&rule["kind"], &rule["metadata"]["name"]),
        (&json!("PrometheusRule"), &json!("meshport"))
    );
}

#[test]
fn the_config_map_holds_the_dashboard() {
    let text = generate(Format::ConfigMap, RUNBOOKS);
    let (head, data) = text.split_once("  meshport.json: |\n").expect("a file");
    assert!(head.contains("grafana_dashboard: \"1\""), "{head}");
    let lines = data.lines().map(|line| line.strip_prefix("    ").expect("indented"));
    assert_eq!(lines.collect::<Vec<_>>().join("\n") + "\n", dashboard_text());
}

#[test]
fn every_panel_uses_the_variable_and_metrics_that_exist() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().expect("panels");
    let (mut ids, mut places, mut queries) = (BTreeSet::new(), BTreeSet::new(), 0);
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64()), "{panel}");
        let place = &panel["gridPos"];
        assert!(places.insert((place["y"].as_u64(), place["x"].as_u64())), "{panel}");
        assert!(place["x"].as_u64().expect("x") + place["w"].as_u64().expect("w") <= 24);
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"], datasource(), "{panel}");
        for target in panel["targets"].as_array().expect("targets") {
            assert_eq!(target["datasource"], datasource(), "{target}");
            exists(target["expr"].as_str().expect("an expression"));
            queries += 1;
        }
    }
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    let names: Vec<_> = variables.iter().filter_map(|it| it["name"].as_str()).collect();
    assert_eq!(names, ["datasource", "service", "instance"]);
    for variable in &variables[1..] {
        assert_eq!(variable["datasource"], datasource());
        exists(variable["definition"].as_str().expect("a query"));
    }
    assert!(queries >= 20, "{queries}");
}
