//! `meshport generate monitoring`: alert rules and a Grafana dashboard for meshport's metrics.
//!
//! The rules are one template. The dashboard is made from a table of panels, so that each uses the
//! datasource variable and the same filters.

use clap::ValueEnum;
use serde_json::{Value, json};

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

/// How a panel shows its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// A single number.
    Stat,
    /// Lines over time.
    Graph,
    /// States over time.
    Timeline,
    /// The current values as rows.
    Table,
}

/// A panel: its expressions, each with the legend of its series.
struct Panel {
    title: &'static str,
    about: &'static str,
    shape: Shape,
    /// Grafana's name of the unit.
    unit: &'static str,
    queries: &'static [(&'static str, &'static str)],
}

/// A row of panels with its title.
struct Row {
    title: &'static str,
    panels: &'static [Panel],
}

const fn panel(
    shape: Shape,
    unit: &'static str,
    title: &'static str,
    about: &'static str,
    queries: &'static [(&'static str, &'static str)],
) -> Panel {
    Panel { title, about, shape, unit, queries }
}

/// The dashboard. `$service` and `$instance` are its filters.
const ROWS: &[Row] = &[
    Row {
        title: "Now",
        panels: &[
            panel(
                Shape::Stat,
                "none",
                "Nodes that answer",
                "Daemons that Prometheus scrapes.",
                &[("count(meshport_build_info)", "")],
            ),
            panel(
                Shape::Stat,
                "none",
                "Nodes without an origin",
                "New connections to their local address are refused.",
                &[(r#"count(meshport_service_usable{service=~"$service"} == 0) or vector(0)"#, "")],
            ),
            panel(
                Shape::Stat,
                "none",
                "Origins ready",
                "As any node sees them.",
                &[(
                    "sum(max by (service, origin) \
                     (meshport_origin_ready{service=~\"$service\"}))",
                    "",
                )],
            ),
            panel(
                Shape::Stat,
                "none",
                "Members down",
                "As the node that knows the most of them sees it.",
                &[(r#"max(meshport_members{liveness="down"})"#, "")],
            ),
            panel(
                Shape::Stat,
                "none",
                "Open sessions",
                "Of the clients of all nodes.",
                &[(r#"sum(meshport_sessions_open{service=~"$service",side="client"})"#, "")],
            ),
            panel(
                Shape::Stat,
                "s",
                "Next credential to expire",
                "Time until the first credential of a scraped node expires.",
                &[("min(meshport_credential_expiry_timestamp_seconds) - time()", "")],
            ),
            panel(
                Shape::Table,
                "none",
                "Findings",
                "Nodes with each finding; docs/troubleshoot.md explains the id.",
                &[("count by (id, severity) (meshport_findings)", "")],
            ),
            panel(
                Shape::Table,
                "none",
                "Versions",
                "Nodes that run each version.",
                &[("count by (version) (meshport_build_info)", "")],
            ),
        ],
    },
    Row {
        title: "Origins",
        panels: &[
            panel(
                Shape::Timeline,
                "none",
                "Ready",
                "1 while some node sees the origin ready.",
                &[(
                    "max by (service, origin, site) \
                     (meshport_origin_ready{service=~\"$service\"})",
                    "{{origin}} ({{site}})",
                )],
            ),
            panel(
                Shape::Graph,
                "none",
                "Nodes by their first origin",
                "Where new sessions go.",
                &[(
                    "sum by (origin) (meshport_origin_chosen{service=~\"$service\"})",
                    "{{origin}}",
                )],
            ),
            panel(
                Shape::Graph,
                "none",
                "Route changes",
                "Per interval, by cause.",
                &[(
                    "sum by (cause) (increase(meshport_route_changes_total\
                     {service=~\"$service\",instance=~\"$instance\"}[$__rate_interval]))",
                    "{{cause}}",
                )],
            ),
            panel(
                Shape::Graph,
                "none",
                "Nodes that use a relay",
                "Nodes whose first origin is reached through a relay.",
                &[(
                    "sum(meshport_origin_chosen{service=~\"$service\"} \
                     * meshport_origin_relayed{service=~\"$service\"})",
                    "relayed",
                )],
            ),
            panel(
                Shape::Graph,
                "s",
                "Round-trip time",
                "Median of the chosen nodes, to each origin.",
                &[(
                    "quantile by (origin) (0.5, meshport_origin_rtt_seconds\
                     {service=~\"$service\",instance=~\"$instance\"})",
                    "{{origin}}",
                )],
            ),
            panel(
                Shape::Graph,
                "percentunit",
                "Loss",
                "The worst path to each origin.",
                &[(
                    "max by (origin) (meshport_origin_loss_ratio\
                     {service=~\"$service\",instance=~\"$instance\"})",
                    "{{origin}}",
                )],
            ),
        ],
    },
    Row {
        title: "Clients",
        panels: &[
            panel(
                Shape::Graph,
                "s",
                "Time to connect",
                "Until an origin has answered.",
                &[
                    (
                        "histogram_quantile(0.5, sum by (le) (rate(\
                         meshport_connect_duration_seconds_bucket\
                         {service=~\"$service\",instance=~\"$instance\"}[$__rate_interval])))",
                        "median",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le) (rate(\
                         meshport_connect_duration_seconds_bucket\
                         {service=~\"$service\",instance=~\"$instance\"}[$__rate_interval])))",
                        "99 %",
                    ),
                ],
            ),
            panel(
                Shape::Graph,
                "cps",
                "Connections",
                "By outcome.",
                &[(
                    "sum by (outcome) (rate(meshport_sessions_total\
                     {service=~\"$service\",instance=~\"$instance\"}[$__rate_interval]))",
                    "{{outcome}}",
                )],
            ),
            panel(
                Shape::Graph,
                "none",
                "Open sessions",
                "Of clients, served for other nodes, and relayed.",
                &[(
                    "sum by (side) (meshport_sessions_open\
                     {service=~\"$service\",instance=~\"$instance\"})",
                    "{{side}}",
                )],
            ),
            panel(
                Shape::Graph,
                "cps",
                "Sessions cut and moved",
                "Cut: the path died or the apiserver hung. Moved: idle, to a better origin.",
                &[
                    (
                        "sum(rate(meshport_sessions_cut_total\
                         {service=~\"$service\",instance=~\"$instance\"}[$__rate_interval]))",
                        "cut",
                    ),
                    (
                        "sum(rate(meshport_sessions_moved_total\
                         {service=~\"$service\",instance=~\"$instance\"}[$__rate_interval]))",
                        "moved",
                    ),
                ],
            ),
            panel(
                Shape::Graph,
                "s",
                "Length of sessions",
                "Of those that ended.",
                &[(
                    "histogram_quantile(0.5, sum by (le) (rate(\
                     meshport_session_duration_seconds_bucket\
                     {service=~\"$service\",instance=~\"$instance\"}[$__rate_interval])))",
                    "median",
                )],
            ),
            panel(
                Shape::Graph,
                "cps",
                "Streams served",
                "For other nodes, by answer.",
                &[(
                    "sum by (answer) (rate(meshport_served_streams_total\
                     {service=~\"$service\",instance=~\"$instance\"}[$__rate_interval]))",
                    "{{answer}}",
                )],
            ),
        ],
    },
    Row {
        title: "Mesh",
        panels: &[
            panel(
                Shape::Graph,
                "Bps",
                "Bytes on the UDP port",
                "Of the chosen nodes.",
                &[(
                    "sum by (direction) (rate(meshport_mesh_bytes_total\
                     {instance=~\"$instance\"}[$__rate_interval]))",
                    "{{direction}}",
                )],
            ),
            panel(
                Shape::Graph,
                "pps",
                "Dropped by the mesh",
                "By reason.",
                &[(
                    "sum by (reason) (rate(meshport_mesh_dropped_total\
                     {instance=~\"$instance\"}[$__rate_interval])) > 0",
                    "{{reason}}",
                )],
            ),
            panel(
                Shape::Graph,
                "none",
                "Members",
                "As the chosen nodes see them.",
                &[(
                    "max by (liveness) (meshport_members{instance=~\"$instance\"})",
                    "{{liveness}}",
                )],
            ),
        ],
    },
];

fn dashboard_text() -> String {
    let mut text = serde_json::to_string_pretty(&dashboard()).expect("it is plain JSON");
    text.push('\n');
    text
}

/// Columns of Grafana's grid.
const COLUMNS: u32 = 24;

fn dashboard() -> Value {
    let mut panels = Vec::new();
    let (mut id, mut y) = (0, 0);
    for row in ROWS {
        id += 1;
        let position = json!({"x": 0, "y": y, "w": COLUMNS, "h": 1});
        panels.push(json!({"id": id, "type": "row", "title": row.title, "gridPos": position,
            "collapsed": false, "panels": []}));
        y += 1;
        let (mut x, mut tallest) = (0, 0);
        for panel in row.panels {
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
        let target = |(at, (expr, legend)): (usize, &(&str, &str))| {
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
        let transformations = if is_table { vec![named] } else { Vec::new() };
        json!({
            "id": id, "type": self.shape.plugin(), "title": self.title, "description": self.about,
            "gridPos": position, "datasource": datasource(), "targets": targets,
            "fieldConfig": {"defaults": {"unit": self.unit}, "overrides": []},
            "options": options, "transformations": transformations,
        })
    }
}
