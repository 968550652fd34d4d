//! The part of `deny.toml` that needs no network: licences, banned crates and features, sources.
//!
//! Read from the same file that cargo-deny reads, and checked against what cargo has locked, so
//! that a machine without cargo-deny still refuses a dependency the policy refuses.

use std::collections::BTreeSet;
use std::fs;

use meshport_tests::repository::{metadata, root, tracked_with_suffix};
use serde_json::Value;
use toml::Table;

/// The one source of packages besides the workspace itself; cargo writes it this way.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The crates of the product.
const PRODUCT: [&str; 8] = [
    "meshport",
    "meshport-config",
    "meshport-core",
    "meshport-daemon",
    "meshport-demo",
    "meshport-discovery",
    "meshport-mesh",
    "meshport-proto",
];

/// What they use that has no part in keys or the network.
const BYSTANDERS: [&str; 12] = [
    "bytes",
    "clap",
    "clap_complete",
    "dashmap",
    "data-encoding",
    "strsim",
    "terminal_size",
    "thiserror",
    "toml",
    "tracing",
    "tracing-subscriber",
    "yaml_serde",
];

/// What takes bytes apart that a peer, a server, a file or a person has written: the crates of the
/// product, and decoders that they use, also by way of others.
const READERS: [&str; 36] = [
    "boringtun",
    "bytes",
    "data-encoding",
    "foca",
    "h2",
    "http",
    "http-body-util",
    "httparse",
    "hyper",
    "hyper-util",
    "libyaml-rs",
    "meshport",
    "meshport-config",
    "meshport-core",
    "meshport-daemon",
    "meshport-demo",
    "meshport-discovery",
    "meshport-mesh",
    "meshport-proto",
    "postcard",
    "quinn",
    "quinn-proto",
    "quinn-udp",
    "rustls",
    "rustls-pki-types",
    "rustls-webpki",
    "serde",
    "serde_core",
    "serde_json",
    "tokio-rustls",
    "toml",
    "toml_datetime",
    "toml_parser",
    "untrusted",
    "winnow",
    "yaml_serde",
];

/// What the product uses itself that takes no such bytes apart: primitives of cryptography, which
/// know the length of what they take, sockets, and what a person alone feeds.
const READ_NOTHING: [&str; 24] = [
    "clap",
    "clap_complete",
    "curve25519-dalek",
    "dashmap",
    "ed25519-dalek",
    "hkdf",
    "landlock",
    "libc",
    "rand",
    "rand_chacha",
    "rand_core",
    "rcgen",
    "rustix",
    "seccompiler",
    "sha2",
    "socket2",
    "strsim",
    "terminal_size",
    "thiserror",
    "tokio",
    "tracing",
    "tracing-subscriber",
    "x25519-dalek",
    "zeroize",
];

/// One `deny` entry of `[bans]`.
struct Ban {
    name: String,
    wrappers: Vec<String>,
}

/// What `deny.toml` says, as far as it is checked here.
struct Policy {
    allowed: BTreeSet<String>,
    exceptions: Vec<(String, String)>,
    bans: Vec<Ban>,
    denied_features: Vec<(String, String)>,
}

impl Policy {
    fn read(text: &str) -> Self {
        let table: Table = text.parse().expect("deny.toml is TOML");
        let licenses = table["licenses"].as_table().expect("[licenses] is a table");
        let bans = table["bans"].as_table().expect("[bans] is a table");
        let name = |value: &toml::Value| {
            value["crate"].as_str().expect("an entry names its crate").to_owned()
        };
        let mut exceptions = Vec::new();
        for entry in entries(licenses, "exceptions") {
            exceptions.extend(strings(entry, "allow").into_iter().map(|it| (name(entry), it)));
        }
        let mut denied_features = Vec::new();
        for entry in entries(bans, "features") {
            denied_features.extend(strings(entry, "deny").into_iter().map(|it| (name(entry), it)));
        }
        let banned = entries(bans, "deny").iter();
        let bans =
            banned.map(|ban| Ban { name: name(ban), wrappers: strings(ban, "wrappers") }).collect();
        let allow = entries(licenses, "allow").iter();
        let allowed =
            allow.map(|it| it.as_str().expect("a licence is a string").to_owned()).collect();
        Self { allowed, exceptions, bans, denied_features }
    }

    fn licence_problems(&self, packages: &[Value]) -> Vec<String> {
        let mut problems = Vec::new();
        for package in packages {
            let name = text(package, "name");
            let Some(expression) = package["license"].as_str() else {
                problems.push(format!("{name} states no licence"));
                continue;
            };
            let excepted =
                |term: &str| self.exceptions.iter().any(|it| it.0 == name && it.1 == term);
            let accept = |term: &str| self.allowed.contains(term) || excepted(term);
            match Licence::parse(expression) {
                Some(licence) if licence.accepted(&accept) => {}
                Some(_) => problems.push(format!("{name}: the policy does not allow {expression}")),
                None => problems.push(format!("{name}: cannot read the licence {expression:?}")),
            }
        }
        problems
    }

    fn ban_problems(&self, metadata: &Value) -> Vec<String> {
        let packages = list(&metadata["packages"]);
        let mut problems = Vec::new();
        for ban in &self.bans {
            let Some(banned) = packages.iter().find(|package| text(package, "name") == ban.name)
            else {
                continue;
            };
            if ban.wrappers.is_empty() {
                problems.push(format!("{} is banned", ban.name));
                continue;
            }
            let nodes = list(&metadata["resolve"]["nodes"]).iter();
            for user in nodes.filter(|node| uses(node, text(banned, "id"))) {
                let user = name_of(packages, text(user, "id"));
                if !ban.wrappers.iter().any(|wrapper| wrapper == user) {
                    problems.push(format!("{user} must not depend on {}", ban.name));
                }
            }
        }
        problems
    }

    fn feature_problems(&self, metadata: &Value) -> Vec<String> {
        let mut problems = Vec::new();
        for node in list(&metadata["resolve"]["nodes"]) {
            let name = name_of(list(&metadata["packages"]), text(node, "id"));
            for feature in list(&node["features"]).iter().filter_map(Value::as_str) {
                if self.denied_features.iter().any(|it| it.0 == name && it.1 == feature) {
                    problems.push(format!("{name} is built with its feature {feature}"));
                }
            }
        }
        problems
    }
}

/// Packages that come neither from the workspace nor from crates.io.
fn source_problems(packages: &[Value]) -> Vec<String> {
    let foreign =
        packages.iter().filter(|it| it["source"].as_str().is_some_and(|s| s != CRATES_IO));
    foreign.map(|it| format!("{} comes from {}", text(it, "name"), text(it, "source"))).collect()
}

/// An SPDX licence expression. `/` between two names is the old way to write OR.
enum Licence {
    Term(String),
    Any(Vec<Licence>),
    All(Vec<Licence>),
}

impl Licence {
    fn parse(expression: &str) -> Option<Self> {
        let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
        let words: Vec<&str> = spaced.split_whitespace().collect();
        let mut rest = words.as_slice();
        let licence = Self::any(&mut rest)?;
        rest.is_empty().then_some(licence)
    }

    fn any(words: &mut &[&str]) -> Option<Self> {
        let mut parts = vec![Self::all(words)?];
        while let ["OR", rest @ ..] = *words {
            *words = rest;
            parts.push(Self::all(words)?);
        }
        Some(Self::Any(parts))
    }

    fn all(words: &mut &[&str]) -> Option<Self> {
        let mut parts = vec![Self::term(words)?];
        while let ["AND", rest @ ..] = *words {
            *words = rest;
            parts.push(Self::term(words)?);
        }
        Some(Self::All(parts))
    }

    fn term(words: &mut &[&str]) -> Option<Self> {
        match *words {
            ["(", rest @ ..] => {
                *words = rest;
                let inner = Self::any(words)?;
                let [")", rest @ ..] = *words else { return None };
                *words = rest;
                Some(inner)
            }
            [")" | "OR" | "AND" | "WITH", ..] | [] => None,
            [name, "WITH", exception, rest @ ..] => {
                *words = rest;
                Some(Self::Term(format!("{name} WITH {exception}")))
            }
            [name, rest @ ..] => {
                *words = rest;
                Some(Self::Term((*name).to_owned()))
            }
        }
    }

    fn accepted(&self, accept: &dyn Fn(&str) -> bool) -> bool {
        match self {
            Self::Term(name) => accept(name),
            Self::Any(parts) => parts.iter().any(|part| part.accepted(accept)),
            Self::All(parts) => parts.iter().all(|part| part.accepted(accept)),
        }
    }
}

fn entries<'a>(table: &'a Table, key: &str) -> &'a [toml::Value] {
    table.get(key).and_then(toml::Value::as_array).map_or(&[], Vec::as_slice)
}

fn strings(entry: &toml::Value, key: &str) -> Vec<String> {
    let list = entry.get(key).and_then(toml::Value::as_array);
    let list = list.into_iter().flatten().filter_map(toml::Value::as_str);
    list.map(str::to_owned).collect()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Whether a node of the resolved graph depends on the package `id`.
fn uses(node: &Value, id: &str) -> bool {
    list(&node["dependencies"]).iter().any(|used| used == id)
}

fn name_of<'a>(packages: &'a [Value], id: &str) -> &'a str {
    let package = packages.iter().find(|package| text(package, "id") == id);
    package.map_or("", |package| text(package, "name"))
}

#[test]
fn what_is_locked_follows_the_policy() {
    let file = fs::read_to_string(root().join("deny.toml")).expect("deny.toml is in the root");
    let policy = Policy::read(&file);
    assert!(policy.allowed.len() > 4 && policy.bans.len() > 4, "deny.toml was not read");
    let metadata = metadata();
    let packages = list(&metadata["packages"]);
    assert!(packages.len() > 50, "cargo lists only {} packages", packages.len());
    let mut problems = policy.licence_problems(packages);
    problems.extend(policy.ban_problems(&metadata));
    problems.extend(policy.feature_problems(&metadata));
    problems.extend(source_problems(packages));
    assert!(problems.is_empty(), "deny.toml is not followed:\n{}", problems.join("\n"));
}

/// What the product depends on itself, neither for tests nor of this workspace.
fn shipped(packages: &[Value]) -> BTreeSet<&str> {
    let product = packages.iter().filter(|it| PRODUCT.contains(&text(it, "name")));
    let direct = product.flat_map(|package| list(&package["dependencies"]));
    let shipped = direct.filter(|it| it["kind"].is_null() && it["path"].is_null());
    let shipped: BTreeSet<&str> = shipped.map(|it| text(it, "name")).collect();
    assert!(shipped.len() > 30, "{shipped:?}");
    shipped
}

/// Of what the product depends on, each crate with a part in keys or the network has its row.
#[test]
fn the_security_page_justifies_what_touches_keys_or_the_network() {
    let page = fs::read_to_string(root().join("docs/security.md")).expect("the page");
    let (_, table) = page.split_once("| crate | for | why it |\n").expect("the table");
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    let rows: BTreeSet<&str> = cells.flat_map(|cell| cell.split(',')).map(str::trim).collect();
    let metadata = metadata();
    let packages = list(&metadata["packages"]);
    let shipped = shipped(packages);
    let is_told = |name: &str| rows.contains(name) || BYSTANDERS.contains(&name);
    let untold: Vec<&str> = shipped.iter().copied().filter(|it| !is_told(it)).collect();
    assert!(untold.is_empty(), "docs/security.md has no row for {untold:?}");
    let is_locked = |name: &str| packages.iter().any(|it| text(it, "name") == name);
    let gone: Vec<&str> = rows.iter().copied().filter(|it| !is_locked(it)).collect();
    assert!(gone.is_empty(), "docs/security.md has rows for {gone:?}, which nothing uses");
}

/// A length that overflows while somebody else's bytes are taken apart ends the process, and is not
/// taken for another one.
#[test]
fn the_release_build_checks_arithmetic_where_bytes_from_outside_are_read() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("the workspace's");
    let manifest: Table = manifest.parse().expect("it is TOML");
    let checked = |profile: &str| -> BTreeSet<String> {
        let packages = manifest["profile"][profile]["package"].as_table().expect("overrides");
        let is_checked = |it: &toml::Value| it.get("overflow-checks") == Some(&true.into());
        let checked = packages.iter().filter(|(_, settings)| is_checked(settings));
        checked.map(|(name, _)| name.clone()).collect()
    };
    let wanted: BTreeSet<String> = READERS.into_iter().map(str::to_owned).collect();
    assert_eq!(checked("release"), wanted, "the profile has another list");
    // A crate's table in a profile that inherits replaces that of the parent.
    for profile in ["sim", "tools"] {
        let simulator = manifest["profile"][profile]["package"].as_table().expect("overrides");
        let of_readers = simulator.keys().filter(|it| READERS.contains(&it.as_str())).cloned();
        assert_eq!(checked(profile), of_readers.collect(), "the simulator runs other code");
    }

    let metadata = metadata();
    let packages = list(&metadata["packages"]);
    let locked: BTreeSet<&str> = packages.iter().map(|it| text(it, "name")).collect();
    let gone: Vec<&str> = READERS.into_iter().filter(|it| !locked.contains(it)).collect();
    assert!(gone.is_empty(), "nothing uses {gone:?}");
    let judged = |it: &&str| READERS.contains(it) != READ_NOTHING.contains(it);
    let shipped = shipped(packages);
    let unjudged: Vec<&str> = shipped.iter().copied().filter(|it| !judged(it)).collect();
    assert!(unjudged.is_empty(), "does it read bytes from outside? {unjudged:?}");
}

/// What the pages on security say is shown, is shown by a test of that name.
#[test]
fn the_security_page_names_tests_that_exist() {
    let pages = [("security", 100), ("wireguard", 40), ("audit", 5), ("systemd", 1)];
    for (page, least) in pages {
        let page = format!("docs/{page}.md");
        let text = fs::read_to_string(root().join(&page)).expect("the page");
        names_tests_that_exist(&page, &text, least);
    }
}

fn names_tests_that_exist(page: &str, text: &str, least: usize) {
    let words = text.split('`').skip(1).step_by(2);
    let is_test = |word: &&str| {
        word.contains('_')
            && word.chars().all(|it| it.is_ascii_lowercase() || "_0123456789".contains(it))
    };
    let named: BTreeSet<&str> = words.filter(is_test).collect();
    assert!(named.len() >= least, "{page} names {} tests", named.len());
    let sources = tracked_with_suffix(".rs");
    let exists = |test: &str| {
        let wanted = format!("fn {test}(");
        sources.iter().any(|file| file.text.contains(&wanted))
    };
    let missing: Vec<&str> = named.into_iter().filter(|test| !exists(test)).collect();
    assert!(missing.is_empty(), "{page} names tests that are not there: {missing:?}");
}

mod bad_samples {
    use super::*;
    use serde_json::json;

    fn policy() -> Policy {
        Policy::read(
            "[licenses]\nallow = ['MIT', 'Apache-2.0', 'A WITH B']\n\
             exceptions = [{ crate = 'foca', allow = ['MPL-2.0'] }]\n\
             [bans]\ndeny = [{ crate = 'openssl' }, { crate = 'quinn', wrappers = ['mesh'] }]\n\
             [[bans.features]]\ncrate = 'boringtun'\ndeny = ['mock-instant']",
        )
    }

    fn licence_of(name: &str, licence: &str) -> Vec<String> {
        policy().licence_problems(&[json!({"name": name, "license": licence})])
    }

    #[test]
    fn licences_are_judged_by_their_expression() {
        for good in ["MIT", "GPL-3.0 OR MIT", "(MIT OR X) AND Apache-2.0", "X/MIT", "A WITH B"] {
            assert_eq!(licence_of("a", good), Vec::<String>::new(), "{good}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "A", "MIT OR", "(MIT", "MIT MIT", "", "MPL-2.0"] {
            assert_eq!(licence_of("a", bad).len(), 1, "{bad}");
        }
        assert_eq!(licence_of("foca", "MPL-2.0"), Vec::<String>::new());
        assert_eq!(policy().licence_problems(&[json!({"name": "a", "license": null})]).len(), 1);
    }

    #[test]
    fn a_banned_crate_and_a_wrong_user_are_seen() {
        let locked = |user: &str, used: &str| {
            json!({
                "packages": [{"id": "1", "name": user}, {"id": "2", "name": used}],
                "resolve": {"nodes": [
                    {"id": "1", "dependencies": ["2"]}, {"id": "2", "dependencies": []}
                ]}
            })
        };
        assert_eq!(policy().ban_problems(&locked("a", "openssl")), ["openssl is banned"]);
        assert_eq!(policy().ban_problems(&locked("mesh", "quinn")), Vec::<String>::new());
        assert_eq!(policy().ban_problems(&locked("proxy", "quinn")).len(), 1);
        assert_eq!(policy().ban_problems(&locked("proxy", "serde")), Vec::<String>::new());
    }

    #[test]
    fn a_denied_feature_is_seen() {
        let metadata = json!({
            "packages": [{"id": "b 1", "name": "boringtun"}],
            "resolve": {"nodes": [{"id": "b 1", "features": ["mock-instant"]}]}
        });
        assert_eq!(policy().feature_problems(&metadata).len(), 1);
    }

    #[test]
    fn a_foreign_source_is_seen() {
        let from = |source: Value| source_problems(&[json!({"name": "a", "source": source})]).len();
        assert_eq!(from(json!("git+https://example.com/a")), 1);
        assert_eq!(from(json!("registry+https://example.com/index")), 1);
        assert_eq!(from(json!(CRATES_IO)) + from(Value::Null), 0);
    }
}
