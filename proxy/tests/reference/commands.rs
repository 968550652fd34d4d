//! The command line as a page: each verb with its usage and options, and the exit codes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use clap::{Arg, Command};

/// The page of a command line.
pub(crate) fn page(command: &Command, exit_codes: &BTreeMap<u8, Vec<String>>) -> String {
    let mut text = String::from(
        "# Commands\n\nGenerated from the code. `meshport help COMMAND` adds examples.\n\n\
         ## Exit codes\n\n\
         `meshport forward` passes on the code of the command that it runs.\n\n\
         | exit code | meaning |\n| --- | --- |\n",
    );
    for (code, meanings) in exit_codes {
        writeln!(text, "| {code} | {} |", meanings.join(" "))
            .expect("writing to a String does not fail");
    }
    let mut command = command.clone();
    command.build();
    for verb in visible(&command) {
        describe(&mut text, verb, 2);
    }
    text
}

/// The exit codes in a text: numbers that begin the lines after a heading, up to an empty line.
pub(crate) fn codes_after(heading: &str, text: &str) -> BTreeSet<u8> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with(heading)).skip(1);
    let of_heading = std::iter::from_fn(|| lines.next().filter(|line| !line.trim().is_empty()));
    let number = |line: &str| {
        let line = line.trim_start_matches(['|', ' ']);
        line.split([' ', '|']).next().and_then(|it| it.parse().ok())
    };
    of_heading.filter_map(number).collect()
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
}

fn describe(text: &mut String, verb: &Command, depth: usize) {
    let path = verb.get_bin_name().unwrap_or(verb.get_name());
    let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
    let usage = verb.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim();
    let hashes = "#".repeat(depth);
    write!(text, "\n{hashes} {path}\n\n{}\n\n```\n{usage}\n```\n", sentence(&about))
        .expect("writing to a String does not fail");
    let options: Vec<&Arg> = verb.get_arguments().filter(|arg| !arg.is_hide_set()).collect();
    let options: Vec<&Arg> = options.into_iter().filter(|arg| !is_built_in(arg)).collect();
    if !options.is_empty() {
        text.push_str("\n| argument | meaning | default |\n| --- | --- | --- |\n");
    }
    for arg in options {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        writeln!(text, "| {} | {} | {} |", name(arg), cell(&help), default(arg))
            .expect("writing to a String does not fail");
    }
    for inner in visible(verb) {
        describe(text, inner, depth + 1);
    }
}

/// Those that every verb has.
fn is_built_in(arg: &Arg) -> bool {
    ["help", "version"].contains(&arg.get_id().as_str())
}

/// `-s`, `--long VALUE`, or the placeholder of what has no name.
fn name(arg: &Arg) -> String {
    let values: Vec<&str> =
        arg.get_value_names().unwrap_or_default().iter().map(|it| &**it).collect();
    let takes_value = arg.get_action().takes_values();
    let value = if takes_value && !values.is_empty() {
        format!(" {}", values.join(" "))
    } else {
        String::new()
    };
    let value = value.replace('|', "\\|");
    match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) => format!("`-{short}`, `--{long}{value}`"),
        (None, Some(long)) => format!("`--{long}{value}`"),
        (Some(short), None) => format!("`-{short}{value}`"),
        (None, None) => format!("`{}`", value.trim()),
    }
}

fn default(arg: &Arg) -> String {
    if !arg.get_action().takes_values() {
        return String::new();
    }
    let values = arg.get_default_values().iter().map(|it| format!("`{}`", it.to_string_lossy()));
    values.collect::<Vec<_>>().join(", ")
}

/// Text for a cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn sentence(text: &str) -> String {
    let text = cell(text);
    if text.is_empty() || text.ends_with('.') { text } else { format!("{text}.") }
}
