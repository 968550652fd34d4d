use super::*;
use crate::apiserver::body::pattern_sha256;
use crate::apiserver::{Authority, StandIn, StandInConfig};

fn stand_in(name: &str) -> (Authority, StandIn) {
    let authority = Authority::generate().unwrap();
    let config = StandInConfig::new(authority.issue_server(name).unwrap());
    let stand_in = StandIn::start(config).unwrap();
    (authority, stand_in)
}

#[tokio::test]
async fn both_versions_of_http_work_and_are_measured() {
    let (authority, stand_in) = stand_in("fra");
    let client = Client::new(stand_in.addr(), authority.certificate_pem()).unwrap();
    let answer = client.whoami().await.unwrap();
    assert_eq!(answer.version, Version::HTTP_2);
    assert!(answer.connect > Duration::ZERO && answer.connect <= answer.total);
    let answer = client.http1_only().whoami().await.unwrap();
    assert_eq!((answer.version, answer.origin.as_str()), (Version::HTTP_11, "fra"));
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
async fn big_transfers_arrive_whole_in_both_directions() {
    let (authority, stand_in) = stand_in("fra");
    let client = Client::new(stand_in.addr(), authority.certificate_pem()).unwrap();
    // Neither a multiple of the pattern nor of any buffer.
    let length = (3 << 20) + 17;
    for client in [client.clone(), client.clone().http1_only()] {
        let (down, up) = tokio::join!(client.fetch(length), client.send(length));
        for transfer in [down.unwrap(), up.unwrap()] {
            assert_eq!(transfer.bytes, length);
            assert_eq!(transfer.sha256, pattern_sha256(length));
            assert_eq!(transfer.origin, "fra");
        }
    }
    assert_eq!(client.fetch(0).await.unwrap().bytes, 0);
    assert_eq!(client.send(0).await.unwrap().sha256, pattern_sha256(0));
    assert_eq!(stand_in.counters().bytes_served, 2 * length);
    assert_eq!(stand_in.counters().bytes_sunk, 2 * length);
}

#[tokio::test]
async fn a_transfer_that_stands_still_fails() {
    let (authority, stand_in) = stand_in("fra");
    let client = Client::new(stand_in.addr(), authority.certificate_pem()).unwrap();
    let client = client.with_timeout(Duration::from_millis(300));
    let (down, up) = (client.fetch(32 << 30), client.send(32 << 30));
    let hang = async {
        while stand_in.counters().bytes_served == 0 || stand_in.counters().bytes_sunk == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        stand_in.hang();
    };
    let (down, up, ()) = tokio::join!(down, up, hang);
    for error in [down.unwrap_err(), up.unwrap_err()] {
        assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_port_without_a_listener_is_a_connect_error() {
    let (authority, stand_in) = stand_in("fra");
    let client = Client::new(stand_in.addr(), authority.certificate_pem()).unwrap();
    stand_in.refuse().await;
    let error = client.whoami().await.unwrap_err();
    assert_eq!(error.kind(), "connect", "{error}");
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
