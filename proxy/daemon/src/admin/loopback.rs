//! Access control of a loopback port: admits local programs and the port's own pages.
//!
//! Any web page in a local browser can send requests to this port; headers that browsers set
//! distinguish them.

use std::net::IpAddr;

use hyper::Request;
use hyper::header::{HOST, HeaderMap};

/// Whether `Host` names this machine. A web page that points its own domain at 127.0.0.1 (DNS
/// rebinding) sends that domain.
pub fn is_for_loopback<B>(request: &Request<B>) -> bool {
    let in_uri = request.uri().authority().map(|authority| authority.as_str().to_owned());
    let mut hosts = request.headers().get_all(HOST).iter();
    let in_header = hosts.next().map(|host| host.to_str().unwrap_or("").to_owned());
    if hosts.next().is_some() {
        return false;
    }
    match (in_header, in_uri) {
        (None, None) => false,
        (header, uri) => header.iter().chain(&uri).all(|host| is_loopback_host(host)),
    }
}

/// Whether a browser's request comes from a person or a page of this port: browsers set a header,
/// other programs do not.
pub fn is_from_here(headers: &HeaderMap) -> bool {
    let mut sites = headers.get_all("sec-fetch-site").iter();
    sites.all(|site| site == "same-origin" || site == "none")
}

fn is_loopback_host(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, rest)) => {
                (address, rest.strip_prefix(':').or(rest.is_empty().then_some("0")))
            }
            None => return false,
        },
        None => match host.rsplit_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (host, Some("0")),
        },
    };
    let port_is_fine = port.is_some_and(|port| port.parse::<u16>().is_ok());
    let name_is_fine = name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    port_is_fine && name_is_fine
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn only_loopback_hosts_are_ours() {
        for host in
            ["localhost", "LocalHost:7446", "127.0.0.1", "127.0.0.2:80", "[::1]", "[::1]:7446"]
        {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:7446",
            "10.0.0.1",
            "[fd00::1]:7446",
            "[::1",
            "[::1]x",
            "localhost:http",
            "localhost@evil.example",
            "::1",
        ] {
            assert!(!is_loopback_host(host), "{host}");
        }
    }

    fn request(uri: &str, hosts: &[&str]) -> Request<()> {
        let mut request = Request::new(());
        *request.uri_mut() = uri.parse().expect("a URI");
        for host in hosts {
            request.headers_mut().append(HOST, HeaderValue::from_str(host).expect("a header"));
        }
        request
    }

    #[test]
    fn pages_of_other_sites_are_recognised_by_browser_headers() {
        let from = |sites: &[&'static str]| {
            let headers = sites.iter().map(|it| HeaderValue::from_static(it));
            let name = hyper::header::HeaderName::from_static("sec-fetch-site");
            is_from_here(&headers.map(|it| (name.clone(), it)).collect())
        };
        assert!(from(&[]) && from(&["none"]) && from(&["same-origin"]));
        for other in ["cross-site", "same-site", "", "None"] {
            assert!(!from(&[other]) && !from(&["none", other]), "{other}");
        }
    }

    #[test]
    fn header_and_target_must_both_name_loopback() {
        assert!(is_for_loopback(&request("/status", &["localhost"])));
        assert!(is_for_loopback(&request("http://127.0.0.1:7446/status", &[])));
        assert!(!is_for_loopback(&request("/status", &[])));
        assert!(!is_for_loopback(&request("/status", &["localhost", "localhost"])));
        assert!(!is_for_loopback(&request("http://evil.example/status", &["localhost"])));
        assert!(!is_for_loopback(&request("http://localhost/status", &["evil.example"])));
    }
}
