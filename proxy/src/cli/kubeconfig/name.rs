//! Chooses which name of the server's certificate a context verifies.
//!
//! Any origin may answer at the local address, so every origin's certificate must have the name.
//! The source context's name is kept if all of several origins have it, and otherwise only if no
//! usual one is there: the name or address of one apiserver fails as soon as another one answers.
//! What answers at one address alone chooses no other name: it may be anything.
//! Pure; the certificates of the origins are passed as [`Evidence`].

use std::net::IpAddr;

use meshport_config::UnixSeconds;
use meshport_daemon::health::certificate::{Authorities, Certificate, USUAL_NAMES, common_names};
use meshport_daemon::health::handshake::CertificateError;

/// A server whose certificate was requested.
#[derive(Debug)]
pub(in crate::cli) struct ShownCertificate {
    pub(in crate::cli) who: String,
    /// The certificate it presented, or the error.
    pub(in crate::cli) read: Result<Certificate, CertificateError>,
    /// Whether the context's CA did not sign it. Its names do not matter then.
    pub(in crate::cli) is_foreign: bool,
}

impl ShownCertificate {
    pub(super) fn new(who: String, read: Result<Certificate, CertificateError>) -> Self {
        Self { who, read, is_foreign: false }
    }

    fn usable(&self) -> Option<&Certificate> {
        self.read.as_ref().ok().filter(|_| !self.is_foreign)
    }
}

/// The known facts about the certificates behind a local address.
#[derive(Debug, Default)]
pub(in crate::cli) struct Evidence {
    pub(in crate::cli) asked: Vec<ShownCertificate>,
    /// Why some origins were not queried, if any.
    pub(in crate::cli) partial: Option<String>,
    /// Whether they are apiservers, whose certificates usually have [`USUAL_NAMES`].
    pub(in crate::cli) apiservers: bool,
}

/// The name, and notes for the user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Verified {
    pub(super) name: String,
    /// Why it differs from the source's name.
    pub(super) note: Option<String>,
    pub(super) warnings: Vec<String>,
}

impl Evidence {
    /// Marks the certificates that the context's CA did not sign, if it has one.
    pub(super) fn judged_by(mut self, authorities: Option<&Authorities>, now: UnixSeconds) -> Self {
        let Some(authorities) = authorities else { return self };
        for it in &mut self.asked {
            it.is_foreign = it.read.as_ref().is_ok_and(|read| authorities.disown(read, now));
        }
        self
    }

    fn certificates(&self) -> Vec<Certificate> {
        self.asked.iter().filter_map(|it| it.usable().cloned()).collect()
    }

    /// Warnings for clients that verify `name` at any origin.
    pub(in crate::cli) fn warnings(&self, name: &str) -> Vec<String> {
        let lacking = self.lacking(name);
        let mut warnings = self.gaps(name);
        if !lacking.is_empty() {
            warnings.push(missing(name, &lacking));
        }
        warnings
    }

    /// The origins whose certificate is not valid for `name`.
    fn lacking(&self, name: &str) -> Vec<&str> {
        let lacks = |it: &&ShownCertificate| it.usable().is_some_and(|read| !read.is_for(name));
        self.asked.iter().filter(lacks).map(|it| it.who.as_str()).collect()
    }

    /// A warning if the certificate of one apiserver alone speaks for a name that others may lack.
    fn single(&self, name: &str, local: IpAddr) -> Option<String> {
        let [only] = self.asked.as_slice() else { return None };
        let is_safe = USUAL_NAMES.contains(&name) || name == local.to_string();
        (self.apiservers && self.partial.is_none() && !is_safe).then(|| {
            format!(
                "warning: {} is the only origin so far; the certificates of others must be valid \
                 for {name} too",
                only.who
            )
        })
    }

    /// Warnings about certificates that could not be read, or that the CA did not sign.
    fn gaps(&self, name: &str) -> Vec<String> {
        let who = |it: fn(&&ShownCertificate) -> bool| -> Vec<&str> {
            self.asked.iter().filter(it).map(|it| it.who.as_str()).collect()
        };
        let mut gaps = Vec::new();
        if let Some(why) = &self.partial {
            let who = who(|it| !it.is_foreign);
            let checked = match who.is_empty() {
                true => "no certificate".to_owned(),
                false => format!("only the certificate of {}", who.join(", ")),
            };
            gaps.push(format!(
                "warning: {why}, so {checked} was checked; those of the other \
                 origins must be valid for {name} too"
            ));
        }
        let unread = self.asked.iter().filter_map(|it| Some((&it.who, it.read.as_ref().err()?)));
        gaps.extend(unread.map(|(who, why)| {
            format!(
                "warning: the certificate of {who} could not be read ({why}); it must be valid \
                 for {name}"
            )
        }));
        let foreign = who(|it| it.is_foreign);
        if !foreign.is_empty() {
            gaps.push(format!(
                "warning: the context's CA did not sign the certificate of {}; clients fail when \
                 it answers. Reissue it with that CA, or remove the origin if it is of another \
                 cluster",
                foreign.join(", ")
            ));
        }
        gaps
    }
}

/// The name for a context that has verified `wanted` and now connects to `local`.
pub(super) fn choose(wanted: &str, local: IpAddr, evidence: &Evidence) -> Verified {
    let certificates = evidence.certificates();
    let Some(name) = shared(wanted, local, evidence, &certificates) else {
        return match evidence.partial {
            Some(_) if !certificates.is_empty() => without_a_known_name(wanted, evidence),
            _ => without_a_shared_name(wanted, evidence, &certificates),
        };
    };
    let lacking = evidence.lacking(wanted);
    // Those of another CA are ignored.
    let all = match evidence.asked.iter().any(|it| it.is_foreign) {
        true => "every certificate that the context's CA signed",
        false => "every certificate that was read",
    };
    let note = (name != wanted).then(|| match lacking.as_slice() {
        [] => format!(
            "the context verifies {name} instead of {wanted}, which the certificates of other \
             origins may lack"
        ),
        lacking => format!(
            "the context verifies {name}, which {all} has; {wanted} is missing from that of {}",
            lacking.join(", ")
        ),
    });
    let mut warnings = evidence.gaps(&name);
    warnings.extend(evidence.single(&name, local));
    Verified { note, warnings, name }
}

/// Warnings about a name that the user chose.
pub(super) fn chosen(name: &str, evidence: &Evidence) -> Verified {
    Verified { name: name.to_owned(), note: None, warnings: evidence.warnings(name) }
}

/// The best name that all the certificates have.
fn shared(
    wanted: &str,
    local: IpAddr,
    evidence: &Evidence,
    certificates: &[Certificate],
) -> Option<String> {
    if certificates.is_empty() {
        return None;
    }
    let all = |name: &str| certificates.iter().all(|it| it.is_for(name));
    let complete = certificates.len() > 1
        && evidence.partial.is_none()
        && certificates.len() == evidence.asked.len();
    if all(wanted) && complete {
        return Some(wanted.to_owned());
    }
    let common = common_names(certificates);
    let usual = common.iter().find(|name| USUAL_NAMES.contains(&name.as_str())).cloned();
    let local = Some(local.to_string()).filter(|local| all(local));
    let same = all(wanted).then(|| wanted.to_owned());
    let other = common.into_iter().next().filter(|_| evidence.partial.is_none());
    usual.or(local).or(same).or(other)
}

/// Some certificates were read, of some origins only, and have neither a usual name nor `wanted`.
fn without_a_known_name(wanted: &str, evidence: &Evidence) -> Verified {
    let name = if evidence.apiservers { USUAL_NAMES[0] } else { wanted };
    let note = (name != wanted).then(|| {
        format!("the context verifies {name}, which apiservers usually have, instead of {wanted}")
    });
    let mut warnings = evidence.gaps(name);
    warnings.push(missing(name, &evidence.lacking(name)));
    Verified { note, warnings, name: name.into() }
}

fn without_a_shared_name(
    wanted: &str,
    evidence: &Evidence,
    certificates: &[Certificate],
) -> Verified {
    let is_address = wanted.parse::<IpAddr>().is_ok();
    if certificates.is_empty() {
        // An IP address is usually that of one apiserver.
        let usual = evidence.apiservers && is_address;
        let name = if usual { USUAL_NAMES[0] } else { wanted };
        let note = usual.then(|| {
            format!(
                "no certificate could be used; the context verifies {name}, which apiservers \
                 usually have, instead of {wanted}"
            )
        });
        return Verified { note, warnings: evidence.gaps(name), name: name.into() };
    }
    let mut names: Vec<String> = certificates.iter().flat_map(Certificate::names).collect();
    names.sort();
    names.dedup();
    // The last one wins ties: the source's name, otherwise the most usual one.
    names.extend(USUAL_NAMES.iter().rev().map(ToString::to_string));
    names.push(wanted.to_owned());
    let having = |name: &String| certificates.iter().filter(|it| it.is_for(name)).count();
    let name = names.iter().max_by_key(|name| having(name)).cloned().unwrap_or_default();
    let mut warnings = evidence.gaps(&name);
    warnings.push(format!(
        "{}. No name is in every origin's certificate: reissue them with a common one",
        missing(&name, &evidence.lacking(&name))
    ));
    if evidence.apiservers {
        let is_address = name.parse::<IpAddr>().is_ok();
        let common = if is_address { USUAL_NAMES[0] } else { &name };
        let hint = format!("{common} (kubeadm: apiServer.certSANs)");
        warnings.last_mut().into_iter().for_each(|it| *it = format!("{it}, such as {hint}"));
    }
    Verified { name, note: None, warnings }
}

fn missing(name: &str, lacking: &[&str]) -> String {
    format!(
        "warning: {name} is not in the certificate of {}; clients fail when it answers",
        lacking.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::certificate;
    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn evidence(certificates: &[(&str, &[&str])]) -> Evidence {
        let asked = |(who, names): &(&str, &[&str])| {
            let read = match names.is_empty() {
                true => Err(CertificateError::Late(std::time::Duration::from_secs(3))),
                false => Ok(certificate(names)),
            };
            ShownCertificate::new((*who).to_owned(), read)
        };
        let asked = certificates.iter().map(asked).collect();
        Evidence { asked, partial: None, apiservers: true }
    }

    fn name(wanted: &str, certificates: &[(&str, &[&str])]) -> String {
        choose(wanted, LOCAL, &evidence(certificates)).name
    }

    #[test]
    fn the_address_of_one_apiserver_is_not_verified_at_all_of_them() {
        let one: &[&str] = &["cp-1", "kubernetes", "kubernetes.default.svc", "10.77.0.11"];
        let two: &[&str] = &["cp-2", "kubernetes", "kubernetes.default.svc", "10.77.0.12"];
        let both = evidence(&[("cp-1", one), ("cp-2", two)]);
        let verified = choose("10.77.0.11", LOCAL, &both);
        assert_eq!(verified.name, "kubernetes.default.svc");
        assert!(verified.note.expect("said").contains("missing from that of cp-2"));
        assert_eq!(verified.warnings, Vec::<String>::new());
        // Nor is it if the other origin is away, or there is only one so far.
        assert_eq!(name("10.77.0.11", &[("cp-1", one), ("cp-2", &[])]), "kubernetes.default.svc");
        assert_eq!(name("10.77.0.11", &[("cp-1", one)]), "kubernetes.default.svc");
        // The same holds for a name that only one has.
        assert_eq!(name("cp-1", &[("cp-1", one), ("cp-2", two)]), "kubernetes.default.svc");
        assert_eq!(name("cp-1", &[("cp-1", one), ("cp-2", &[])]), "kubernetes.default.svc");
        let alone = choose("cp-1", LOCAL, &evidence(&[("cp-1", one)]));
        assert_eq!((alone.name.as_str(), alone.warnings), ("kubernetes.default.svc", Vec::new()));
        assert!(alone.note.expect("said").contains("instead of cp-1, which the certificates"));
    }

    #[test]
    fn what_every_origin_has_stays() {
        let one: &[&str] = &["api.example.com", "kubernetes.default.svc", "10.0.0.100"];
        let both = [("cp-1", one), ("cp-2", one)];
        assert_eq!(name("api.example.com", &both), "api.example.com");
        // The address of a balancer, which is in all certificates.
        assert_eq!(name("10.0.0.100", &both), "10.0.0.100");
        let local: &[&str] = &["127.0.0.1", "a.internal"];
        assert_eq!(name("10.0.0.1", &[("cp-1", local), ("cp-2", local)]), "127.0.0.1");
        // A dedicated name is better than an address that may belong to a single server.
        let one: &[&str] = &["a.internal", "10.0.0.1"];
        assert_eq!(name("10.0.0.2", &[("a", one), ("b", one)]), "a.internal");
    }

    #[test]
    fn a_name_that_only_one_origin_vouches_for_is_warned_of() {
        for wanted in ["cp-1", "10.77.0.11"] {
            let alone = choose(wanted, LOCAL, &evidence(&[("cp-1", &["cp-1", "10.77.0.11"])]));
            assert_eq!((alone.name.as_str(), alone.note), (wanted, None));
            let [warning] = alone.warnings.as_slice() else { panic!("{:?}", alone.warnings) };
            assert!(warning.contains("cp-1 is the only origin so far"), "{warning}");
            assert!(warning.contains(&format!("valid for {wanted} too")), "{warning}");
        }
    }

    #[test]
    fn what_is_missing_and_what_is_not_known_is_said() {
        let apart = evidence(&[("cp-1", &["a", "10.0.0.1"]), ("cp-2", &["b", "10.0.0.2"])]);
        let verified = choose("10.0.0.1", LOCAL, &apart);
        assert_eq!(verified.name, "10.0.0.1");
        let [warning] = verified.warnings.as_slice() else { panic!("{verified:?}") };
        assert!(warning.contains("10.0.0.1 is not in the certificate of cp-2"), "{warning}");
        assert!(warning.contains("kubernetes.default.svc"), "{warning}");

        let usual: &[&str] = &USUAL_NAMES;
        let two_of_three = evidence(&[("cp-1", usual), ("cp-2", usual), ("cp-3", &["cp-3"])]);
        let verified = choose("10.0.0.1", LOCAL, &two_of_three);
        assert_eq!(verified.name, "kubernetes.default.svc");
        let hint = "such as kubernetes.default.svc (kubeadm";
        assert!(verified.warnings[0].contains(hint), "{verified:?}");
        let own: &[&str] = &["api.example.com"];
        let two_of_three = evidence(&[("cp-1", own), ("cp-2", own), ("cp-3", usual)]);
        let verified = choose("10.0.0.1", LOCAL, &two_of_three);
        assert_eq!(verified.name, "api.example.com");
        let hint = "such as api.example.com (kubeadm";
        assert!(verified.warnings[0].contains(hint), "{verified:?}");

        let chosen = chosen("b", &apart);
        assert!(chosen.warnings[0].contains("b is not in the certificate of cp-1"), "{chosen:?}");

        let silent = choose("api.example.com", LOCAL, &evidence(&[("cp-1", &[])]));
        assert_eq!(silent.name, "api.example.com");
        assert!(silent.warnings[0].contains("of cp-1 could not be read (no answer"), "{silent:?}");
        let silent = choose("10.0.0.1", LOCAL, &evidence(&[("cp-1", &[])]));
        assert_eq!(silent.name, "kubernetes.default.svc");
        let other = Evidence { apiservers: false, ..evidence(&[("db-1", &[])]) };
        assert_eq!(choose("10.0.0.1", LOCAL, &other).name, "10.0.0.1");

        let partial = Some("no daemon answers".to_owned());
        let one = Evidence { partial, ..evidence(&[("10.0.0.1:6443", &["kubernetes"])]) };
        let verified = choose("10.0.0.1", LOCAL, &one);
        assert_eq!(verified.name, "kubernetes");
        assert!(
            verified.warnings[0].contains("only the certificate of 10.0.0.1:6443"),
            "{verified:?}"
        );
    }

    #[test]
    fn a_certificate_that_the_ca_did_not_sign_is_said_and_ignored() {
        let usual: &[&str] = &["api.example.com", "kubernetes.default.svc"];
        let foreign = |mut it: Evidence, at: usize| {
            it.asked[at].is_foreign = true;
            it
        };
        let both = foreign(evidence(&[("cp-1", usual), ("cp-sfo", usual)]), 1);
        for verified in [choose("10.0.0.1", LOCAL, &both), chosen("api.example.com", &both)] {
            let [warning] = verified.warnings.as_slice() else { panic!("{verified:?}") };
            assert!(warning.contains("CA did not sign the certificate of cp-sfo;"), "{warning}");
        }
        let stranger = foreign(evidence(&[("cp-1", usual), ("x", &["x.example"])]), 1);
        let verified = choose("10.0.0.1", LOCAL, &stranger);
        assert_eq!(verified.name, "kubernetes.default.svc");
        let note = verified.note.expect("it differs");
        assert!(note.contains("svc, which every certificate that the context's CA signed has;"));
        let partial = Some("no daemon answers".to_owned());
        let alone = Evidence { partial, ..evidence(&[("10.0.0.1:6443", usual)]) };
        let verified = choose("api.internal", LOCAL, &foreign(alone, 0));
        assert_eq!(verified.name, "api.internal");
        assert!(verified.warnings[0].contains("so no certificate was checked"), "{verified:?}");
    }

    #[test]
    fn what_answers_at_one_address_chooses_no_unknown_name() {
        let strange = |apiservers| {
            let partial = Some("no daemon answers".to_owned());
            let read = evidence(&[("10.0.0.1:6443", &["alpha.example", "evil.example"])]);
            choose("10.0.0.1", LOCAL, &Evidence { partial, apiservers, ..read })
        };
        let verified = strange(true);
        assert_eq!(verified.name, "kubernetes.default.svc");
        assert!(verified.note.as_ref().expect("said").ends_with("instead of 10.0.0.1"));
        let [gap, lacking] = verified.warnings.as_slice() else { panic!("{verified:?}") };
        assert!(gap.contains("no daemon answers"), "{gap}");
        assert!(lacking.contains("svc is not in the certificate of 10.0.0.1:6443"), "{lacking}");
        let verified = strange(false);
        assert_eq!((verified.name.as_str(), verified.note), ("10.0.0.1", None));
    }
}
