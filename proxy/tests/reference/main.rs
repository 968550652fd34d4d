//! The pages of `docs/reference` are generated from the code; these tests compare.
//!
//! With `MESHPORT_WRITE_REFERENCE=1` they write the pages instead.

use std::path::{Path, PathBuf};

mod commands;
mod json;

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
    check("commands.md", &commands::page(&meshport::cli::command()));
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
    check("json.md", &json::page(&json::sources(&root())));
}
