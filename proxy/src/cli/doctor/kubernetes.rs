//! Checks this machine's kubeconfigs against the apiservers behind the local address.
//!
//! A kubeconfig that uses the local address must verify a name that every origin's certificate has,
//! and its CA must have signed them.
//! One that names an apiserver of this mesh, by a name in its certificate or a member's address,
//! bypasses the local address. Only current contexts are checked.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use meshport_config::UnixSeconds;
use meshport_core::findings::{
    CERTIFICATE_ENDS, Finding, KUBECONFIG_PAST_US, NAME_NOT_IN_CERTIFICATE,
};
use meshport_core::units::age;
use tokio::net::lookup_host;

use super::checks::{Check, Looked};
use super::facts::{Daemon, Facts};
use super::report::Skip;
use crate::cli::kubeconfig::Dialled;
use crate::cli::local::dialled;
use meshport_daemon::admin::api::ServiceStatus;
use meshport_daemon::admin::certificates::OriginCertificate;
use meshport_daemon::admin::credentials::Validity;
use meshport_daemon::health::certificate::Certificate;
use meshport_daemon::health::certificates;

/// The daemon's limit for each origin, plus time for its own answer to arrive.
const LIMIT: Duration = certificates::LIMIT.saturating_add(Duration::from_secs(1));

const NO_ADDRESS: &str = "this node has no local address for apiservers";

pub(super) fn checks(facts: &Arc<Facts>) -> Vec<Check> {
    let (of_ends, of_files) = (facts.clone(), facts.clone());
    let kinds = [&NAME_NOT_IN_CERTIFICATE, &KUBECONFIG_PAST_US];
    vec![
        Check::new(&kinds, async move { kubeconfigs(&of_files).await }).within(LIMIT),
        Check::new(&[&CERTIFICATE_ENDS], async move { ends(&of_ends).await }).within(LIMIT),
    ]
}

/// Apiservers whose certificates expire within the warning period for credentials.
async fn ends(facts: &Facts) -> Looked {
    facts.daemon()?.apiservers().ok_or(NO_ADDRESS)?;
    let answers = facts.certificates().await?;
    let ends = answers.iter().filter_map(|it| {
        let end = it.read().ok()?.ends_at()?;
        ending(&it.who.name, end, facts.now)
    });
    Ok(ends.collect())
}

fn ending(who: &str, end: UnixSeconds, now: UnixSeconds) -> Option<Finding> {
    match Validity::of(end, now) {
        Validity::Valid | Validity::Revoked => None,
        Validity::Ended => {
            Some(CERTIFICATE_ENDS.broken(format!("the certificate of {who} expired at {end}")))
        }
        Validity::EndsSoon => {
            let left = age(end.seconds_since(now));
            let text = format!("the certificate of {who} expires in {left}, at {end}");
            Some(CERTIFICATE_ENDS.found(text))
        }
    }
}

async fn kubeconfigs(facts: &Facts) -> Looked {
    let daemon = facts.daemon()?;
    let service = daemon.apiservers().ok_or(NO_ADDRESS)?;
    let files = read(&facts.kubeconfigs)?;
    let cluster = Cluster::new(daemon, service, facts.certificates().await?);
    let mut found = Vec::new();
    for file in files {
        // An IP address resolves to itself; an unknown name is skipped.
        let resolved = lookup_host(&file.address).await;
        let at: Vec<SocketAddr> = resolved.into_iter().flatten().collect();
        found.extend(cluster.judge(&file, &at, facts.now));
    }
    Ok(found)
}

/// The kubeconfigs that can be compared, at least one. Others are no finding.
fn read(lists: &[Vec<PathBuf>]) -> Result<Vec<Dialled>, Skip> {
    let (mut read, mut why) = (Vec::new(), None);
    for files in lists {
        match Dialled::read(files) {
            Ok(file) => read.push(file),
            Err(error) if files.iter().any(|it| it.exists()) => {
                why.get_or_insert(error);
            }
            Err(_missing) => {}
        }
    }
    match why {
        _ if !read.is_empty() => Ok(read),
        Some(why) => Err(format!("no kubeconfig here can be compared: {why}").into()),
        None => Err("no kubeconfig was found here".into()),
    }
}

/// The addresses and names to compare kubeconfigs with.
#[derive(Debug, Default)]
struct Cluster {
    /// The local addresses, as clients dial them.
    local: Vec<SocketAddr>,
    /// The port of this node's own apiserver.
    own_port: Option<u16>,
    certificates: Vec<(String, Certificate)>,
    members: BTreeSet<IpAddr>,
}

impl Cluster {
    fn new(daemon: &Daemon, service: &ServiceStatus, answers: &[OriginCertificate]) -> Self {
        let port = |it: &str| it.rsplit(':').next()?.parse().ok();
        let read = |it: &OriginCertificate| Some((it.who.name.clone(), it.read().ok()?));
        Self {
            local: service.listen.iter().map(|it| dialled(*it)).collect(),
            own_port: service.offering.as_ref().and_then(|it| port(&it.address)),
            certificates: answers.iter().filter_map(read).collect(),
            members: daemon.peers.iter().filter_map(|it| Some(it.endpoint?.ip())).collect(),
        }
    }

    fn judge(&self, file: &Dialled, at: &[SocketAddr], now: UnixSeconds) -> Vec<Finding> {
        let Dialled { file: path, context, address, .. } = file;
        let path = path.display();
        if at.iter().any(|it| self.local.contains(it)) {
            return self.refused(file, now);
        }
        // Control-plane components may use their machine's own apiserver.
        let is_own = at.iter().any(|it| Some(it.port()) == self.own_port && is_here(it.ip()));
        let is_of_this_cluster = self.certificates.iter().any(|(_, it)| it.is_for(&file.host))
            || at.iter().any(|it| self.members.contains(&it.ip()));
        if is_own || !is_of_this_cluster || at.iter().any(|it| it.ip().is_loopback()) {
            return Vec::new();
        }
        let local = self.local.first().map(ToString::to_string).unwrap_or_default();
        let found = KUBECONFIG_PAST_US.found(format!(
            "{path}: the context {context} uses {address}, not the local address {local}"
        ));
        vec![found.naming("FILE", &path.to_string())]
    }

    /// The certificates that clients of a kubeconfig with the local address refuse.
    fn refused(&self, file: &Dialled, now: UnixSeconds) -> Vec<Finding> {
        let Some(name) = &file.verified else { return Vec::new() };
        let disowns = |it: &Certificate| {
            file.authorities.as_ref().is_some_and(|authorities| authorities.disown(it, now))
        };
        let (foreign, known): (Vec<_>, Vec<_>) =
            self.certificates.iter().partition(|(_, it)| disowns(it));
        let lacking = known.into_iter().filter(|(_, it)| !it.is_for(name)).collect();
        let found = |what: String, of: Vec<&(String, Certificate)>| {
            let who: Vec<&str> = of.iter().map(|(who, _)| who.as_str()).collect();
            let (path, context, who) = (file.file.display(), &file.context, who.join(", "));
            let text = format!("{path}: the context {context} {what} the certificate of {who}");
            (!of.is_empty()).then(|| NAME_NOT_IN_CERTIFICATE.found(text))
        };
        let lacking = found(format!("verifies {name}, which is not in"), lacking);
        let foreign = found("has a CA that did not sign".into(), foreign);
        lacking.into_iter().chain(foreign).collect()
    }
}

/// Whether an address is one of this machine's: a socket can be bound to it.
fn is_here(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshport_core::findings::Severity;
    use meshport_daemon::admin::api::OriginRef;
    use meshport_daemon::health::certificate::Authorities;

    const NOW: UnixSeconds = UnixSeconds(1_800_000_000);

    /// A self-signed certificate, as an origin that sends nothing else presents it.
    fn certificate(names: &[&str]) -> rcgen::Certificate {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let key = rcgen::KeyPair::generate().expect("a key");
        let made = rcgen::CertificateParams::new(names).expect("names").self_signed(&key);
        made.expect("signed")
    }

    fn presented(certificate: &rcgen::Certificate) -> Certificate {
        let who = OriginRef { node: None, name: String::new(), site: None, relay: None };
        let answer = OriginCertificate::new(who, Ok(vec![certificate.der().clone()]));
        answer.read().expect("a certificate")
    }

    fn cluster() -> Cluster {
        let one = certificate(&["kubernetes.default.svc", "cp-1", "10.77.0.11"]);
        let two = certificate(&["kubernetes.default.svc", "cp-2", "10.77.0.12"]);
        Cluster {
            local: vec!["127.0.0.1:7445".parse().expect("an address")],
            own_port: Some(6443),
            certificates: vec![("cp-1".into(), presented(&one)), ("cp-2".into(), presented(&two))],
            members: BTreeSet::from(["192.0.2.7".parse().expect("an address")]),
        }
    }

    fn dialled(address: &str, verified: Option<&str>) -> Dialled {
        Dialled {
            file: "/etc/kubernetes/kubelet.conf".into(),
            context: "default".into(),
            address: address.into(),
            host: address.parse::<SocketAddr>().expect("an address").ip().to_string(),
            verified: verified.map(str::to_owned),
            authorities: None,
        }
    }

    #[test]
    fn a_kubeconfig_that_cannot_be_compared_has_its_reason() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("config");
        let missing = vec![folder.path().join("none")];
        let lists = [missing.clone(), vec![file.clone()]];
        let why = |lists: &[_]| read(lists).expect_err("none can be compared").0;
        assert_eq!(why(&lists), "no kubeconfig was found here");
        let text = |server: &str| {
            format!(
                "current-context: a\ncontexts: [{{name: a, context: {{cluster: c}}}}]\nclusters: \
                 [{{name: c, cluster: {{server: \"{server}\"}}}}]\n"
            )
        };
        std::fs::write(&file, text("http://127.0.0.1:8080")).expect("it can be written");
        let said = why(&lists);
        assert!(said.contains("config: the context a has a server that is not an https"), "{said}");
        std::fs::write(&file, text("https://127.0.0.1:6443")).expect("it can be written");
        assert_eq!(read(&lists).expect("one can be").len(), 1);
    }

    fn judge(address: &str, verified: Option<&str>) -> Vec<Finding> {
        let at: SocketAddr = address.parse().expect("an address");
        cluster().judge(&dialled(address, verified), &[at], NOW)
    }

    #[test]
    fn a_certificate_that_the_ca_did_not_sign_is_reported() {
        let (one, two) = (certificate(&["kubernetes"]), certificate(&["kubernetes"]));
        let certificates =
            vec![("cp-1".into(), presented(&one)), ("cp-sfo".into(), presented(&two))];
        let cluster = Cluster { certificates, ..cluster() };
        let local = "127.0.0.1:7445";
        let judge = |authorities, verified| {
            let file = Dialled { authorities, ..dialled(local, verified) };
            cluster.judge(&file, &[local.parse().expect("an address")], NOW)
        };
        let ca = Authorities::read(one.pem().as_bytes());
        let found = judge(ca.clone(), Some("kubernetes"));
        let [it] = &found[..] else { panic!("{found:?}") };
        assert!(it.kind.id == "MP301" && it.detail.ends_with("certificate of cp-sfo"), "{it}");
        assert!(it.detail.contains("has a CA that did not sign"), "{it}");
        assert_eq!(judge(None, Some("kubernetes")), []);
        assert_eq!(judge(ca, None), []);
    }

    #[test]
    fn a_name_that_one_apiserver_lacks_is_reported() {
        assert_eq!(judge("127.0.0.1:7445", Some("kubernetes.default.svc")), []);
        assert_eq!(judge("127.0.0.1:7445", None), []);
        let found = judge("127.0.0.1:7445", Some("cp-1"));
        let [it] = &found[..] else { panic!("{found:?}") };
        assert!(it.kind.id == "MP301" && it.detail.ends_with("certificate of cp-2"), "{it}");
        let found = judge("127.0.0.1:7445", Some("127.0.0.1"));
        assert!(found[0].detail.ends_with("certificate of cp-1, cp-2"), "{found:?}");
    }

    #[test]
    fn a_certificate_that_expires_or_has_expired_is_reported() {
        let (now, day) = (UnixSeconds(1_800_000_000), 86_400);
        let within = |seconds: u64| ending("cp-1", UnixSeconds(now.0 + seconds), now);
        assert_eq!(within(30 * day), None);
        let soon = within(12 * day).expect("it is time");
        assert!(soon.severity == Severity::Warning && soon.detail.contains("in 12d,"), "{soon}");
        let sooner = within(7_500).expect("it is time");
        assert!(sooner.detail.contains("expires in 2h 5m,"), "{sooner}");
        assert_eq!(within(0).expect("it is over").severity, Severity::Error);
    }

    #[test]
    fn a_kubeconfig_of_this_cluster_that_goes_elsewhere_is_reported() {
        for past in ["10.77.0.11:6443", "192.0.2.7:6443"] {
            let found = judge(past, Some("kubernetes.default.svc"));
            let [it] = &found[..] else { panic!("{past}: {found:?}") };
            assert_eq!(it.kind.id, "MP304");
            let command = "`meshport kubeconfig --from /etc/kubernetes/kubelet.conf --merge";
            assert!(it.detail.contains(past) && it.remedy.contains(command), "{it}");
        }
        // Another cluster's apiserver, and the node's own.
        for other in ["198.51.100.1:6443", "127.0.0.1:6443"] {
            assert_eq!(judge(other, None), [], "{other}");
        }
    }
}
