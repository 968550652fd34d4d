//! A service's addresses for clients on this machine: from the running daemon, else from the
//! settings.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use meshport_config::{Defaults, ServiceName, Settings};

use super::load;
use super::paths::Paths;
use super::query::{DaemonArgs, is_closed, unknown_service};
use meshport_daemon::Error;
use meshport_daemon::admin::queries::StatusRequest;

/// The addresses of a service for clients on this machine, the preferred one first; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalAddresses {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) source: AddressSource,
}

/// The source of the addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AddressSource {
    Daemon,
    File(PathBuf),
    Defaults,
}

impl fmt::Display for AddressSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Daemon => f.write_str("the running daemon"),
            Self::File(path) => write!(f, "{}, as no daemon answers", path.display()),
            Self::Defaults => {
                f.write_str("the defaults, as no daemon answers and no configuration exists")
            }
        }
    }
}

impl LocalAddresses {
    /// The first address, as a client dials it.
    pub(crate) fn first(&self) -> SocketAddr {
        self.addresses[0]
    }

    fn new(
        listen: &[SocketAddr],
        source: AddressSource,
        service: &ServiceName,
    ) -> Result<Self, Error> {
        let mut addresses: Vec<SocketAddr> = listen.iter().map(|it| dialled(*it)).collect();
        // IPv4 first: every client speaks it, and a machine may have IPv6 disabled.
        addresses.sort_by_key(SocketAddr::is_ipv6);
        addresses.dedup();
        if addresses.is_empty() {
            return Err(Error::Usage(format!(
                "{service} has no local address on this node; set `listen` under \
                 [service.{service}]"
            )));
        }
        Ok(Self { addresses, source })
    }
}

/// Finds the addresses of `service` on this machine.
///
/// # Errors
/// [`Error::Usage`] for a service that this node does not have or has no address for;
/// [`Error::NoDaemon`] if a socket was named and no daemon answers there, or if this user may not
/// open the socket; see also [`load::read`].
pub(crate) async fn addresses(
    args: &DaemonArgs,
    service: &ServiceName,
) -> Result<LocalAddresses, Error> {
    let client = args.client()?;
    match client.ask(&StatusRequest).await {
        Ok(status) => {
            let found = status.services.iter().find(|known| known.name == *service);
            let names = || status.services.iter().map(|known| &known.name);
            let known = found.ok_or_else(|| unknown_service(service, names()))?;
            LocalAddresses::new(&known.listen, AddressSource::Daemon, service)
        }
        // The daemon may have other settings than those that this user sees.
        Err(error) if args.socket.is_some() || is_closed(&error) => Err(error),
        Err(Error::NoDaemon { .. }) => configured(args, service, &Paths::of_this_user()?),
        Err(error) => Err(error),
    }
}

fn configured(
    args: &DaemonArgs,
    service: &ServiceName,
    paths: &Paths,
) -> Result<LocalAddresses, Error> {
    let (config, state_dir) = (args.config.as_deref(), args.state_dir.as_deref());
    if let Some(settings) = load::of_file(config, state_dir, paths)? {
        let path = load::config_file(config, paths).unwrap_or(paths.config());
        return of_settings(&settings, AddressSource::File(path.to_owned()), service);
    }
    let site = "here".parse().map_err(|error| Error::Bug(format!("a site name: {error}")))?;
    of_settings(
        &Settings::with_defaults(site, &Defaults::default()),
        AddressSource::Defaults,
        service,
    )
}

fn of_settings(
    settings: &Settings,
    source: AddressSource,
    service: &ServiceName,
) -> Result<LocalAddresses, Error> {
    let known = settings.services.get(service);
    let known = known.ok_or_else(|| unknown_service(service, settings.services.keys()))?;
    LocalAddresses::new(&known.listen, source, service)
}

/// The address a client on this machine dials to reach a listener.
pub(super) fn dialled(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().expect("an address")).collect()
    }

    fn nobody(folder: &std::path::Path) -> DaemonArgs {
        DaemonArgs { socket: None, config: None, state_dir: Some(folder.to_owned()) }
    }

    #[test]
    fn loopback_stands_for_every_address_and_ipv4_comes_first() {
        let service = ServiceName::kube_apiserver();
        let listen = addresses(&["[::]:7445", "0.0.0.0:7445", "10.0.0.7:7445"]);
        let local = LocalAddresses::new(&listen, AddressSource::Daemon, &service).expect("some");
        let expected = addresses(&["127.0.0.1:7445", "10.0.0.7:7445", "[::1]:7445"]);
        assert_eq!(local.addresses, expected);
        let error = LocalAddresses::new(&[], AddressSource::Daemon, &service)
            .expect_err("none")
            .to_string();
        assert!(error.contains("set `listen`"), "{error}");
    }

    #[test]
    fn without_a_daemon_the_settings_count_and_then_the_defaults() {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = Paths::in_home(folder.path()).expect("a home");
        let mut args = nobody(folder.path());
        let service = ServiceName::kube_apiserver();
        let local = configured(&args, &service, &paths).expect("defaults");
        assert_eq!(local.first().to_string(), "127.0.0.1:7445");
        assert_eq!(local.source, AddressSource::Defaults);

        let file = folder.path().join("meshport.toml");
        let text = "site = \"fra\"\n[service.kube-apiserver]\nlisten = [\"127.0.0.1:9443\"]\n";
        std::fs::write(&file, text).expect("written");
        args.config = Some(file.clone());
        let local = configured(&args, &service, &paths).expect("a file");
        assert_eq!(local.first().to_string(), "127.0.0.1:9443");
        assert_eq!(local.source, AddressSource::File(file));

        let other = "registry".parse().expect("a name");
        let error = configured(&args, &other, &paths).expect_err("unknown").to_string();
        assert!(error.contains("it has kube-apiserver"), "{error}");
    }
}
