//! The allowed dependencies between crates, and that pure crates depend on no runtime. The names
//! that pure crates must not use are in `pure.clippy.toml`; the crates that may use boringtun,
//! quinn and foca are in `deny.toml`.

use std::collections::{BTreeMap, BTreeSet};

use meshport_tests::repository::metadata;
use serde_json::Value;

/// The packages of the workspace in layers: each depends only on those of lower layers, in any kind
/// of dependency.
const LAYERS: [&[&str]; 10] = [
    &["meshport-config"],
    &["meshport-proto"],
    &["meshport-mesh", "meshport-discovery", "meshport-state"],
    &["meshport-core"],
    &["meshport-daemon"],
    &["meshport-demo", "meshport-top"],
    // The gateway is a program of its own, so that the daemon does not carry a Kubernetes client.
    &["meshport", "meshport-gateway", "meshport-charts"],
    &["meshport-simulations"],
    &["meshport-tests"],
    &["meshport-fuzz"],
];

/// The only packages that use the protocol of tunnels: what decides knows none, and the others
/// reach it through the mesh.
const USE_PROTOCOL: [&str; 2] = ["meshport-mesh", "meshport-simulations"];

/// Packages that never reach a runtime or a socket library, not even through a dependency.
const PURE_PACKAGES: [&str; 4] =
    ["meshport-config", "meshport-discovery", "meshport-core", "meshport-proto"];
const RUNTIMES: [&str; 6] = ["tokio", "mio", "socket2", "quinn", "hyper", "rustix"];

/// Dependencies between workspace packages that do not lead to a lower layer, or never may.
fn wrong_arrows(dependencies: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let layer = |name: &String| LAYERS.iter().position(|layer| layer.contains(&name.as_str()));
    let mut wrong = Vec::new();
    for (package, used) in dependencies {
        if layer(package).is_none() {
            wrong.push(format!("{package} is in none of the layers; give it its place there"));
        }
        let is_hidden =
            |name: &String| name == "meshport-proto" && !USE_PROTOCOL.contains(&package.as_str());
        let upward = used.iter().filter(|name| layer(name) >= layer(package) || is_hidden(name));
        wrong.extend(upward.map(|name| format!("{package} must not depend on {name}")));
    }
    wrong
}

fn workspace_dependencies(metadata: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let packages = metadata["packages"].as_array().expect("metadata lists packages");
    let own: Vec<&Value> = packages.iter().filter(|package| package["source"].is_null()).collect();
    let name_of = |value: &Value| value["name"].as_str().expect("a package has a name").to_owned();
    let names: BTreeSet<String> = own.iter().map(|package| name_of(package)).collect();
    let mut result = BTreeMap::new();
    for package in own {
        let used = package["dependencies"].as_array().expect("a package lists dependencies");
        let used = used.iter().map(name_of).filter(|name| names.contains(name)).collect();
        result.insert(name_of(package), used);
    }
    result
}

/// Names of all packages that `package` is built from, itself included; dev-dependencies are not.
fn built_from(metadata: &Value, package: &str) -> BTreeSet<String> {
    let nodes = metadata["resolve"]["nodes"].as_array().expect("metadata has the resolved graph");
    let by_id: BTreeMap<&str, &Value> =
        nodes.iter().filter_map(|node| Some((node["id"].as_str()?, node))).collect();
    let packages = metadata["packages"].as_array().expect("metadata lists packages");
    let names: BTreeMap<&str, &str> = packages
        .iter()
        .filter_map(|package| Some((package["id"].as_str()?, package["name"].as_str()?)))
        .collect();
    let start = names.iter().find(|(_, name)| **name == package).map(|(id, _)| *id);
    let mut waiting = vec![start.unwrap_or_else(|| panic!("{package} is not in the workspace"))];
    let mut seen = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if !seen.insert(id) {
            continue;
        }
        let used = by_id[id]["deps"].as_array().expect("a node lists its dependencies");
        let kinds = |used: &Value| used["dep_kinds"].as_array().cloned().unwrap_or_default();
        let built =
            used.iter().filter(|used| kinds(used).iter().any(|kind| kind["kind"].is_null()));
        waiting.extend(built.filter_map(|used| used["pkg"].as_str()));
    }
    seen.iter().map(|id| names[id].to_owned()).collect()
}

#[test]
fn crates_know_only_those_below_them() {
    let wrong = wrong_arrows(&workspace_dependencies(&metadata()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn pure_packages_are_built_without_a_runtime() {
    let metadata = metadata();
    for package in PURE_PACKAGES {
        let parts = built_from(&metadata, package);
        assert!(parts.len() > 1, "{package} is built from nothing: the graph was not read");
        let runtimes: Vec<&str> =
            RUNTIMES.into_iter().filter(|name| parts.contains(*name)).collect();
        assert!(runtimes.is_empty(), "{package} is built with {}", runtimes.join(", "));
    }
}

mod bad_samples {
    use super::*;

    #[test]
    fn an_arrow_that_points_up_is_seen() {
        let pairs = [
            ("meshport-mesh", "meshport-discovery"),
            ("meshport-config", "meshport"),
            ("meshport", "meshport-gateway"),
            ("meshport-daemon", "meshport-charts"),
            ("meshport-core", "meshport-proto"),
            ("meshport-top", "meshport-proto"),
        ];
        let graph = pairs.map(|(from, to)| (from.to_owned(), BTreeSet::from([to.to_owned()])));
        assert_eq!(wrong_arrows(&graph.into_iter().collect()).len(), pairs.len());
        let stranger = BTreeMap::from([("meshport-new".to_owned(), BTreeSet::new())]);
        assert_eq!(wrong_arrows(&stranger).len(), 1);
    }

    #[test]
    fn a_hidden_runtime_is_seen() {
        let metadata = serde_json::json!({
            "packages": [
                {"id": "a 1", "name": "a"}, {"id": "b 1", "name": "b"},
                {"id": "t 1", "name": "tokio"}, {"id": "d 1", "name": "dev-only"}
            ],
            "resolve": {"nodes": [
                {"id": "a 1", "deps": [
                    {"pkg": "b 1", "dep_kinds": [{"kind": null}]},
                    {"pkg": "d 1", "dep_kinds": [{"kind": "dev"}]}
                ]},
                {"id": "b 1", "deps": [{"pkg": "t 1", "dep_kinds": [{"kind": null}]}]},
                {"id": "t 1", "deps": []},
                {"id": "d 1", "deps": []}
            ]}
        });
        let parts = built_from(&metadata, "a");
        assert!(parts.contains("tokio") && !parts.contains("dev-only"));
    }
}
