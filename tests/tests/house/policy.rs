//! Checks that the pages on security and the release profile match dependencies and tests.
//! Licences, bans and sources are checked by cargo-deny (`deny.toml`).

use std::collections::BTreeSet;
use std::fs;

use meshport_tests::repository::{metadata, root, tracked_with_suffix, tree};
use serde_json::Value;
use toml::Table;

/// Name prefixes of packages and images, before the version.
const PACKAGES: [&str; 3] = ["meshport_", "meshport-", "meshport:"];

/// The packages of the programs that are shipped.
const PROGRAMS: [&str; 2] = ["meshport", "meshport-gateway"];

/// The crates of the product.
const PRODUCT: [&str; 11] = [
    "meshport",
    "meshport-config",
    "meshport-core",
    "meshport-daemon",
    "meshport-demo",
    "meshport-discovery",
    "meshport-gateway",
    "meshport-mesh",
    "meshport-proto",
    "meshport-state",
    "meshport-top",
];

/// Their dependencies that handle neither keys nor the network.
const BYSTANDERS: [&str; 17] = [
    "bytes",
    "clap",
    "clap_complete",
    "dashmap",
    "data-encoding",
    "flate2",
    "futures-util",
    "log",
    "ratatui",
    "strsim",
    "systemd-journal-logger",
    "terminal_size",
    "thiserror",
    "toml",
    "tracing",
    "tracing-subscriber",
    "yaml_serde",
];

/// Crates that parse bytes from a peer, a server, a file or a person: the product's own crates, and
/// decoders it uses directly or indirectly.
const READERS: &str = "
    annotate-snippets base64 boringtun bytes cobs crossterm data-encoding encoding_rs
    encoding_rs_io foca granit-parser h2 http http-body http-body-util httparse httpdate hyper
    hyper-util jiff jiff-core json-patch jsonpath-rust jsonptr k8s-openapi kube kube-client
    kube-core kube-runtime libyaml-rs meshport meshport-config meshport-core meshport-daemon
    meshport-demo meshport-discovery meshport-gateway meshport-mesh meshport-proto
    meshport-state meshport-top pem percent-encoding pest postcard quinn quinn-proto quinn-udp
    rustls rustls-native-certs rustls-pki-types rustls-webpki serde serde-saphyr serde-value
    serde_core serde_json serde_spanned tokio-rustls tokio-util toml toml_datetime toml_parser
    tower-http untrusted winnow yaml_serde
";

/// The other crates of the shipped programs, which parse no such bytes, by what they are instead.
const READ_NOTHING: [(&str, &str); 6] = [
    (
        "cryptographic primitives, which know the length of their input",
        "
        aead blake2 block-buffer chacha20 chacha20poly1305 cipher cpufeatures crypto-common
        curve25519-dalek digest ed25519 ed25519-dalek generic-array getrandom hkdf hmac inout
        opaque-debug poly1305 ppv-lite86 rand rand_chacha rand_core rand_pcg ring secrecy sha2
        signature subtle typenum universal-hash x25519-dalek zeroize
        ",
    ),
    (
        "collections, numbers and strings, which find or copy what they are given",
        "
        ahash aho-corasick allocator-api2 arraydeque bitflags castaway compact_str core_detect
        crossbeam-utils dashmap deranged either equivalent fnv foldhash hashbrown indexmap
        ip_network ip_network_table ip_network_table-deps-treebitmap itertools kasuari lru
        lru-slab memchr nohash-hasher num-conv num-traits ordered-float powerfmt regex
        regex-automata regex-syntax rustc-hash scopeguard simdutf8 slab smallvec static_assertions
        strsim time time-core tinyvec ucd-trie unicode-segmentation unicode-truncate unicode-width
        zerocopy
        ",
    ),
    (
        "write only",
        "
        adler2 crc32fast flate2 form_urlencoded hex itoa mime miniz_oxide rcgen ryu simd-adler32
        toml_writer yasna zmij
        ",
    ),
    (
        "tasks, locks and services between those that read",
        "
        async-broadcast async-stream atomic-waker backon cfg-if derive_more event-listener
        event-listener-strategy fastrand futures futures-channel futures-core futures-io
        futures-sink futures-task futures-util hyper-rustls hyper-timeout lazy_static lock_api
        once_cell parking parking_lot parking_lot_core pest_stack_guard pin-project
        pin-project-lite portable-atomic psm rustls-platform-verifier sharded-slab stacker
        sync_wrapper thiserror thread_local tokio tower tower-layer tower-service try-lock want
        ",
    ),
    (
        "the kernel, its sockets and files",
        "
        enumflags2 errno hostname landlock libc linux-raw-sys mio nix openssl-probe rustix
        seccompiler signal-hook signal-hook-mio signal-hook-registry socket2
        ",
    ),
    (
        "the command line, the terminal and the log, of the local user",
        "
        anstream anstyle anstyle-parse anstyle-query clap clap_builder clap_complete clap_lex
        colorchoice is_terminal_polyfill line-clipping log nu-ansi-term ratatui ratatui-core
        ratatui-crossterm ratatui-widgets strum systemd-journal-logger terminal_size tracing
        tracing-core tracing-serde tracing-subscriber utf8parse
        ",
    ),
];

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Direct dependencies of the product outside of this workspace, without those of tests.
fn shipped(packages: &[Value]) -> BTreeSet<&str> {
    let product = packages.iter().filter(|it| PRODUCT.contains(&text(it, "name")));
    let direct = product.flat_map(|package| list(&package["dependencies"]));
    let shipped = direct.filter(|it| it["kind"].is_null() && it["path"].is_null());
    let shipped: BTreeSet<&str> = shipped.map(|it| text(it, "name")).collect();
    assert!(shipped.len() > 30, "{shipped:?}");
    shipped
}

/// Each direct dependency that touches keys or the network has a row on the page.
#[test]
fn the_security_page_justifies_what_touches_keys_or_the_network() {
    let page = fs::read_to_string(root().join("docs/security.md")).expect("the page");
    let (_, table) = page.split_once("| crate | for | why this one |\n").expect("the table");
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

/// A length that overflows while untrusted bytes are parsed aborts the process, and is not mistaken
/// for another length.
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
    let readers: BTreeSet<&str> = READERS.split_whitespace().collect();
    let wanted: BTreeSet<String> = readers.iter().map(|it| (*it).to_owned()).collect();
    assert_eq!(checked("release"), wanted, "the profile has another list");
    // In an inheriting profile, a crate's table replaces the parent's.
    for profile in ["sim", "tools"] {
        let simulator = manifest["profile"][profile]["package"].as_table().expect("overrides");
        let mut of_readers = simulator.keys().filter(|it| readers.contains(it.as_str()));
        let checked = checked(profile);
        assert!(of_readers.all(|it| checked.contains(it)), "the simulator runs other code");
    }

    let trees = PROGRAMS.map(|program| tree(program, "normal,no-proc-macro"));
    let linked: BTreeSet<&str> = trees.iter().flat_map(|it| it.lines()).map(crate_of).collect();
    assert!(linked.len() > 200, "{linked:?}");
    let mut judged = readers;
    for (reason, names) in READ_NOTHING {
        let twice: Vec<&str> = names.split_whitespace().filter(|it| !judged.insert(it)).collect();
        assert!(twice.is_empty(), "judged twice, here as \"{reason}\": {twice:?}");
    }
    let unjudged: Vec<&&str> = linked.difference(&judged).collect();
    assert!(unjudged.is_empty(), "do they read bytes from outside? {unjudged:?}");
    let gone: Vec<&&str> = judged.difference(&linked).collect();
    assert!(gone.is_empty(), "nothing uses {gone:?}");
}

/// The crate of a line of `cargo tree`, such as `2 bytes v1.11.0|MIT`.
fn crate_of(line: &str) -> &str {
    let line = line.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
    line.split(' ').next().unwrap_or_default()
}

/// The tests that the pages on security name exist.
#[test]
fn the_security_page_names_tests_that_exist() {
    let pages = [("security", 100), ("wireguard", 40), ("audit", 5), ("systemd", 1)];
    for (page, least) in pages {
        let page = format!("docs/{page}.md");
        let text = fs::read_to_string(root().join(&page)).expect("the page");
        names_tests_that_exist(&page, &text, least);
    }
}

/// The tests named on the pages for clients without meshport exist, at least one for each
/// requirement.
#[test]
fn the_pages_for_clients_without_meshport_name_tests_that_exist() {
    let read = |page| fs::read_to_string(root().join(page)).expect("the page");
    let text = read("docs/expose.md");
    let (_, tests) = text.split_once("\n## Tests\n").expect("the section");
    names_tests_that_exist("docs/expose.md", tests, 12);
    let text = read("docs/virtual-addresses.md");
    let (_, table) = text.split_once("| requirement | test |\n").expect("the table");
    let rows: Vec<&str> = table.lines().skip(1).take_while(|it| it.starts_with('|')).collect();
    assert!(rows.len() >= 17, "{} requirements", rows.len());
    rows.into_iter().for_each(|row| names_tests_that_exist(row, row, 1));
}

fn names_tests_that_exist(page: &str, text: &str, least: usize) {
    let words = text.split('`').skip(1).step_by(2).map(|it| it.rsplit("::").next().unwrap_or(it));
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

/// The version that a page states for each package or image.
fn named_versions(text: &str) -> Vec<&str> {
    let after = |name: &'static str| text.split(name).skip(1);
    let version = |rest: &'_ str| {
        rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len())
    };
    let cut = PACKAGES.into_iter().flat_map(after).map(|rest| &rest[..version(rest)]);
    cut.map(|it| it.trim_end_matches('.')).filter(|it| it.matches('.').count() == 2).collect()
}

/// The version of the product.
fn version() -> String {
    let all = metadata();
    let packages = all["packages"].as_array().expect("a list");
    let own = packages.iter().find(|it| it["name"] == "meshport").expect("it is there");
    text(own, "version").to_owned()
}

/// The previous release has a lower version, and its fixtures have that version.
#[test]
fn the_previous_release_has_a_version_of_its_own() {
    let tag = fs::read_to_string(root().join("tests/previous-release")).expect("it is there");
    let line = tag.lines().find(|line| !line.starts_with('#')).expect("a version and a commit");
    let (previous, commit) = line.split_once(' ').expect("a version and a commit");
    let parts = |version: &str| -> Vec<u32> {
        version.split('.').map(|part| part.parse().expect("a number")).collect()
    };
    assert!(parts(previous) < parts(&version()), "{previous} is not before {}", version());
    assert!(commit.len() == 40 && commit.bytes().all(|it| it.is_ascii_hexdigit()), "{commit}");
    let status = fs::read_to_string(root().join("tests/recorded/status.json")).expect("recorded");
    let status: Value = serde_json::from_str(&status).expect("it is JSON");
    assert_eq!(text(&status, "version"), previous, "tests/recorded is of another release");
}

/// A command copied from a page fetches the packages of this version.
#[test]
fn pages_name_the_packages_of_this_version() {
    assert_eq!(
        named_versions("a meshport_0.2.1-1_amd64.deb, REG/meshport:0.3.0."),
        ["0.2.1", "0.3.0"]
    );
    let version = version();
    let mut named = 0;
    for file in tracked_with_suffix(".md") {
        if !(file.path == "README.md" || file.path.starts_with("docs/")) {
            continue;
        }
        for found in named_versions(&file.text) {
            assert_eq!(found, version, "{} names a package of another version", file.path);
            named += 1;
        }
    }
    assert!(named >= 8, "{named}");
}
