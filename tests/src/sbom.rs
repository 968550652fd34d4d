//! What the released program is made of, as CycloneDX 1.6 (ECMA-424): every package that is linked
//! into it or runs while it is built, with version, licence, source and checksum.
//!
//! It is made from what cargo has locked, without network, and is the same for the same lock file.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use toml::Table;

/// The package whose program is released.
const RELEASED: &str = "meshport";

/// The bill of materials of the released program.
///
/// `metadata` is what `cargo metadata` says, `lock` the text of `Cargo.lock`.
///
/// # Errors
/// What is missing in either.
pub fn bill(metadata: &Value, lock: &str) -> Result<Value, String> {
    let packages = list(&metadata["packages"]);
    let by_id: BTreeMap<&str, &Value> =
        packages.iter().map(|package| (text(package, "id"), package)).collect();
    let released = packages.iter().find(|package| text(package, "name") == RELEASED);
    let released = released.ok_or("cargo knows no package meshport")?;
    let edges = edges(metadata);
    let reached = reachable(text(released, "id"), &edges);
    let checksums = checksums(lock)?;
    let mut components = Vec::new();
    let mut dependencies = Vec::new();
    for id in &reached {
        let package = by_id.get(id).ok_or_else(|| format!("cargo does not describe {id}"))?;
        let needs = edges.get(id).into_iter().flatten().filter(|it| reached.contains(*it));
        let needs: BTreeSet<String> =
            needs.filter_map(|it| by_id.get(it)).map(|it| purl(it)).collect();
        dependencies.push(json!({"ref": purl(package), "dependsOn": needs}));
        if *id != text(released, "id") {
            components.push(component(package, &checksums));
        }
    }
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(released, &checksums)},
        "components": components,
        "dependencies": dependencies,
    }))
}

/// Which packages each needs to run or to be built; not what only its tests need.
fn edges(metadata: &Value) -> BTreeMap<&str, Vec<&str>> {
    let shipped = |dependency: &&Value| {
        list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"] != "dev")
    };
    let of = |node: &'static str, value| text(value, node);
    let nodes = list(&metadata["resolve"]["nodes"]);
    nodes
        .iter()
        .map(|node| {
            let needs = list(&node["deps"]).iter().filter(shipped);
            (of("id", node), needs.map(|it| of("pkg", it)).collect())
        })
        .collect()
}

fn reachable<'a>(from: &'a str, edges: &BTreeMap<&'a str, Vec<&'a str>>) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::from([from]);
    let mut open = vec![from];
    while let Some(id) = open.pop() {
        let next = edges.get(id).into_iter().flatten();
        open.extend(next.filter(|id| reached.insert(**id)).copied());
    }
    reached
}

/// SHA-256 of the packages' archives, by name and version.
fn checksums(lock: &str) -> Result<BTreeMap<(String, String), String>, String> {
    let lock: Table = lock.parse().map_err(|error| format!("Cargo.lock: {error}"))?;
    let packages = lock["package"].as_array().ok_or("Cargo.lock has no packages")?;
    let field = |package: &toml::Value, name| package.get(name)?.as_str().map(str::to_owned);
    let entry = |package: &toml::Value| {
        let key = (field(package, "name")?, field(package, "version")?);
        Some((key, field(package, "checksum")?))
    };
    Ok(packages.iter().filter_map(entry).collect())
}

fn component(package: &Value, checksums: &BTreeMap<(String, String), String>) -> Value {
    let (name, version) = (text(package, "name"), text(package, "version"));
    let kind = if name == RELEASED { "application" } else { "library" };
    let mut component = json!({
        "type": kind,
        "bom-ref": purl(package),
        "name": name,
        "version": version,
        "purl": purl(package),
    });
    if let Some(licence) = package["license"].as_str() {
        // Before SPDX had operators, crates wrote a slash.
        let expression = licence.replace('/', " OR ");
        component["licenses"] = json!([{"expression": expression}]);
    }
    if let Some(checksum) = checksums.get(&(name.to_owned(), version.to_owned())) {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    component
}

/// The package URL: <https://github.com/package-url/purl-spec>.
fn purl(package: &Value) -> String {
    let version = text(package, "version").replace('+', "%2B");
    format!("pkg:cargo/{}@{version}", text(package, "name"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::repository::{metadata, root};

    #[test]
    fn every_package_of_the_program_is_listed_with_licence_and_checksum() {
        let lock = fs::read_to_string(root().join("Cargo.lock")).expect("a lock file");
        let bill = bill(&metadata(), &lock).expect("a bill");
        assert_eq!(bill["metadata"]["component"]["name"], "meshport");
        let named = |name: &str| list(&bill["components"]).iter().find(|it| it["name"] == name);
        for part in ["boringtun", "quinn-proto", "ring", "foca", "meshport-mesh", "cc"] {
            assert!(named(part).is_some(), "{part} is part of it, or builds it");
        }
        for other in ["proptest", "divan", "meshport-tests", "schemars"] {
            assert!(named(other).is_none(), "{other} is no part of it");
        }
        for component in list(&bill["components"]) {
            assert!(component["licenses"][0]["expression"].is_string(), "{component}");
            let own = text(component, "name").starts_with("meshport");
            assert_eq!(component["hashes"][0]["content"].is_string(), !own, "{component}");
        }
        // What is depended on is listed.
        let known: BTreeSet<&str> =
            list(&bill["dependencies"]).iter().map(|it| text(it, "ref")).collect();
        for dependency in list(&bill["dependencies"]) {
            for needed in list(&dependency["dependsOn"]) {
                assert!(known.contains(needed.as_str().expect("a reference")), "{needed}");
            }
        }
    }
}
