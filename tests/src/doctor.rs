//! Runs `meshport doctor` on a node of a world and reads its report.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::world::World;

/// The result of a `meshport doctor` run.
#[derive(Debug)]
pub struct Examined {
    /// Its exit status.
    pub code: Option<i32>,
    /// Its report.
    pub report: Value,
}

impl Examined {
    /// The ids of the findings, each once.
    pub fn ids(&self) -> Vec<&str> {
        let rows = self.report["checks"].as_array().expect("rows").iter();
        let bad = rows.filter(|row| !["ok", "skipped"].iter().any(|it| row["status"] == *it));
        let mut ids: Vec<&str> = bad.filter_map(|row| row["id"].as_str()).collect();
        ids.dedup();
        ids
    }

    /// The detail of one finding.
    pub fn detail(&self, id: &str) -> &str {
        let rows = self.report["checks"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["id"] == id).expect("it is checked");
        row["detail"].as_str().unwrap_or_default()
    }
}

/// The command that runs this program's doctor on a node.
pub fn command(program: &Path, world: &World, node: &str, flags: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(["doctor", "--config"]).arg(world.path(&format!("{node}.toml"))).args(flags);
    // Ignores the kubeconfigs of the user who runs the tests.
    command.env("KUBECONFIG", world.path("kubeconfig")).env("HOME", world.path("home"));
    command
}

/// Runs this program's doctor on a node.
#[track_caller]
pub fn examine(program: &Path, world: &World, node: &str) -> Examined {
    let output = command(program, world, node, &["--json"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice(&output.stdout).expect(&said);
    Examined { code: output.status.code(), report }
}
