//! The bill of materials of a released program, as CycloneDX 1.6 (ECMA-424): every package that
//! is linked into it or runs in its build, with version, licence and checksum.
//!
//! It comes from `cargo tree` for the locked packages, without network: the same lock file and
//! platform give the same bill. `cargo metadata`, and so cargo-cyclonedx, counts features that only
//! other packages of the workspace enable, and lists packages that are not in the program.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::{Value, json};
use toml::Table;

use crate::repository::{host_triple, root, tree};

/// A package: its name and version.
type Id = (String, String);

/// A package in the output of `cargo tree`.
#[derive(Debug, Default, PartialEq)]
struct Package {
    /// An SPDX expression; empty where the package states none.
    licence: String,
    needs: BTreeSet<Id>,
}

/// The bill of materials of the program of a package.
///
/// # Panics
/// If no such package exists, or cargo or the lock file cannot be read, for example because
/// packages were never fetched.
pub fn bill(released: &str) -> Value {
    let all = packages(&tree(released, "normal,build"));
    let linked = packages(&tree(released, "normal,no-proc-macro"));
    let lock = fs::read_to_string(root().join("Cargo.lock")).expect("a lock file");
    let checksums = checksums(&lock.parse().expect("Cargo.lock is TOML"));
    let (mut program, mut components) = (Value::Null, Vec::new());
    for (id, package) in &all {
        let mut component = component(id, package, checksums.get(id));
        if id.0 == released {
            component["type"] = "application".into();
            component["properties"] = json!([{"name": "cargo:target", "value": host_triple()}]);
            program = component;
        } else {
            // Build dependencies are not part of the product.
            let scope = if linked.contains_key(id) { "required" } else { "excluded" };
            component["scope"] = scope.into();
            components.push(component);
        }
    }
    let dependency = |(id, package): (&Id, &Package)| {
        let needs: Vec<String> = package.needs.iter().map(purl).collect();
        json!({"ref": purl(id), "dependsOn": needs})
    };
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": program},
        "components": components,
        "dependencies": all.iter().map(dependency).collect::<Vec<_>>(),
    })
}

/// The packages in the lines of `cargo tree`, each of which begins with its depth. The dependencies
/// of a package are omitted where it is listed again.
fn packages(tree: &str) -> BTreeMap<Id, Package> {
    let mut all: BTreeMap<Id, Package> = BTreeMap::new();
    let mut path: Vec<Id> = Vec::new();
    for line in tree.lines().filter(|line| !line.is_empty()) {
        let (depth, id, licence) = parse(line).unwrap_or_else(|| panic!("cargo says {line:?}"));
        path.truncate(depth);
        if let Some(parent) = path.last() {
            all.entry(parent.clone()).or_default().needs.insert(id.clone());
        }
        all.entry(id.clone()).or_default().licence = licence;
        path.push(id);
    }
    all
}

/// `DEPTH NAME vVERSION ...|LICENCE`: depth, package and licence.
fn parse(line: &str) -> Option<(usize, Id, String)> {
    let (package, licence) = line.split_once('|')?;
    let mut words = package.split(' ');
    let depth = words.next()?.parse().ok()?;
    let id = (words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned());
    // Before SPDX had operators, crates wrote a slash.
    Some((depth, id, licence.trim_end_matches(" (*)").replace(" / ", "/").replace('/', " OR ")))
}

/// SHA-256 of the packages' archives.
fn checksums(lock: &Table) -> BTreeMap<Id, String> {
    let packages = lock["package"].as_array().expect("Cargo.lock lists packages");
    let entry = |package: &toml::Value| {
        let field = |name| package.get(name)?.as_str().map(str::to_owned);
        Some(((field("name")?, field("version")?), field("checksum")?))
    };
    packages.iter().filter_map(entry).collect()
}

fn component(id: &Id, package: &Package, checksum: Option<&String>) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": purl(id),
        "name": id.0,
        "version": id.1,
        "purl": purl(id),
    });
    if !package.licence.is_empty() {
        component["licenses"] = json!([{"expression": package.licence}]);
    }
    if let Some(checksum) = checksum {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    component
}

/// The package URL: <https://github.com/package-url/purl-spec>.
fn purl((name, version): &Id) -> String {
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bill_has_exactly_what_cargo_builds_the_program_of() {
        let bill = bill("meshport");
        assert_eq!(bill["metadata"]["component"]["name"], "meshport");
        let components = bill["components"].as_array().expect("components");
        let scope = |name: &str| {
            components.iter().find(|it| it["name"] == name).and_then(|it| it["scope"].as_str())
        };
        for part in ["boringtun", "quinn-proto", "ring", "foca", "meshport-mesh"] {
            assert_eq!(scope(part), Some("required"), "{part} is part of it");
        }
        for builder in ["cc", "serde_derive"] {
            assert_eq!(scope(builder), Some("excluded"), "{builder} builds it");
        }
        // Only features that tests enable need the last ones.
        for other in
            ["proptest", "divan", "meshport-tests", "schemars", "x509-parser", "nom", "der"]
        {
            assert_eq!(scope(other), None, "{other} is no part of it");
        }
        for component in components {
            assert!(component["licenses"][0]["expression"].is_string(), "{component}");
            let own = component["name"].as_str().is_some_and(|it| it.starts_with("meshport"));
            assert_eq!(component["hashes"][0]["content"].is_string(), !own, "{component}");
        }
    }

    #[test]
    fn the_gateway_has_its_own_bill() {
        let bill = bill("meshport-gateway");
        assert_eq!(bill["metadata"]["component"]["name"], "meshport-gateway");
        let components = bill["components"].as_array().expect("components");
        for part in ["kube", "meshport-daemon"] {
            assert!(components.iter().any(|it| it["name"] == part), "{part} is part of it");
        }
        assert!(components.iter().all(|it| it["name"] != "meshport-top"));
    }

    #[test]
    fn depths_show_dependencies() {
        let tree = "0 a v1.0.0 (/x)|MIT\n1 b v2.0.0|\n2 c v3.1.0 (proc-macro)|MIT/ISC\n\
                    1 c v3.1.0 (proc-macro)|MIT / ISC (*)\n";
        let id = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        let package = |licence: &str, needs: &[&Id]| Package {
            licence: licence.to_owned(),
            needs: needs.iter().map(|id| (*id).clone()).collect(),
        };
        let (a, b, c) = (id("a", "1.0.0"), id("b", "2.0.0"), id("c", "3.1.0"));
        let expected = [
            (a, package("MIT", &[&b, &c])),
            (b, package("", &[&c])),
            (c, package("MIT OR ISC", &[])),
        ];
        assert_eq!(packages(tree), expected.into());
        assert_eq!(parse("0 a"), None);
    }
}
