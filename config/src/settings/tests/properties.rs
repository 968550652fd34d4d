//! Properties of any settings.

use proptest::prelude::*;

use super::*;
use crate::cidr::Cidr;

fn duration(min_ms: u64, max_ms: u64) -> impl Strategy<Value = Duration> {
    (min_ms..=max_ms).prop_map(Duration::from_millis)
}

fn label() -> impl Strategy<Value = String> {
    "[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?"
}

fn any_path() -> impl Strategy<Value = PathBuf> {
    "/[^\\x00]{1,20}".prop_map(PathBuf::from)
}

fn any_health() -> impl Strategy<Value = HealthSettings> {
    let times = (duration(100, 300_000), duration(100, 5_000), 1..=100_u8, duration(5_000, 60_000));
    let files = (any_path(), proptest::option::of(any_path()), proptest::option::of(any_path()));
    (times, files, 0..3_usize, "/[a-z?=/\"'\\\\]{0,20}").prop_map(|(times, files, mode, path)| {
        let mode = [HealthMode::Kubernetes, HealthMode::Http, HealthMode::Tcp][mode];
        let (interval, timeout, fall, ready_timeout) = times;
        let times = HealthSettings { interval, timeout, fall, ready_timeout, ..Default::default() };
        let mut health = HealthSettings { mode, ..times };
        match mode {
            HealthMode::Kubernetes => {
                let (ca, cert, token) = files;
                health.ca_file = Some(ca);
                health.client_key_file = cert.clone();
                health.client_cert_file = cert;
                health.bearer_token_file = token;
            }
            HealthMode::Http => health.path = path,
            HealthMode::Tcp => {}
        }
        health
    })
}

fn any_service() -> impl Strategy<Value = ServiceSettings> {
    let choice = (0..5_usize, proptest::collection::btree_set(label(), 1..4));
    let times =
        (duration(0, 10_000), duration(100, 60_000), duration(0, 8_000), duration(0, 10_000));
    let moves = (any::<bool>(), duration(10, 5_000), 0..=100_u8, duration(1_000, 3_600_000));
    let numbers = (0..=100_u8, 1..=1_000_000_u32, any::<bool>());
    let times = (times, moves);
    (choice, times, numbers, any_health()).prop_map(|(choice, times, numbers, health)| {
        let ((band, connect_timeout, hold, cut_window), moves) = times;
        let (hedge, hedge_min, drift_percent, drain_window) = moves;
        let (band_percent, max_sessions, allow_remote_clients) = numbers;
        let all: Vec<Policy> = Policy::NAMES.iter().map(|name| name.parse().unwrap()).collect();
        let policy = all[choice.0];
        let weights = choice.1.iter().map(|name| format!("{name}=7").parse().unwrap());
        let weights = weights.collect();
        let is_pinned = policy == Policy::Pinned;
        let pins = choice.1.iter().filter(|_| is_pinned).map(|name| name.parse().unwrap());
        let allow = choice.1.iter().map(|name| format!("node:{name}").parse().unwrap());
        ServiceSettings {
            allow: allow.collect(),
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            allow_remote_clients,
            origin: Some("cp-1.example.com:6443".parse().unwrap()),
            policy,
            pinned: pins.collect(),
            weights,
            band,
            band_percent,
            connect_timeout,
            hold,
            cut_window,
            hedge,
            hedge_min,
            hedge_max: hedge_min * 2,
            drift_percent,
            drain_window,
            fallback: vec!["k8s.example.com:6443".parse().unwrap()],
            cluster_kubeconfig: Some("/etc/kubernetes/kubelet.conf".into()),
            max_sessions,
            health,
        }
    })
}

fn any_networks() -> impl Strategy<Value = Vec<Cidr>> {
    let network = (any::<std::net::IpAddr>(), 1..=32_u8).prop_filter_map("mapped", |(ip, bits)| {
        let whole = |ip: u128, all: u8| ip & (u128::MAX << (all - bits));
        match ip {
            std::net::IpAddr::V4(ip) => {
                let bits_of = u32::try_from(whole(ip.to_bits().into(), 32) & 0xffff_ffff).ok()?;
                format!("{}/{bits}", Ipv4Addr::from_bits(bits_of)).parse().ok()
            }
            std::net::IpAddr::V6(ip) => {
                format!("{}/{bits}", Ipv6Addr::from_bits(whole(ip.to_bits(), 128))).parse().ok()
            }
        }
    });
    proptest::collection::btree_set(network, 0..4).prop_map(|set| set.into_iter().collect())
}

fn any_listener() -> impl Strategy<Value = ExposeSettings> {
    let numbers = (1..=100_000_u32, 1..=100_000_u32, 1..=10_000_u32);
    let names = proptest::collection::btree_set(label(), 0..3);
    let idle = proptest::option::of(duration(1_000, 86_400_000));
    let lists = (any_networks(), any_networks());
    (numbers, names, idle, lists).prop_map(|(numbers, names, idle_timeout, lists)| {
        let service = ServiceName::kube_apiserver();
        let sni = names.iter().map(|name| format!("*.{name}.example").parse().unwrap()).collect();
        let rule = ExposeRule { sni };
        let rules = [(service.clone(), rule)].into_iter().filter(|(_, it)| !it.sni.is_empty());
        ExposeSettings {
            service: Some(service),
            listen: vec!["192.0.2.1:0".parse().unwrap()],
            allow: lists.0,
            accept_proxy_from: lists.1,
            send_proxy: ProxyHeader::Off,
            max_sessions: numbers.0,
            max_sessions_per_source: numbers.1,
            max_rate_per_source: numbers.2,
            idle_timeout,
            rules: rules.collect(),
        }
    })
}

fn any_settings() -> impl Strategy<Value = Settings> {
    let top = (label(), proptest::option::of(label()), any_path(), any_path());
    let mesh = (1280..=9200_u16, proptest::option::of(1..=3600_u64), any::<SocketAddr>());
    let services = proptest::collection::btree_map(label(), any_service(), 0..4);
    let apiserver = (any_service(), proptest::collection::btree_map(label(), any_listener(), 0..3));
    (top, mesh, services, apiserver, duration(500, 60_000)).prop_map(
        |(top, mesh, services, (apiserver, listeners), interval)| {
            let mut settings = Settings::defaults(top.0.parse().unwrap());
            settings.name = top.1.map(|name| name.parse().unwrap());
            (settings.state_dir, settings.admin.socket) = (top.2, top.3);
            settings.mesh.mtu = mesh.0;
            settings.mesh.max_relayed = mesh.0.into();
            settings.mesh.shards = u32::from(mesh.0) % 5;
            settings.mesh.keepalive = mesh.1.map(Duration::from_secs);
            settings.mesh.listen = SocketAddr::new(mesh.2.ip(), mesh.2.port());
            settings.mesh.seeds =
                ["cp-1", &format!("{NODE}@a:1,b:2")].map(|seed| seed.parse().unwrap()).to_vec();
            settings.discovery.probe_interval = interval;
            settings.discovery.probe_timeout = interval / 2;
            settings.discovery.suspicion = interval;
            for (name, service) in services {
                settings.services.insert(name.parse().unwrap(), service);
            }
            settings.services.insert(ServiceName::kube_apiserver(), apiserver);
            for (name, listener) in listeners {
                settings.expose.insert(name.parse().unwrap(), listener);
            }
            settings
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn the_effective_configuration_parses_back(settings in any_settings()) {
        let text = settings.to_toml();
        prop_assert_eq!(parse(&text), Ok(settings), "{}", text);
    }

    #[test]
    fn durations_round_trip(nanos: u64) {
        let period = Period(Duration::from_nanos(nanos));
        prop_assert_eq!(period.to_string().parse(), Ok(period));
    }
}

/// A number that its field cannot hold is a panic when a file has it.
fn bounds_fit<T>(keys: &[schema::Key<T>], new: impl Fn() -> T) {
    for key in keys {
        if let schema::Kind::Integer { min, max, get, set, .. } = key.kind {
            for bound in [min, max] {
                let mut table = new();
                set(&mut table, bound);
                assert_eq!(get(&table), bound, "{}", key.name);
            }
        }
    }
}

#[test]
fn the_bounds_of_numbers_fit_their_fields() {
    bounds_fit(tables::MESH, Default::default);
    bounds_fit(tables::DISCOVERY, Default::default);
    bounds_fit(tables::SERVICE, Default::default);
    bounds_fit(tables::HEALTH, Default::default);
    bounds_fit(events::KEYS, Default::default);
    bounds_fit(wayback::EGRESS, Default::default);
    bounds_fit(wayback::KUBELET, Default::default);
    let addresses = super::super::virtual_address::ADDRESSES;
    bounds_fit(addresses.keys, addresses.empty);
    bounds_fit(expose::LISTENERS.keys, Default::default);
}
