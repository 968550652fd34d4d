//! What the released program is made of, as CycloneDX 1.6 (ECMA-424): every package that is linked
//! into it or runs while it is built, with version, licence, source and checksum.
//!
//! It is made from what cargo has locked, without network, and is the same for the same lock file
//! and platform.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use toml::Table;

/// The package whose program is released.
pub const RELEASED: &str = "meshport";
/// What is linked into the program or runs while it is built, as `cargo tree` has it.
pub const ALL_EDGES: &str = "normal,build";
/// What is linked into it.
pub const LINKED_EDGES: &str = "normal,no-proc-macro";

/// What cargo knows of the released program.
#[derive(Debug)]
pub struct Known {
    /// The answer of `cargo metadata`, which describes packages. What of them the program needs it
    /// does not say: it has all features that anything in the workspace asks for, tests included.
    pub metadata: Value,
    /// Of `cargo tree` along [`ALL_EDGES`].
    pub all: String,
    /// Of `cargo tree` along [`LINKED_EDGES`].
    pub linked: String,
    /// The text of `Cargo.lock`.
    pub lock: String,
    /// The platform that the program is for.
    pub target: String,
}

/// A package: its name and version.
type Id = (String, String);

/// The bill of materials of the released program.
///
/// # Errors
/// What is missing in what is known.
pub fn bill(known: &Known) -> Result<Value, String> {
    let packages = list(&known.metadata["packages"]);
    let described: BTreeMap<Id, &Value> = packages.iter().map(|it| (id_of(it), it)).collect();
    let describe = |id: &Id| {
        described.get(id).copied().ok_or_else(|| format!("cargo does not describe {id:?}"))
    };
    let all = needs(&known.all)?;
    let linked = needs(&known.linked)?;
    let released =
        all.keys().find(|(name, _)| name == RELEASED).ok_or("no meshport in the tree")?;
    let checksums = checksums(&known.lock)?;
    let mut components = Vec::new();
    let mut dependencies = Vec::new();
    for (id, needs) in &all {
        let needs: Result<BTreeSet<String>, String> =
            needs.iter().map(|it| describe(it).map(purl)).collect();
        dependencies.push(json!({"ref": purl(describe(id)?), "dependsOn": needs?}));
        if id != released {
            let mut component = component(describe(id)?, &checksums);
            // What only builds it is no part of the product.
            let scope = if linked.contains_key(id) { "required" } else { "excluded" };
            component["scope"] = scope.into();
            components.push(component);
        }
    }
    let mut program = component(describe(released)?, &checksums);
    program["properties"] = json!([{"name": "cargo:target", "value": known.target}]);
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": program},
        "components": components,
        "dependencies": dependencies,
    }))
}

/// Which packages each needs, from lines that begin with the depth. What follows a package for the
/// second time is left out there, and was there the first time.
fn needs(tree: &str) -> Result<BTreeMap<Id, BTreeSet<Id>>, String> {
    let mut all: BTreeMap<Id, BTreeSet<Id>> = BTreeMap::new();
    let mut path: Vec<Id> = Vec::new();
    for line in tree.lines().filter(|line| !line.is_empty()) {
        let odd = || format!("cargo tree says {line:?}");
        let mut words = line.split_whitespace();
        let depth: usize = words.next().and_then(|it| it.parse().ok()).ok_or_else(odd)?;
        let name = words.next().ok_or_else(odd)?;
        let version = words.next().and_then(|it| it.strip_prefix('v')).ok_or_else(odd)?;
        let id = (name.to_owned(), version.to_owned());
        if depth > path.len() {
            return Err(odd());
        }
        path.truncate(depth);
        if let Some(parent) = path.last() {
            all.entry(parent.clone()).or_default().insert(id.clone());
        }
        all.entry(id.clone()).or_default();
        path.push(id);
    }
    Ok(all)
}

fn id_of(package: &Value) -> Id {
    (text(package, "name").to_owned(), text(package, "version").to_owned())
}

/// SHA-256 of the packages' archives, by name and version.
fn checksums(lock: &str) -> Result<BTreeMap<Id, String>, String> {
    let lock: Table = lock.parse().map_err(|error| format!("Cargo.lock: {error}"))?;
    let packages = lock["package"].as_array().ok_or("Cargo.lock has no packages")?;
    let field = |package: &toml::Value, name| package.get(name)?.as_str().map(str::to_owned);
    let entry = |package: &toml::Value| {
        let key = (field(package, "name")?, field(package, "version")?);
        Some((key, field(package, "checksum")?))
    };
    Ok(packages.iter().filter_map(entry).collect())
}

fn component(package: &Value, checksums: &BTreeMap<Id, String>) -> Value {
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
    use crate::repository::{host_triple, metadata, root, tree};

    fn known() -> Known {
        Known {
            metadata: metadata(),
            all: tree(RELEASED, ALL_EDGES),
            linked: tree(RELEASED, LINKED_EDGES),
            lock: fs::read_to_string(root().join("Cargo.lock")).expect("a lock file"),
            target: host_triple(),
        }
    }

    #[test]
    fn every_package_of_the_program_is_listed_with_licence_and_checksum() {
        let known = known();
        let bill = bill(&known).expect("a bill");
        assert_eq!(bill["metadata"]["component"]["name"], "meshport");
        let scope = |name: &str| {
            let all = list(&bill["components"]);
            all.iter()
                .find(|it| it["name"] == name)
                .map(|it| it["scope"].as_str().expect("a scope"))
        };
        for part in ["boringtun", "quinn-proto", "ring", "foca", "meshport-mesh"] {
            assert_eq!(scope(part), Some("required"), "{part} is part of it");
        }
        for builder in ["cc", "serde_derive"] {
            assert_eq!(scope(builder), Some("excluded"), "{builder} builds it");
        }
        // The last ones by features that only tests ask for.
        for other in
            ["proptest", "divan", "meshport-tests", "schemars", "x509-parser", "nom", "der"]
        {
            assert_eq!(scope(other), None, "{other} is no part of it");
        }
        for component in list(&bill["components"]) {
            assert!(component["licenses"][0]["expression"].is_string(), "{component}");
            let own = text(component, "name").starts_with("meshport");
            assert_eq!(component["hashes"][0]["content"].is_string(), !own, "{component}");
        }
        // What is depended on is listed, and nothing else is.
        let listed = list(&bill["dependencies"]);
        let known_refs: BTreeSet<&str> = listed.iter().map(|it| text(it, "ref")).collect();
        let needed = listed.iter().flat_map(|it| list(&it["dependsOn"]));
        let mut needed: BTreeSet<&str> = needed.filter_map(Value::as_str).collect();
        needed.insert(text(&bill["metadata"]["component"], "bom-ref"));
        assert_eq!(needed, known_refs);
    }

    /// The other way to say it, in which nothing is left out and depths do not count.
    #[test]
    fn the_bill_has_exactly_what_cargo_builds_the_program_of() {
        let bill = bill(&known()).expect("a bill");
        let listed = list(&bill["components"]).iter().map(id_of);
        let listed: BTreeSet<Id> = listed.chain([id_of(&bill["metadata"]["component"])]).collect();
        let words = |line: &str| -> Option<Id> {
            let mut words = line.split_whitespace().skip(1);
            Some((words.next()?.to_owned(), words.next()?.trim_start_matches('v').to_owned()))
        };
        let built: BTreeSet<Id> = tree(RELEASED, ALL_EDGES).lines().filter_map(words).collect();
        assert_eq!(listed, built);
        // Features of the whole workspace would bring more.
        assert!(built.len() < list(&metadata()["resolve"]["nodes"]).len());
    }

    #[test]
    fn depths_say_who_needs_whom() {
        let tree = "0 a v1.0.0 (/x)\n1 b v2.0.0\n2 c v3.1.0 (proc-macro)\n1 c v3.1.0 (*)\n";
        let id = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        let (a, b, c) = (id("a", "1.0.0"), id("b", "2.0.0"), id("c", "3.1.0"));
        let expected =
            [(a, [b.clone(), c.clone()].into()), (b, [c.clone()].into()), (c, BTreeSet::new())];
        assert_eq!(needs(tree), Ok(expected.into()));
        assert!(needs("1 a v1.0.0").is_err() && needs("0 a").is_err());
    }
}
