//! Fetches the certificates behind a local address: those of all origins through the running
//! daemon, otherwise that of the source context's server.

use meshport_config::ServiceName;

use super::name::{Evidence, ShownCertificate};
use super::server::ServerUrl;
use meshport_daemon::Error;
use meshport_daemon::admin::certificates::{CertificatesRequest, OriginCertificate};
use meshport_daemon::admin::client::AdminClient;
use meshport_daemon::health::{certificates, handshake};

impl Evidence {
    /// Collects the answers of a service's origins.
    pub(in crate::cli) fn of_origins(service: &ServiceName, answers: &[OriginCertificate]) -> Self {
        let asked = |it: &OriginCertificate| ShownCertificate::new(it.who.name.clone(), it.read());
        let partial = answers.is_empty().then(|| "no origin can be reached".to_owned());
        Self { asked: answers.iter().map(asked).collect(), partial, apiservers: is_usual(service) }
    }

    /// Asks every origin of a service through the daemon.
    ///
    /// # Errors
    /// Why no origin was asked.
    pub(in crate::cli) async fn of_daemon(
        client: &AdminClient,
        service: &ServiceName,
    ) -> Result<Self, String> {
        match client.ask(&CertificatesRequest { service: service.clone() }).await {
            Ok(answers) if !answers.is_empty() => Ok(Self::of_origins(service, &answers)),
            Ok(_) => Err("no origin is known yet".into()),
            Err(Error::NoDaemon { .. }) => Err("no daemon answers".into()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Asks every origin of a service, or the server of the source context if no origins are known.
pub(super) async fn evidence(
    client: &AdminClient,
    service: &ServiceName,
    server: &ServerUrl,
) -> Evidence {
    let why = match Evidence::of_daemon(client, service).await {
        Ok(evidence) => return evidence,
        Err(why) => why,
    };
    let address = server.address();
    let read = handshake::of_server(&address, certificates::LIMIT).await;
    let asked = ShownCertificate::new(address, read);
    Evidence { asked: vec![asked], partial: Some(why), apiservers: is_usual(service) }
}

fn is_usual(service: &ServiceName) -> bool {
    service.as_str() == ServiceName::KUBE_APISERVER
}
