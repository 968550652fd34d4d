//! `meshport top`: the dashboard on a terminal.

use std::env;
use std::io::{self, IsTerminal};
use std::time::Duration;

use clap::Args;
use meshport_daemon::Error;
use meshport_top::{Look, Options};

use super::output;
use super::query::{DaemonArgs, interval};

/// `meshport top`
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Interval between queries of the daemon
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    every: Duration,
    /// Show no colours, as with NO_COLOR
    #[arg(long)]
    no_color: bool,
    /// Show ASCII characters only [default: depends on the locale]
    #[arg(long)]
    ascii: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn run(args: &TopArgs) -> Result<(), Error> {
    let client = args.daemon.client()?;
    let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if !is_terminal || env::var_os("TERM").is_some_and(|it| it == "dumb") {
        return Err(Error::Usage(
            "top needs a terminal that can place the cursor; use `meshport status`, or \
             `meshport status --json` in scripts"
                .into(),
        ));
    }
    let look = Look {
        colour: !args.no_color && output::style().colour,
        unicode: !args.ascii && is_unicode(|name| env::var(name).ok()),
    };
    meshport_top::run(client, Options { look, every: args.every })
}

/// Whether the locale's characters are UTF-8; the first variable that is set decides (POSIX, XBD
/// 8.2). If none is, as in a minimal container, a modern terminal is assumed.
fn is_unicode(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(variable);
    let locale = set.filter(|value| !value.is_empty()).map(|it| it.to_lowercase()).next();
    locale.is_none_or(|locale| locale.contains("utf-8") || locale.contains("utf8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_that_is_set_decides() {
        let with = |set: &'static [(&str, &str)]| {
            is_unicode(move |name| {
                set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into())
            })
        };
        assert!(with(&[]) && with(&[("LANG", "de_DE.UTF-8")]) && with(&[("LC_CTYPE", "C.utf8")]));
        assert!(!with(&[("LC_ALL", "C"), ("LANG", "de_DE.UTF-8")]) && !with(&[("LANG", "POSIX")]));
        assert!(with(&[("LC_ALL", ""), ("LANG", "en_GB.UTF-8")]));
    }
}
