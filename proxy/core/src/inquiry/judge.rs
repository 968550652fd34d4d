//! Turns the answers of members into findings.

use std::collections::BTreeMap;

use crate::findings::{
    Finding, NARROW_PATH, SETTINGS_DIFFER, UDP_IN, VERSIONS_DIFFER, WRONG_CLOCK,
};
use meshport_config::MAX_CLOCK_SKEW_S;

use super::{Call, Setting, Testimony};

/// Largest difference of clocks without a finding, in seconds: a tenth of what breaks credentials,
/// and far more than the error of any synchronised clock.
const MAX_SKEW_S: u64 = MAX_CLOCK_SKEW_S / 10;
/// Names in one sentence.
const MAX_NAMES: usize = 5;

/// This node's knowledge of itself.
#[derive(Debug, Clone)]
pub struct LocalFacts {
    /// The version of its daemon.
    pub version: String,
    /// Settings that must agree.
    pub settings: Vec<Setting>,
    /// Its UDP port.
    pub port: u16,
    /// Whether members see it at an address that is not its own, so that unsolicited packets do not
    /// reach it.
    pub is_behind_nat: bool,
}

/// A member that was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Its name.
    pub name: String,
    /// The outcome.
    pub heard: Heard,
}

/// The outcome of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// It answered.
    Answer(Box<Account>),
    /// It does not know questions: it runs an earlier version.
    Older,
    /// It did not answer, for this reason.
    Silent(String),
}

/// An answer, and what was noticed about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Its statement.
    pub testimony: Testimony,
    /// Seconds by which its clock is ahead of this machine's.
    pub ahead_s: i64,
    /// Whether its call-back arrived.
    pub has_called: bool,
}

/// The findings from all answers.
pub fn judge(own: &LocalFacts, asked: &[Asked]) -> Vec<Finding> {
    let accounts: Vec<(&str, &Account)> = asked
        .iter()
        .filter_map(|it| match &it.heard {
            Heard::Answer(account) => Some((it.name.as_str(), account.as_ref())),
            Heard::Older | Heard::Silent(_) => None,
        })
        .collect();
    let mut found = clocks(&accounts);
    found.extend(calls(own, &accounts));
    found.extend(accounts.iter().filter(|(_, it)| it.testimony.is_narrow).map(|(name, _)| {
        let text =
            format!("the path from {name} to this node drops large packets, as measured by {name}");
        NARROW_PATH.found(text)
    }));
    found.extend(settings(own, &accounts));
    found.extend(versions(own, asked));
    found
}

fn clocks(accounts: &[(&str, &Account)]) -> Vec<Finding> {
    let is_off = |it: &Account| it.ahead_s.unsigned_abs() > MAX_SKEW_S;
    let off: Vec<_> = accounts.iter().filter(|(_, it)| is_off(it)).collect();
    let Some((_, first)) = off.first() else { return Vec::new() };
    let agree = off.iter().all(|(_, it)| it.ahead_s.abs_diff(first.ahead_s) <= MAX_SKEW_S);
    // If all members differ in the same way, this machine is wrong.
    if off.len() == accounts.len() && off.len() > 1 && agree {
        let text = format!("this machine's clock is {} those of {}", by(-first.ahead_s), of(&off));
        return vec![finding(text, first.ahead_s)];
    }
    let of_one = |(name, it): &&(&str, &Account)| {
        let text = format!("the clock of {name} is {} this machine's", by(it.ahead_s));
        WRONG_CLOCK.mild(text)
    };
    off.iter().map(of_one).collect()
}

/// An error if the skew makes nodes misjudge credentials.
fn finding(text: String, ahead_s: i64) -> Finding {
    match ahead_s.unsigned_abs() > MAX_CLOCK_SKEW_S {
        true => WRONG_CLOCK.broken(text),
        false => WRONG_CLOCK.mild(text),
    }
}

fn by(ahead_s: i64) -> String {
    let word = if ahead_s < 0 { "behind" } else { "ahead of" };
    format!("{} s {word}", ahead_s.unsigned_abs())
}

fn of(accounts: &[&(&str, &Account)]) -> String {
    named(accounts.iter().map(|(name, _)| *name))
}

/// Some of the names, and the number of those left out.
fn named<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let all: Vec<&str> = names.collect();
    let some = all.iter().take(MAX_NAMES).copied().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(MAX_NAMES) {
        0 => some,
        more => format!("{some} and {more} more"),
    }
}

/// Whether members reach this node from sockets that it has not sent to.
fn calls(own: &LocalFacts, accounts: &[(&str, &Account)]) -> Option<Finding> {
    let sent = |it: &Account| matches!(it.testimony.call, Call::Sent(_));
    let callers: Vec<_> = accounts.iter().filter(|(_, it)| sent(it)).collect();
    let is_reached = callers.iter().any(|(_, it)| it.has_called);
    (!is_reached && !callers.is_empty() && !own.is_behind_nat).then(|| {
        UDP_IN.found(format!(
            "UDP port {} received no call-back from {}, sent from new sockets",
            own.port,
            of(&callers)
        ))
    })
}

fn settings(own: &LocalFacts, accounts: &[(&str, &Account)]) -> Vec<Finding> {
    let mut others: BTreeMap<(&str, &str, &str), Vec<&str>> = BTreeMap::new();
    for (name, account) in accounts {
        for here in &own.settings {
            let there = account.testimony.settings.iter().find(|it| it.key == here.key);
            if let Some(there) = there.filter(|it| it.value != here.value) {
                let differs = (here.key.as_str(), here.value.as_str(), there.value.as_str());
                others.entry(differs).or_default().push(*name);
            }
        }
    }
    let told = |((key, here, there), names): ((&str, &str, &str), Vec<&str>)| {
        let names = named(names.into_iter());
        SETTINGS_DIFFER.found(format!("{key} is {here} here and {there} on {names}"))
    };
    others.into_iter().map(told).collect()
}

fn versions(own: &LocalFacts, asked: &[Asked]) -> Option<Finding> {
    let mut others: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for Asked { name, heard } in asked {
        let version = match heard {
            Heard::Answer(it) if it.testimony.version == own.version => continue,
            Heard::Answer(it) => it.testimony.version.clone(),
            Heard::Older => "an earlier one".to_owned(),
            Heard::Silent(_) => continue,
        };
        others.entry(version).or_default().push(name);
    }
    let each = others
        .iter()
        .map(|(version, names)| format!("{version} on {}", named(names.iter().copied())));
    let each: Vec<String> = each.collect();
    (!each.is_empty()).then(|| {
        let text = format!("the daemon is {} here, {}", own.version, each.join(", "));
        VERSIONS_DIFFER.found(text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::Severity;

    fn own() -> LocalFacts {
        let settings = vec![Setting { key: "discovery.suspicion".into(), value: "5s".into() }];
        LocalFacts { version: "0.2.0".into(), settings, port: 51_820, is_behind_nat: false }
    }

    fn account() -> Account {
        let testimony = Testimony {
            version: "0.2.0".into(),
            wall_s: 1_800_000_000,
            sees_you_at: None,
            mtu: Some(1500),
            is_narrow: false,
            call: Call::Sent(1),
            settings: own().settings,
        };
        Account { testimony, ahead_s: 0, has_called: true }
    }

    fn asked(name: &str, change: impl FnOnce(&mut Account)) -> Asked {
        let mut account = account();
        change(&mut account);
        Asked { name: name.into(), heard: Heard::Answer(Box::new(account)) }
    }

    fn said(asked: &[Asked]) -> Vec<String> {
        let found = judge(&own(), asked);
        found.into_iter().map(|it| format!("{} {}", it.kind.id, it.detail)).collect()
    }

    #[test]
    fn members_that_agree_have_no_findings() {
        let asked = [asked("a", |_| {}), asked("b", |it| it.ahead_s = 30)];
        assert_eq!(said(&asked), [] as [&str; 0]);
        let silent = Asked { name: "c".into(), heard: Heard::Silent("down".into()) };
        assert_eq!(said(&[silent]), [] as [&str; 0]);
    }

    #[test]
    fn a_clock_that_differs_from_all_is_this_machines() {
        let both = [asked("a", |it| it.ahead_s = 100), asked("b", |it| it.ahead_s = 102)];
        assert_eq!(said(&both), ["MP103 this machine's clock is 100 s behind those of a, b"]);
        assert_eq!(judge(&own(), &both)[0].severity, Severity::Warning);
        let far = [asked("a", |it| it.ahead_s = -400), asked("b", |it| it.ahead_s = -400)];
        assert_eq!(judge(&own(), &far)[0].severity, Severity::Error);
        let one = [asked("a", |it| it.ahead_s = -50), asked("b", |_| {})];
        assert_eq!(said(&one), ["MP103 the clock of a is 50 s behind this machine's"]);
        let only = [asked("a", |it| it.ahead_s = 50)];
        assert_eq!(said(&only), ["MP103 the clock of a is 50 s ahead of this machine's"]);
    }

    #[test]
    fn a_port_without_unsolicited_packets_is_reported_unless_it_is_behind_nat() {
        let deaf = [asked("a", |it| it.has_called = false), asked("b", |it| it.has_called = false)];
        let text = "MP105 UDP port 51820 received no call-back from a, b, sent from new sockets";
        assert_eq!(said(&deaf), [text]);
        assert_eq!(judge(&LocalFacts { is_behind_nat: true, ..own() }, &deaf), []);
        assert_eq!(said(&[deaf[0].clone(), asked("c", |_| {})]), [] as [&str; 0]);
        let unsent = asked("a", |it| {
            (it.has_called, it.testimony.call) = (false, Call::TooOften);
        });
        assert_eq!(said(&[unsent]), [] as [&str; 0]);
    }

    #[test]
    fn settings_versions_and_narrow_paths_are_reported_with_their_nodes() {
        let set = |it: &mut Account| it.testimony.settings[0].value = "1s".into();
        let found = said(&[asked("a", set), asked("b", set), asked("c", |_| {})]);
        assert_eq!(found, ["MP205 discovery.suspicion is 5s here and 1s on a, b"]);
        let narrow = said(&[asked("a", |it| it.testimony.is_narrow = true)]);
        assert_eq!(
            narrow,
            ["MP107 the path from a to this node drops large packets, as measured by a"]
        );
        let older = Asked { name: "b".into(), heard: Heard::Older };
        let newer = asked("a", |it| it.testimony.version = "0.3.0".into());
        let text = "MP206 the daemon is 0.2.0 here, 0.3.0 on a, an earlier one on b";
        assert_eq!(said(&[newer, older]), [text]);
    }

    #[test]
    fn many_names_are_counted() {
        let off = |name: &u8| asked(&name.to_string(), |it| it.testimony.is_narrow = true);
        assert_eq!(said(&(0..7).map(|it| off(&it)).collect::<Vec<_>>()).len(), 7);
        let all = ["a", "b", "c", "d", "e", "f", "g"];
        assert_eq!(named(all.into_iter()), "a, b, c, d, e and 2 more");
    }
}
