//! The pages of `docs/reference` are generated from the code; these tests compare.
//!
//! With `MESHPORT_WRITE_REFERENCE=1` they write the pages instead.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

mod commands;
mod json;
mod sources;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Compares a page with what it has to be, or writes it.
fn check(page: &str, wanted: &str) {
    let path = root().join("docs/reference").join(page);
    if std::env::var_os("MESHPORT_WRITE_REFERENCE").is_some() {
        std::fs::write(&path, wanted).expect("the page can be written");
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = found.lines().zip(wanted.lines()).position(|(left, right)| left != right);
    assert!(
        found == wanted,
        "docs/reference/{page} is outdated from line {}: run this test with \
         MESHPORT_WRITE_REFERENCE=1",
        differs.unwrap_or_else(|| found.lines().count().min(wanted.lines().count())) + 1
    );
}

#[test]
fn the_page_of_commands_is_that_of_the_command_line() {
    let page = commands::page(&meshport::cli::command(), &sources::exit_codes(&root()));
    check("commands.md", &page);
}

#[test]
fn every_text_about_exit_codes_has_those_of_the_program() {
    let codes: BTreeSet<u8> = sources::exit_codes(&root()).into_keys().collect();
    let command = meshport::cli::command();
    let help = |command: &clap::Command| {
        let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        commands::codes_after("EXIT CODES", &text)
    };
    assert_eq!(help(&command), codes, "meshport --help");
    for verb in command.get_subcommands() {
        assert!(help(verb).is_subset(&codes), "meshport {} --help", verb.get_name());
    }
    let page = root().join("docs/troubleshoot.md");
    let text = std::fs::read_to_string(page).expect("the page is there");
    let of_page = commands::codes_after("| exit code |", &text);
    assert!(!of_page.is_empty() && of_page.is_subset(&codes), "docs/troubleshoot.md: {of_page:?}");
}

#[test]
fn the_page_of_the_configuration_has_every_key() {
    let settings = meshport_config::reference();
    check(
        "configuration.md",
        &format!(
            "# Configuration\n\n\
             Generated from the code: what `meshport check --reference` prints. Only `site` is \
             required.\nLines that begin with `#` and no space are keys with their defaults. \
             [Which keys a reload\napplies](../reference.md#configuration).\n\n\
             ```toml\n{settings}```\n"
        ),
    );
}

#[test]
fn the_page_of_json_has_every_field() {
    check("json.md", &json::page(&sources::sources(&root()), &meshport::cli::command()));
}
