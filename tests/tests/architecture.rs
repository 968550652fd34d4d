//! The shape of the house: which crate may know which, and what the pure parts must not name.
//!
//! Each rule is a plain function over names or text, tested on a bad sample, so that it can fail.

use std::collections::{BTreeMap, BTreeSet};

use meshport_tests::repository::{TrackedFile, metadata, tracked_with_suffix};
use meshport_tests::source::{NamedPath, code_only, named_paths, without_tests};
use serde_json::Value;

/// Which workspace packages a package may depend on, in any kind of dependency.
const ARROWS: [(&str, &[&str]); 10] = [
    ("meshport-config", &[]),
    ("meshport-mesh", &["meshport-config"]),
    ("meshport-discovery", &["meshport-config"]),
    ("meshport-core", &["meshport-config", "meshport-discovery"]),
    (
        "meshport-daemon",
        &["meshport-config", "meshport-mesh", "meshport-discovery", "meshport-core"],
    ),
    ("meshport-demo", &["meshport-config", "meshport-daemon"]),
    (
        "meshport",
        &[
            "meshport-config",
            "meshport-mesh",
            "meshport-discovery",
            "meshport-core",
            "meshport-daemon",
            "meshport-demo",
        ],
    ),
    (
        "meshport-simulations",
        &[
            "meshport-config",
            "meshport-mesh",
            "meshport-discovery",
            "meshport-core",
            "meshport-daemon",
            "meshport-demo",
        ],
    ),
    (
        "meshport-tests",
        &["meshport-config", "meshport-mesh", "meshport-core", "meshport-daemon", "meshport-demo"],
    ),
    (
        "meshport-fuzz",
        &[
            "meshport-config",
            "meshport-mesh",
            "meshport-discovery",
            "meshport-core",
            "meshport-daemon",
            "meshport-simulations",
        ],
    ),
];

/// Packages that never reach a runtime or a socket library, not even through a dependency.
const PURE_PACKAGES: [&str; 3] = ["meshport-config", "meshport-discovery", "meshport-core"];
const RUNTIMES: [&str; 5] = ["tokio", "mio", "socket2", "quinn", "hyper"];

/// Where the pure parts are: folders end with a slash.
const PURE: [&str; 6] = [
    "config/src/",
    "discovery/src/",
    "mesh/src/",
    "proxy/core/src/",
    "proxy/demo/src/wan/link.rs",
    "proxy/demo/src/wan/link/",
];
const NOT_PURE: [&str; 1] = ["mesh/src/io/"];

/// What pure code does not name: runtimes, sockets, files, clocks, randomness of the system, hash
/// maps.
const FORBIDDEN: [&str; 32] = [
    "tokio",
    "socket2",
    "quinn",
    "quinn_proto",
    "quinn_udp",
    "hyper",
    "mio",
    "libc",
    "UdpSocket",
    "TcpStream",
    "TcpListener",
    "UnixStream",
    "UnixListener",
    "UnixDatagram",
    "ToSocketAddrs",
    "std::fs",
    "fs::File",
    "std::io::stdin",
    "std::io::stdout",
    "std::env",
    "std::process",
    "std::thread",
    "Instant::now",
    "SystemTime",
    "thread_rng",
    "rand::rng",
    "rand::random",
    "OsRng",
    "StdRng::from_os_rng",
    "HashMap",
    "HashSet",
    "DashMap",
];

/// Dependencies that we may have to replace: each is named in one file.
const ONE_FILE: [(&str, &str); 3] =
    [("boringtun", "mesh/src/"), ("AsyncUdpSocket", "mesh/src/io/"), ("foca", "discovery/src/")];

/// Dependencies that belong to one folder.
const ONE_FOLDER: [(&str, &str); 3] =
    [("quinn", "mesh/src/io/"), ("quinn_proto", "mesh/src/io/"), ("quinn_udp", "mesh/src/io/")];

fn product_sources() -> Vec<TrackedFile> {
    let mut all = tracked_with_suffix(".rs");
    let test_modules: Vec<String> =
        all.iter().flat_map(|file| test_modules(&file.path, &file.text)).collect();
    let of_module = |path: &str| {
        let place = path.trim_end_matches(".rs");
        test_modules.iter().any(|module| {
            place.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    };
    all.retain(|file| {
        file.path.contains("/src/") && !is_test(&file.path) && !of_module(&file.path)
    });
    all
}

/// Where the modules live that this file declares for tests only, without the `.rs`.
fn test_modules(path: &str, text: &str) -> Vec<String> {
    let place = path.trim_end_matches(".rs");
    let (folder, name) = place.rsplit_once('/').unwrap_or(("", place));
    let home = if ["lib", "main", "mod"].contains(&name) { folder } else { place };
    let code = code_only(text);
    let mut after_tests = code.split("#[cfg(test)]");
    after_tests.next();
    let declared = after_tests.filter_map(|rest| {
        let rest = rest.trim_start();
        let rest = rest.strip_prefix("pub(crate) ").unwrap_or(rest);
        let (module, _) = rest.strip_prefix("mod ")?.split_once(';')?;
        module.chars().all(|c| c.is_alphanumeric() || c == '_').then_some(module)
    });
    declared.map(|module| format!("{home}/{module}")).collect()
}

fn is_test(path: &str) -> bool {
    path.starts_with("tests/") || path.ends_with("/tests.rs") || path.contains("/tests/")
}

fn is_pure(path: &str) -> bool {
    let under = |place: &&str| match place.ends_with('/') {
        true => path.starts_with(*place),
        false => path == *place,
    };
    PURE.iter().any(under) && !NOT_PURE.iter().any(under)
}

fn product_paths(text: &str) -> Vec<NamedPath> {
    named_paths(&without_tests(&code_only(text)))
}

/// Dependencies between workspace packages that `ARROWS` does not allow.
fn wrong_arrows(dependencies: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.into_iter().collect();
    let mut wrong = Vec::new();
    for (package, used) in dependencies {
        let Some(allowed) = allowed.get(package.as_str()) else {
            wrong.push(format!("{package} is not in the table of arrows; give it its place there"));
            continue;
        };
        let surplus = used.iter().filter(|name| !allowed.contains(&name.as_str()));
        wrong.extend(surplus.map(|name| format!("{package} must not depend on {name}")));
    }
    wrong
}

/// Names in one file of pure code that pure code must not use.
fn impure_names(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for named in product_paths(text) {
        let hit = FORBIDDEN.iter().find(|wanted| named.names(wanted));
        found.extend(hit.map(|name| format!("{path}:{}: pure code names {name}", named.line)));
    }
    found
}

/// The files that name `word`, as a path segment outside comments and tests.
fn files_naming(word: &str, files: &[TrackedFile]) -> Vec<String> {
    let names = |file: &&TrackedFile| product_paths(&file.text).iter().any(|path| path.names(word));
    files.iter().filter(names).map(|file| file.path.clone()).collect()
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

#[test]
fn pure_parts_name_no_runtime_socket_file_or_clock() {
    let files = product_sources();
    let pure = files.iter().filter(|file| is_pure(&file.path));
    let found: Vec<String> = pure.flat_map(|file| impure_names(&file.path, &file.text)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_pure_place_exists() {
    let files = product_sources();
    for place in PURE.into_iter().chain(NOT_PURE) {
        let there = files.iter().any(|file| file.path.starts_with(place));
        assert!(there, "{place} is named here but is not in the repository; correct the list");
    }
}

#[test]
fn what_may_be_replaced_is_named_in_one_file() {
    let files = product_sources();
    for (word, home) in ONE_FILE {
        let named_in = files_naming(word, &files);
        assert!(
            named_in.len() == 1 && named_in[0].starts_with(home),
            "{word} must be named in exactly one file under {home}, and is named in {named_in:?}"
        );
    }
    for (word, home) in ONE_FOLDER {
        let outside: Vec<String> =
            files_naming(word, &files).into_iter().filter(|path| !path.starts_with(home)).collect();
        assert!(outside.is_empty(), "{word} may be named only under {home}: {outside:?}");
    }
}

mod bad_samples {
    use super::*;

    #[test]
    fn an_arrow_that_points_up_is_seen() {
        let pairs = [("meshport-mesh", "meshport-discovery"), ("meshport-config", "meshport")];
        let graph = pairs.map(|(from, to)| (from.to_owned(), BTreeSet::from([to.to_owned()])));
        assert_eq!(wrong_arrows(&graph.into_iter().collect()).len(), 2);
        let stranger = BTreeMap::from([("meshport-new".to_owned(), BTreeSet::new())]);
        assert_eq!(wrong_arrows(&stranger).len(), 1);
    }

    #[test]
    fn modules_for_tests_only_are_told_from_others() {
        let text = "#[cfg(test)]\nmod testing;\nmod a;\n#[cfg(test)]\nmod b { mod c; }\n";
        assert_eq!(test_modules("x/src/lib.rs", text), ["x/src/testing"]);
        assert_eq!(test_modules("x/src/core.rs", text), ["x/src/core/testing"]);
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

    #[test]
    fn each_forbidden_name_is_seen() {
        for name in FORBIDDEN {
            let sample = format!("fn f() {{ let x = {name}(); }}");
            assert_eq!(impure_names("sample.rs", &sample).len(), 1, "{name}");
        }
        let hidden = "use std::{collections::BTreeMap, time::{Duration, SystemTime}};";
        assert_eq!(impure_names("sample.rs", hidden).len(), 1);
    }

    #[test]
    fn words_in_comments_and_tests_are_fine() {
        let sample = "//! tokio drives this.\nuse std::time::Instant;\nfn f(now: Instant) {}\n\
                      #[cfg(test)]\nmod tests { fn g() { Instant::now(); } }";
        assert_eq!(impure_names("sample.rs", sample), Vec::<String>::new());
    }

    #[test]
    fn a_second_file_that_names_a_dependency_is_seen() {
        let file = |path: &str, text: &str| TrackedFile { path: path.into(), text: text.into() };
        let files = [
            file("mesh/src/tunnel.rs", "use boringtun::noise::Tunn;"),
            file("mesh/src/core.rs", "fn f(t: boringtun::noise::Tunn) {} // boringtun"),
            file("mesh/src/peer.rs", "// boringtun"),
        ];
        assert_eq!(files_naming("boringtun", &files), ["mesh/src/tunnel.rs", "mesh/src/core.rs"]);
    }

    #[test]
    fn pure_places_are_told_from_the_edges() {
        assert!(is_pure("mesh/src/core.rs") && is_pure("proxy/core/src/route.rs"));
        assert!(!is_pure("mesh/src/io/udp.rs") && !is_pure("proxy/daemon/src/lib.rs"));
        assert!(is_test("mesh/src/core/tests.rs") && !is_test("mesh/src/core.rs"));
    }
}
