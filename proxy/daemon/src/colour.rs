//! Whether output has colours. The one place that decides it, for the log as for all else.

use std::ffi::OsString;
use std::io::IsTerminal;

/// Whether an output has colours: a terminal has, unless `NO_COLOR` is set (no-color.org) or it is
/// a dumb one.
pub fn is_wanted(output: &impl IsTerminal) -> bool {
    output.is_terminal() && is_allowed(|name| std::env::var_os(name))
}

fn is_allowed(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let refused = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && variable("TERM").is_none_or(|terminal| terminal != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_refused_by_a_variable_or_a_dumb_terminal() {
        let with = |set: &'static [(&str, &str)]| {
            is_allowed(move |name| {
                set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
            })
        };
        assert!(with(&[("TERM", "xterm")]) && with(&[("NO_COLOR", "")]) && with(&[]));
        assert!(!with(&[("NO_COLOR", "1")]) && !with(&[("TERM", "dumb")]));
    }
}
