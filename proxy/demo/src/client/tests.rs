use super::*;
use crate::apiserver::{Authority, StandIn, StandInConfig};

fn stand_in(name: &str) -> (Authority, StandIn) {
    let authority = Authority::generate().unwrap();
    let config = StandInConfig::new(authority.issue_server(name).unwrap());
    let stand_in = StandIn::start(config).unwrap();
    (authority, stand_in)
}

#[tokio::test]
async fn ipv6_loopback_is_in_the_certificate() {
    let authority = Authority::generate().unwrap();
    let mut config = StandInConfig::new(authority.issue_server("fra").unwrap());
    config.listen = "[::1]:0".parse().unwrap();
    let Ok(stand_in) = StandIn::start(config) else {
        eprintln!("skipped: no IPv6 on this machine");
        return;
    };
    let client = Client::new(stand_in.addr(), authority.certificate_pem()).unwrap();
    assert_eq!(client.whoami().await.unwrap().origin, "fra");
}

#[tokio::test]
async fn a_foreign_authority_is_refused() {
    let (_, stand_in) = stand_in("fra");
    let other = Authority::generate().unwrap();
    let client = Client::new(stand_in.addr(), other.certificate_pem()).unwrap();
    let error = client.whoami().await.unwrap_err();
    assert!(matches!(error, ClientError::Tls(_)), "{error}");
    assert!(Client::new(stand_in.addr(), "no certificate").is_err());
}

#[tokio::test]
async fn a_port_without_a_listener_is_a_connect_error() {
    let (authority, stand_in) = stand_in("fra");
    let client = Client::new(stand_in.addr(), authority.certificate_pem()).unwrap();
    stand_in.refuse().await;
    let error = client.whoami().await.unwrap_err();
    assert!(matches!(error, ClientError::Connect(_)), "{error}");
}

#[tokio::test]
async fn a_silent_server_is_a_timeout_in_the_handshake() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let authority = Authority::generate().unwrap();
    let client = Client::new(silent.local_addr().unwrap(), authority.certificate_pem()).unwrap();
    let client = client.with_timeout(Duration::from_millis(50));
    let error = client.whoami().await.unwrap_err();
    assert_eq!(error.to_string(), "no answer within 50 ms (while it was in the TLS handshake)");
}
