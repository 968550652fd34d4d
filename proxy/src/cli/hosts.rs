//! `meshport hosts`: the hosts-file lines that map an API name to this node.
//!
//! Only the lines between two markers change. A name that another line maps elsewhere is refused,
//! since resolvers use the first match.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use meshport_config::{ServiceName, TextError};

use super::kubeconfig::Evidence;
use super::local::{self, AddressSource};
use super::query::DaemonArgs;
use super::textfile::TextFile;
use super::{output, runtime};
use meshport_daemon::Error;

const BEGIN: &str = "# BEGIN meshport";
const END: &str = "# END meshport";
/// The longest DNS name, in bytes (RFC 1035).
const MAX_NAME_BYTES: usize = 253;
/// The longest label of one, in bytes.
const MAX_LABEL_BYTES: usize = 63;

/// `meshport hosts`
#[derive(Debug, Args)]
pub(crate) struct HostsArgs {
    /// The name that clients use for the apiserver
    #[arg(long, value_name = "NAME")]
    pub(crate) name: HostName,
    /// Add the lines to the file
    #[arg(long, conflicts_with = "remove")]
    pub(crate) add: bool,
    /// Remove them from the file
    #[arg(long)]
    pub(crate) remove: bool,
    /// The hosts file
    #[arg(long, value_name = "FILE", default_value = "/etc/hosts")]
    pub(crate) file: PathBuf,
    /// The service whose local addresses to map
    #[arg(long, value_name = "NAME", default_value = ServiceName::KUBE_APISERVER)]
    pub(crate) service: ServiceName,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

/// A DNS name, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostName(String);

impl FromStr for HostName {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let is_inner = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let is_label = |label: &str| {
            (1..=MAX_LABEL_BYTES).contains(&label.len())
                && label.chars().all(is_inner)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        let is_name = text.len() <= MAX_NAME_BYTES && text.split('.').all(is_label);
        if !is_name || text.parse::<IpAddr>().is_ok() {
            return Err(TextError::form("a DNS name", text, "letters, digits, dashes and dots"));
        }
        Ok(Self(text.to_ascii_lowercase()))
    }
}

/// Why a hosts file is not changed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum HostsError {
    #[error("line {number} maps {name} elsewhere: {line:?}. Remove that line first")]
    MappedElsewhere { number: usize, name: String, line: String },
    #[error(
        "the markers {BEGIN:?} and {END:?} do not appear once each, in this order. Repair or \
         remove them by hand"
    )]
    Markers,
}

pub(crate) fn run(args: &HostsArgs) -> Result<(), Error> {
    let HostName(name) = &args.name;
    let file = args.file.display();
    let refused = |error: HostsError| Error::Usage(format!("{file} is not changed: {error}"));
    if args.remove {
        let hosts = TextFile::open(&args.file)?;
        let text = hosts.read()?.unwrap_or_default();
        let Some(changed) = without(&text, name).map_err(refused)? else {
            return output::answer(&format!("{name} is not between the markers in {file}\n"));
        };
        hosts.replace(&changed)?;
        return output::answer(&format!("{name} is removed from {file}\n"));
    }
    let (local, evidence) = runtime()?.block_on(async {
        let local = local::addresses(&args.daemon, &args.service).await?;
        let evidence = Evidence::of_daemon(&args.daemon.client()?, &args.service).await;
        Ok::<_, Error>((local, evidence))
    })?;
    let mut ips: Vec<IpAddr> = local.addresses.iter().map(SocketAddr::ip).collect();
    ips.dedup();
    let port = local.first().port();
    output::advice(&format!(
        "clients must use https://{name}:{port}, the port according to {}",
        local.source
    ));
    let evidence = evidence.unwrap_or_else(|why| Evidence {
        // Without a daemon, the line above says enough.
        partial: (local.source == AddressSource::Daemon).then_some(why),
        ..Evidence::default()
    });
    evidence.warnings(name).iter().for_each(|warning| output::advice(warning));
    if !args.add {
        return output::answer(&block(&entries(name, &ips)));
    }
    let hosts = TextFile::open(&args.file)?;
    let text = hosts.read()?.unwrap_or_default();
    let shown = ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let Some(changed) = with(&text, name, &ips).map_err(refused)? else {
        return output::answer(&format!("{name} already maps to {shown} in {file}\n"));
    };
    hosts.replace(&changed)?;
    output::answer(&format!("{name} maps to {shown} in {file}\n"))
}

fn entries(name: &str, ips: &[IpAddr]) -> Vec<String> {
    ips.iter().map(|ip| format!("{ip} {name}\n")).collect()
}

fn block(entries: &[String]) -> String {
    format!("{BEGIN}\n{}{END}\n", entries.concat())
}

/// The text with the name mapped to `ips`; `None` if it already is.
fn with(text: &str, name: &str, ips: &[IpAddr]) -> Result<Option<String>, HostsError> {
    let hosts = HostsText::of(text)?;
    let mut wanted = ips.to_vec();
    for (number, line) in hosts.outside() {
        let Some(ip) = mapped(line, name) else { continue };
        if !ips.contains(&ip) {
            let (name, line) = (name.to_owned(), line.trim().to_owned());
            return Err(HostsError::MappedElsewhere { number, name, line });
        }
        wanted.retain(|wanted| *wanted != ip);
    }
    let mut inside = hosts.inside_without(name);
    inside.extend(entries(name, &wanted));
    Ok(Some(hosts.with_inside(&inside)).filter(|changed| changed != text))
}

/// The text without the name between the markers; `None` if the name is not there.
///
/// # Errors
/// [`HostsError::Markers`].
fn without(text: &str, name: &str) -> Result<Option<String>, HostsError> {
    let hosts = HostsText::of(text)?;
    let inside = hosts.inside_without(name);
    Ok(Some(hosts.with_inside(&inside)).filter(|changed| changed != text))
}

/// The address a line maps a name to.
fn mapped(line: &str, name: &str) -> Option<IpAddr> {
    let line = line.split('#').next().unwrap_or_default();
    let mut words = line.split_whitespace();
    let ip = words.next()?.parse().ok()?;
    words.any(|word| word.eq_ignore_ascii_case(name)).then_some(ip)
}

/// The lines of a hosts file, and where the markers are.
struct HostsText<'a> {
    lines: Vec<&'a str>,
    /// Indices of the two markers.
    markers: Option<(usize, usize)>,
}

impl<'a> HostsText<'a> {
    fn of(text: &'a str) -> Result<Self, HostsError> {
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let at = |mark: &str| -> Vec<usize> {
            (0..lines.len()).filter(|at| lines[*at].trim() == mark).collect()
        };
        let markers = match (at(BEGIN).as_slice(), at(END).as_slice()) {
            ([], []) => None,
            ([begin], [end]) if begin < end => Some((*begin, *end)),
            _ => return Err(HostsError::Markers),
        };
        Ok(Self { lines, markers })
    }

    /// The lines outside the markers, with their numbers.
    fn outside(&self) -> impl Iterator<Item = (usize, &'a str)> {
        let inside = self.markers.map_or(0..0, |(begin, end)| begin..end);
        let numbered = self.lines.iter().enumerate();
        numbered.filter(move |(at, _)| !inside.contains(at)).map(|(at, line)| (at + 1, *line))
    }

    fn inside_without(&self, name: &str) -> Vec<String> {
        let Some((begin, end)) = self.markers else { return Vec::new() };
        let inside = self.lines[begin + 1..end].iter();
        inside.filter(|line| mapped(line, name).is_none()).map(|line| (*line).to_owned()).collect()
    }

    /// The text with these lines between the markers; without lines there are no markers.
    fn with_inside(&self, inside: &[String]) -> String {
        let block = if inside.is_empty() { String::new() } else { block(inside) };
        let (before, after) = match self.markers {
            Some((begin, end)) => (&self.lines[..begin], &self.lines[end + 1..]),
            None => (&self.lines[..], &[][..]),
        };
        let mut text = before.concat();
        if !text.is_empty() && !text.ends_with('\n') && !block.is_empty() {
            text.push('\n');
        }
        text + &block + &after.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAME: &str = "api.example.com";
    const PLAIN: &str = "127.0.0.1 localhost\n# note\n10.0.0.7\tdb.example.com db\n";

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().expect("an address")).collect()
    }

    fn added(text: &str) -> String {
        with(text, NAME, &ips(&["127.0.0.1", "::1"])).expect("allowed").expect("changed")
    }

    #[test]
    fn lines_are_added_once_and_removed_without_a_trace() {
        let once = added(PLAIN);
        let block = "# BEGIN meshport\n127.0.0.1 api.example.com\n::1 api.example.com\n\
                     # END meshport\n";
        assert_eq!(once, format!("{PLAIN}{block}"));
        assert_eq!(with(&once, NAME, &ips(&["127.0.0.1", "::1"])), Ok(None));
        assert_eq!(without(&once, NAME), Ok(Some(PLAIN.to_owned())));
        assert_eq!(without(PLAIN, NAME), Ok(None));
    }

    #[test]
    fn other_names_between_the_markers_stay() {
        let two = with(&added(PLAIN), "b.example.com", &ips(&["127.0.0.1"]));
        let two = two.expect("allowed").expect("changed");
        let one = without(&two, NAME).expect("allowed").expect("changed");
        assert_eq!(one, format!("{PLAIN}{BEGIN}\n127.0.0.1 b.example.com\n{END}\n"));
        let moved = with(&two, NAME, &ips(&["127.0.0.9"])).expect("allowed").expect("changed");
        assert!(moved.contains("127.0.0.9 api") && !moved.contains("127.0.0.1 api"), "{moved}");
    }

    #[test]
    fn a_line_that_maps_the_name_elsewhere_is_named() {
        let text = format!("{PLAIN}10.0.0.9 x API.example.com # lb\n");
        let error = with(&text, NAME, &ips(&["127.0.0.1"])).expect_err("refused").to_string();
        assert!(error.contains("line 4") && error.contains("10.0.0.9 x"), "{error}");
        // The same address is not a contradiction, and a comment does not count.
        let text = format!("127.0.0.1 {NAME}\n# 10.0.0.9 {NAME}\n");
        assert_eq!(with(&text, NAME, &ips(&["127.0.0.1"])), Ok(None));
    }

    #[test]
    fn torn_markers_are_left_alone() {
        for text in [
            format!("{BEGIN}\n"),
            format!("{END}\n{BEGIN}\n"),
            format!("{BEGIN}\n{END}\n{BEGIN}\n{END}\n"),
        ] {
            assert_eq!(with(&text, NAME, &ips(&["127.0.0.1"])), Err(HostsError::Markers));
            assert_eq!(without(&text, NAME), Err(HostsError::Markers));
        }
    }

    #[test]
    fn names_are_checked() {
        assert_eq!("API.example.com".parse(), Ok(HostName(NAME.into())));
        for bad in ["", "a b", "a..b", "-a", "127.0.0.1", "a\n10.0.0.1 b", "ä"] {
            assert!(bad.parse::<HostName>().is_err(), "{bad:?}");
        }
        assert!("a".repeat(64).parse::<HostName>().is_err());
    }

    proptest! {
        #[test]
        fn what_stands_outside_the_markers_is_never_changed(
            lines in prop::collection::vec("[ -~]{0,30}", 0..8),
            last in prop::bool::ANY,
        ) {
            let text = lines.join("\n") + if last { "\n" } else { "" };
            let Ok(Some(once)) = with(&text, NAME, &ips(&["127.0.0.1"])) else { return Ok(()) };
            prop_assert!(once.starts_with(&text));
            let back = without(&once, NAME).expect("markers are whole").expect("it was there");
            prop_assert_eq!(back.trim_end_matches('\n'), text.trim_end_matches('\n'));
        }
    }
}
