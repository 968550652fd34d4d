//! Messages of `meshport forward`: progress, the route, and errors.
//!
//! Progress is drawn on one line of a terminal, and only if connecting takes noticeably long.
//! Without a terminal, and next to a command's own output, only the final line is printed.

use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use meshport_config::{Period, ServiceName, UnixSeconds};
use meshport_core::units;

use super::ForwardArgs;
use crate::cli::{clock, output};
use meshport_daemon::Error;
use meshport_daemon::lifecycle::leaf::{Destination, Leaf, Progress};

/// Progress is not shown earlier than this.
const NOTICEABLE: Duration = Duration::from_millis(300);

/// Reports progress to a person.
#[derive(Debug)]
pub(super) struct Console {
    service: ServiceName,
    begun: Instant,
    terminal: bool,
    /// Whether a command runs, whose output is the answer.
    beside_command: bool,
    drawn: String,
}

impl Console {
    pub(super) fn new(args: &ForwardArgs, now: Instant) -> Self {
        Self {
            service: args.service.clone(),
            begun: now,
            terminal: io::stderr().is_terminal(),
            beside_command: args.exec,
            drawn: String::new(),
        }
    }

    /// Draws progress, if it takes noticeably long.
    pub(super) fn show(&mut self, progress: &Progress) {
        if !self.terminal || clock::now().saturating_duration_since(self.begun) < NOTICEABLE {
            return;
        }
        let text = stage(progress, &self.service);
        if text != self.drawn {
            output::draw(&text);
            self.drawn = text;
        }
    }

    /// Erases what was drawn.
    pub(super) fn clear(&mut self) {
        if !std::mem::take(&mut self.drawn).is_empty() {
            output::draw("");
        }
    }

    /// Prints the destination of new sessions, and why it is that one if it `stays`. This is the
    /// answer, unless a command runs.
    pub(super) fn leads(
        &self,
        local: SocketAddr,
        to: Option<&Destination>,
        stays: bool,
        now: UnixSeconds,
    ) {
        let line = leads(&self.service, local, to, stays, now);
        match (self.beside_command, self.terminal) {
            // A closed standard output must not end a working forward.
            (false, _) => drop(output::answer(&format!("{line}\n"))),
            (true, true) => output::advice(&line),
            (true, false) => {}
        }
    }

    /// Warns, also beside a command, of another process with the credential of this leaf.
    pub(super) fn tell_copied(&mut self, leaf: &mut Leaf) {
        if let Some(copied) = leaf.take_copied() {
            self.clear();
            output::advice(&format!("warning: {copied}"));
        }
    }

    /// Prints a note.
    pub(super) fn remark(&self, text: &str) {
        if !self.beside_command || self.terminal {
            output::advice(text);
        }
    }
}

fn counted(count: usize, what: &str) -> String {
    units::counted(count as u64, what)
}

fn stage(progress: &Progress, service: &ServiceName) -> String {
    let Progress { members, origins, measured, .. } = progress;
    match (*members, *origins) {
        (0, _) => "looking for members ...".to_owned(),
        (members, 0) => {
            let answered = counted(members, "member");
            format!("{answered} answered; asking for origins of {service} ...")
        }
        (_, origins) => {
            format!("{} of {service}, {measured} measured ...", counted(origins, "origin"))
        }
    }
}

fn leads(
    service: &ServiceName,
    local: SocketAddr,
    to: Option<&Destination>,
    stays: bool,
    now: UnixSeconds,
) -> String {
    let Some(to) = to else {
        return format!("{local} is closed until an origin of {service} answers, since {now}");
    };
    let site = to.site.as_ref().map(|site| format!(" in {site}")).unwrap_or_default();
    let rtt = to.rtt.map(|rtt| format!(", {:.1} ms", rtt.as_secs_f64() * 1e3));
    let rtt = rtt.unwrap_or_default();
    let is_usual = to.healthy && !to.relayed && !stays;
    let why = if is_usual { String::new() } else { format!(" ({})", to.why) };
    format!("{local} leads to {service} on {}{site}{rtt}, since {now}{why}", to.name)
}

/// The message that an origin does not allow this machine, with the remedy.
pub(super) fn denied(origin: &str, service: &ServiceName) -> String {
    format!(
        "{origin} does not allow this machine. Ask its operator to add this machine to `allow` \
         under [service.{service}]"
    )
}

/// What may be the reason that no origin is usable.
pub(super) fn last_refusal(reason: &str) -> String {
    format!("a member refused this machine, or was refused: {reason}")
}

/// Why no member answers, and what to do.
pub(in crate::cli) fn no_member(refused: Option<&str>, waited: Period) -> String {
    match refused {
        Some(reason) => format!("{reason}. Ask for a new invite with the role operator"),
        None => format!(
            "no member of the mesh answers after {waited}. Check that this machine may send UDP to \
             the addresses in the invite; members do not answer an invite of another mesh"
        ),
    }
}

/// Why no origin was found, and what to do.
pub(super) fn no_origin(progress: &Progress, args: &ForwardArgs) -> Error {
    let Progress { members, origins, measured, refused, .. } = progress;
    let (service, waited) = (&args.service, args.timeout);
    let text = match (refused, *members, *origins, measured) {
        (refused, 0, ..) => no_member(refused.as_deref(), waited),
        (_, members, 0, _) => {
            let meant = service.misspelt().map(|name| format!(" Did you mean {name}?"));
            format!(
                "{} answered, but none knows an origin of {service} after {waited}.{} `meshport \
                 status` on a member shows its services; name one with --service",
                counted(members, "member"),
                meant.unwrap_or_default()
            )
        }
        (_, _, origins, 0) => format!(
            "{} of {service} found, but none can be reached from here after {waited}. Check that \
             this machine may send UDP there, or give a member near there the role relay",
            counted(origins, "origin")
        ),
        _ => format!(
            "no origin of {service} is usable after {waited}; `meshport status` on a member shows \
             why"
        ),
    };
    Error::Negative(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(members: usize, origins: usize, measured: usize) -> Progress {
        Progress { members, origins, measured, refused: None, denied: None }
    }

    fn args(flags: &[&str]) -> ForwardArgs {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: ForwardArgs,
        }
        let words = std::iter::once("meshport").chain(flags.iter().copied());
        <Line as clap::Parser>::parse_from(words).args
    }

    #[test]
    fn each_stage_has_its_words_and_each_failure_its_next_step() {
        let service = ServiceName::kube_apiserver();
        let args = args(&[]);
        for (at, stage_says, advice) in [
            (progress(0, 0, 0), "looking for members", "UDP"),
            (progress(1, 0, 0), "1 member answered", "1 member answered"),
            (progress(2, 0, 0), "2 members", "--service"),
            (progress(2, 1, 0), "1 origin of", "1 origin of"),
            (progress(2, 3, 0), "0 measured", "role relay"),
            (progress(2, 3, 1), "3 origins", "meshport status"),
        ] {
            assert!(stage(&at, &service).contains(stage_says), "{at:?}");
            let error = no_origin(&at, &args);
            assert!(error.to_string().contains(advice), "{error}");
            assert_eq!(error.exit_code(), 1);
        }
        let refused =
            Progress { refused: Some("its credential ended".into()), ..progress(0, 0, 0) };
        let text = no_origin(&refused, &args).to_string();
        assert!(text.contains("its credential ended") && text.contains("new invite"), "{text}");
    }

    #[test]
    fn nothing_usable_is_one_calm_line_too() {
        let local = "127.0.0.1:7445".parse().expect("an address");
        let (service, now) = (ServiceName::kube_apiserver(), UnixSeconds(1_700_000_000));
        let line = leads(&service, local, None, false, now);
        assert_eq!(
            line,
            "127.0.0.1:7445 is closed until an origin of kube-apiserver answers, since \
             2023-11-14T22:13:20Z"
        );
    }

    #[test]
    fn an_address_that_others_reach_needs_a_word() {
        let refused = args(&["--listen", "0.0.0.0:7445"]).listen_addresses().expect_err("open");
        assert!(refused.to_string().contains("--allow-remote-clients"), "{refused}");
        let open = ["--listen", "0.0.0.0:7445", "--allow-remote-clients"];
        assert_eq!(args(&open).listen_addresses().expect("allowed").len(), 1);
        let usual = args(&[]).listen_addresses().expect("defaults");
        assert_eq!(usual.iter().map(SocketAddr::port).collect::<Vec<_>>(), [7445, 0]);
        let other = args(&["--service", "registry"]).listen_addresses().expect("defaults");
        assert_eq!(other.iter().map(SocketAddr::port).collect::<Vec<_>>(), [0]);
    }
}
