//! `meshport generate monitoring`: alert rules and a Grafana dashboard for meshport's metrics.
//!
//! The rules are one template. The panels of the dashboard are in `dashboard.yaml`; each gets the
//! datasource variable and the same filters here.

use clap::ValueEnum;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cli::kubeconfig::yaml;

#[cfg(test)]
mod tests;

/// How it is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// The alerts, as a rules file of Prometheus
    Rules,
    /// The alerts, as a PrometheusRule for the Prometheus operator
    PrometheusRule,
    /// The dashboard, as JSON for Grafana
    Dashboard,
    /// The dashboard, as a ConfigMap for the sidecar of Grafana's Helm chart
    ConfigMap,
}

/// The rules with links to these pages.
pub(super) const RULES: &str = include_str!("monitoring/alerts.yaml");

/// The object around the dashboard.
const CONFIG_MAP: &str = "\
# A dashboard of meshport's metrics; Grafana's sidecar finds it by its label.
#
# To change: the label, if your sidecar uses another one. Explained in docs/operate.md.
apiVersion: v1
kind: ConfigMap
metadata:
  name: meshport-dashboard
  labels:
    grafana_dashboard: \"1\"
data:
  meshport.json: |
";

/// The output in this format.
pub(super) fn generate(format: Format, runbooks: &str) -> String {
    let rules = || RULES.replace("@RUNBOOKS@", runbooks);
    match format {
        Format::Rules => rules(),
        Format::PrometheusRule => {
            let rules = rules();
            let (head, groups) = rules.split_once("groups:").expect("the template has groups");
            let kind = "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\n\
                        metadata:\n  name: meshport\nspec:\n  groups:";
            format!("{head}{kind}{}", indented(groups, 2))
        }
        Format::Dashboard => dashboard_text(),
        Format::ConfigMap => format!("{CONFIG_MAP}    {}", indented(&dashboard_text(), 4)),
    }
}

/// The text with all lines but the first indented.
fn indented(text: &str, columns: usize) -> String {
    let lines = text.split('\n').enumerate().map(|(number, line)| match line {
        line if number == 0 || line.is_empty() => line.to_owned(),
        line => format!("{:columns$}{line}", ""),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The panels of the dashboard.
const PANELS: &str = include_str!("monitoring/dashboard.yaml");
/// What selects by both filters of the dashboard, and by the first.
const ALL: &str = "{service=~\"$service\",instance=~\"$instance\"}";
const SERVICE: &str = "{service=~\"$service\"}";

/// How a panel shows its values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Shape {
    /// A single number.
    Stat,
    /// Lines over time.
    #[default]
    Graph,
    /// States over time.
    Timeline,
    /// The current values as rows.
    Table,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    title: String,
    panels: Vec<Panel>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Panel {
    title: String,
    about: String,
    #[serde(default)]
    shape: Shape,
    unit: Option<String>,
    queries: Vec<Query>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Query {
    expr: String,
    #[serde(default)]
    legend: String,
}

fn dashboard_text() -> String {
    let mut text = serde_json::to_string_pretty(&dashboard()).expect("it is plain JSON");
    text.push('\n');
    text
}

/// Columns of Grafana's grid.
const COLUMNS: u32 = 24;

fn dashboard() -> Value {
    let rows = yaml::parse(&PANELS.replace("@all", ALL).replace("@service", SERVICE));
    let rows: Vec<Row> = serde_json::from_value(rows.expect("it is YAML")).expect("rows of panels");
    let mut panels = Vec::new();
    let (mut id, mut y) = (0, 0);
    for row in rows {
        id += 1;
        let position = json!({"x": 0, "y": y, "w": COLUMNS, "h": 1});
        panels.push(json!({"id": id, "type": "row", "title": row.title, "gridPos": position,
            "collapsed": false, "panels": []}));
        y += 1;
        let (mut x, mut tallest) = (0, 0);
        for panel in &row.panels {
            let (width, height) = panel.shape.size();
            if x + width > COLUMNS {
                (x, y, tallest) = (0, y + tallest, 0);
            }
            id += 1;
            let position = json!({"x": x, "y": y, "w": width, "h": height});
            panels.push(panel.json(id, &position));
            (x, tallest) = (x + width, tallest.max(height));
        }
        y += tallest;
    }
    json!({
        "uid": "meshport", "title": "meshport", "tags": ["meshport"], "editable": true,
        "schemaVersion": 39, "version": 1, "refresh": "30s", "timezone": "",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [
            {"name": "datasource", "label": "Data source", "type": "datasource",
             "query": "prometheus"},
            variable("service", "Service", "meshport_service_usable"),
            variable("instance", "Node", "meshport_build_info"),
        ]},
        "panels": panels,
    })
}

/// A filter with all values of a label.
fn variable(name: &str, label: &str, metric: &str) -> Value {
    let query = format!("label_values({metric}, {name})");
    json!({
        "name": name, "label": label, "type": "query", "datasource": datasource(),
        "definition": query, "query": {"query": query, "refId": "variable"},
        "refresh": 2, "sort": 1, "multi": true, "includeAll": true, "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    })
}

fn datasource() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

impl Shape {
    /// Width and height on the grid.
    fn size(self) -> (u32, u32) {
        match self {
            Self::Stat => (4, 4),
            Self::Graph | Self::Timeline => (8, 8),
            Self::Table => (12, 6),
        }
    }

    fn plugin(self) -> &'static str {
        match self {
            Self::Stat => "stat",
            Self::Graph => "timeseries",
            Self::Timeline => "state-timeline",
            Self::Table => "table",
        }
    }
}

impl Panel {
    fn json(&self, id: u32, position: &Value) -> Value {
        let is_table = self.shape == Shape::Table;
        let target = |(at, Query { expr, legend }): (usize, &Query)| {
            json!({
                "refId": char::from(b'A' + u8::try_from(at).expect("a few")).to_string(),
                "datasource": datasource(), "expr": expr, "legendFormat": legend,
                "instant": is_table, "range": !is_table,
                "format": if is_table { "table" } else { "time_series" },
            })
        };
        let targets: Vec<Value> = self.queries.iter().enumerate().map(target).collect();
        let options = match self.shape {
            Shape::Stat => json!({"reduceOptions": {"calcs": ["lastNotNull"]}}),
            Shape::Graph => json!({"legend": {"displayMode": "list", "placement": "bottom"},
                "tooltip": {"mode": "multi", "sort": "desc"}}),
            Shape::Timeline | Shape::Table => json!({}),
        };
        let named = json!({"id": "organize", "options": {"excludeByName": {"Time": true},
            "renameByName": {"Value": "nodes"}}});
        let unit = self.unit.as_deref().unwrap_or("none");
        let transformations = if is_table { vec![named] } else { Vec::new() };
        json!({
            "id": id, "type": self.shape.plugin(), "title": self.title, "description": self.about,
            "gridPos": position, "datasource": datasource(), "targets": targets,
            "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
            "options": options, "transformations": transformations,
        })
    }
}
