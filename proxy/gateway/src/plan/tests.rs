use k8s_openapi::api::core::v1::Endpoints as LegacyEndpoints;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::endpoints::{of_endpoints, of_slice};
use crate::run::describe;

/// A Service of namespace `shop`, `age` seconds after the first, with these annotations.
fn service(name: &str, age: u32, annotations: &Value) -> Service {
    let ports = json!([
        { "name": "http", "port": 80 },
        { "name": "dns", "port": 53, "protocol": "UDP" },
    ]);
    let metadata = json!({
        "name": name, "namespace": "shop", "uid": name, "annotations": annotations,
        "creationTimestamp": format!("2026-01-01T00:00:{age:02}Z"),
    });
    let object = json!({ "metadata": metadata, "spec": { "ports": ports } });
    serde_json::from_value(object).expect("a Service")
}

fn exposed(name: &str, age: u32, text: &str) -> Service {
    service(name, age, &json!({ EXPOSE: text }))
}

fn with_spec(mut service: Service, spec: &Value) -> Service {
    service.spec = Some(serde_json::from_value(spec.clone()).expect("a spec"));
    service
}

fn of_class(name: &str, age: u32, ports: &Value) -> Service {
    let spec = json!({ "type": "LoadBalancer", "loadBalancerClass": CLASS, "ports": ports });
    with_spec(service(name, age, &json!({})), &spec)
}

fn slice(service: &str, endpoints: &Value) -> EndpointSlice {
    let object = json!({
        "metadata": {
            "name": "any", "namespace": "shop",
            "labels": { "kubernetes.io/service-name": service },
        },
        "addressType": "IPv4", "endpoints": endpoints,
        "ports": [
            { "name": "http", "port": 8080, "protocol": "TCP" },
            { "name": "dns", "port": 53, "protocol": "UDP" },
            { "name": "http" },
        ],
    });
    serde_json::from_value(object).expect("a slice")
}

fn ready(addresses: &[&str]) -> Value {
    addresses.iter().map(|it| json!({ "addresses": [it] })).collect()
}

fn snapshot(services: Vec<Service>, slices: &[EndpointSlice]) -> Snapshot {
    let mut endpoints = Endpoints::new();
    for (key, found) in slices.iter().filter_map(of_slice) {
        endpoints.entry(key).or_default().extend(found);
    }
    let services = services.into_iter().map(Arc::new).collect();
    Snapshot { services, endpoints, resolved: BTreeMap::new() }
}

fn planned(services: Vec<Service>) -> Plan {
    plan(&snapshot(services, &[]), &Rules::default())
}

/// The offers' names with their Services.
fn offers(plan: &Plan) -> Vec<String> {
    let offers = plan.offers.iter();
    offers.map(|(name, it)| format!("{name}={}:{}", key(&it.service).name, it.port)).collect()
}

fn refusals(plan: &Plan) -> Vec<String> {
    let refusals = plan.refusals.iter();
    refusals.map(|it| format!("{}: {}", key(&it.service), it.cause)).collect()
}

fn instances(offer: &Offer) -> Vec<(String, bool)> {
    offer.instances.iter().map(|it| (it.address.to_string(), it.ready)).collect()
}

#[test]
fn annotations_name_services_and_their_ports() {
    let plan = planned(vec![
        exposed("one", 0, "web"),
        exposed("several", 1, " a:80 , b:http,"),
        service("none", 2, &json!({})),
    ]);
    assert_eq!(offers(&plan), ["a=several:80", "b=several:80", "web=one:80"]);
    assert_eq!(refusals(&plan), Vec::<String>::new());
}

#[test]
fn what_makes_no_sense_is_refused_with_its_reason() {
    let two = json!({ "ports": [{ "name": "a", "port": 1 }, { "name": "b", "port": 2 }] });
    let cases = [
        (exposed("x", 0, "Web"), "MeshBadAnnotation"),
        (exposed("x", 0, " , "), "MeshBadAnnotation"),
        (exposed("x", 0, "a,a"), "MeshBadAnnotation"),
        (exposed("x", 0, "a:dns"), "MeshNoPort"),
        (exposed("x", 0, "a:53"), "MeshNoPort"),
        (exposed("x", 0, "a:"), "MeshNoPort"),
        (with_spec(exposed("x", 0, "a"), &two), "MeshNoPort"),
        (with_spec(exposed("x", 0, "a"), &json!({})), "MeshNoPort"),
        (service("x", 0, &json!({ EXPOSE: "a", ALLOW: "everyone:x" })), "MeshBadAnnotation"),
        (of_class("x", 0, &json!([{ "port": 53, "protocol": "UDP" }])), "MeshNoPort"),
        (of_class(&"x".repeat(63), 0, &json!([{ "port": 80 }])), "MeshBadName"),
        (
            with_spec(
                exposed("x", 0, "a:80"),
                &json!({ "type": "ExternalName", "externalName": "db.example.com" }),
            ),
            "MeshExternalName",
        ),
    ];
    for (service, reason) in cases {
        let plan = planned(vec![service.clone()]);
        let causes: Vec<&str> = plan.refusals.iter().map(|it| it.cause.reason()).collect();
        assert_eq!((causes, plan.offers.len()), (vec![reason], 0), "{service:?}");
    }
}

#[test]
fn the_older_of_two_services_has_the_name_whatever_their_order() {
    let (old, new) = (exposed("zebra", 1, "web"), exposed("ant", 2, "web,other"));
    for services in [vec![old.clone(), new.clone()], vec![new, old]] {
        let plan = planned(services);
        assert_eq!(offers(&plan), ["web=zebra:80"], "nothing of the newer one");
        let said = "shop/ant: the name web in the mesh belongs to the older Service shop/zebra";
        assert_eq!(refusals(&plan), [said]);
    }
}

#[test]
fn the_class_needs_no_annotation_and_a_port_of_the_address_has_one_holder() {
    let web = json!([{ "name": "http", "port": 80 }, { "name": "https", "port": 443 }]);
    let services = vec![
        of_class("web", 0, &web),
        of_class("other", 1, &json!([{ "port": 443 }])),
        with_spec(service("cloud", 2, &json!({})), &json!({ "type": "LoadBalancer" })),
    ];
    let both = snapshot(services, &[]);
    let rules = Rules { addresses: vec!["10.0.0.5".parse().expect("ip")], ..Rules::default() };
    let made = plan(&both, &rules);
    assert_eq!(offers(&made), ["web-shop-http=web:80", "web-shop-https=web:443"]);
    let said =
        "shop/other: port 443 of the gateway's address belongs to the older Service shop/web";
    assert_eq!(refusals(&made), [said]);
    // Without an address there is no port to share.
    let made = plan(&both, &Rules::default());
    assert_eq!(made.offers.len(), 3);
}

/// The status of a Service that another balancer writes is left alone.
#[test]
fn the_address_is_for_the_class_and_for_annotated_services_of_no_class() {
    let balancer =
        |class: Option<&str>| json!({ "type": "LoadBalancer", "loadBalancerClass": class });
    let plain = || service("web", 0, &json!({}));
    let annotated = || exposed("web", 0, "web");
    for (service, expected) in [
        (with_spec(plain(), &balancer(Some(CLASS))), true),
        (with_spec(annotated(), &balancer(Some(CLASS))), true),
        (with_spec(annotated(), &balancer(None)), true),
        (with_spec(plain(), &balancer(None)), false),
        (with_spec(annotated(), &balancer(Some("example.com/cloud"))), false),
        (annotated(), false),
    ] {
        assert_eq!(has_address(&service), expected, "{service:?}");
    }
}

#[test]
fn only_some_namespaces_and_only_as_many_as_a_node_can_announce() {
    let mut elsewhere = exposed("there", 0, "there");
    elsewhere.metadata.namespace = Some("other".to_owned());
    let many = (0..20).map(|n| exposed(&format!("s{n:02}"), n, &format!("s{n:02}")));
    let services = snapshot(many.chain([elsewhere]).collect(), &[]);
    let rules = Rules { namespaces: BTreeSet::from(["shop".to_owned()]), ..Rules::default() };
    let made = plan(&services, &rules);
    assert_eq!(made.offers.len(), MAX_OFFERED_SERVICES);
    assert!(made.offers.keys().all(|it| it.as_str() < "s16"), "the oldest");
    let causes: Vec<&Cause> = made.refusals.iter().map(|it| &it.cause).collect();
    assert_eq!(causes, vec![&Cause::TooMany; 4]);
}

#[test]
fn endpoints_that_end_serve_while_none_is_ready() {
    let condition = |address: &str, ready, serving, terminating| {
        let conditions = json!({ "ready": ready, "serving": serving, "terminating": terminating });
        json!({ "addresses": [address], "conditions": conditions })
    };
    let draining = condition("10.1.0.1", false, true, true);
    let dead = condition("10.1.0.2", false, false, true);
    let starting = condition("10.1.0.3", false, false, false);
    let web = || vec![exposed("web", 0, "web")];
    let of = |slices: &[EndpointSlice]| {
        let made = plan(&snapshot(web(), slices), &Rules::default());
        instances(made.offers.values().next().expect("offered"))
    };
    let at = |last: u8, ready| (format!("10.1.0.{last}:8080"), ready);
    let ending = slice("web", &json!([draining, dead, starting]));
    assert_eq!(of(std::slice::from_ref(&ending)), [at(1, true), at(2, false), at(3, false)]);
    // They get none once another slice has a ready one. An address is ready if it is in one slice.
    let more = slice("web", &ready(&["10.1.0.3"]));
    assert_eq!(of(&[ending, more]), [at(3, true), at(1, false), at(2, false)]);
    assert_eq!(of(&[slice("other", &ready(&["10.1.0.9"]))]), []);
}

#[test]
fn endpoints_on_the_gateway_itself_are_left_out() {
    let addresses = [
        "127.0.0.1",
        "169.254.1.1",
        "0.0.0.0",
        "224.0.0.1",
        "::1",
        "fe80::1",
        "::ffff:127.0.0.1",
        "10.1.0.1",
        "192.168.0.1",
        "not-an-address",
    ];
    let cluster = snapshot(vec![exposed("web", 0, "web")], &[slice("web", &ready(&addresses))]);
    let of = |rules: &Rules| {
        let made = plan(&cluster, rules);
        let offer = made.offers.values().next().expect("offered");
        (instances(offer).into_iter().map(|it| it.0).collect::<Vec<_>>(), offer.left_out)
    };
    let (some, left_out) = of(&Rules::default());
    assert_eq!(some, ["10.1.0.1:8080", "192.168.0.1:8080"]);
    assert_eq!(left_out, 7);
    let networks = ["10.1.0.0/16", "127.0.0.0/8"].map(|it| it.parse().expect("a network"));
    let rules = Rules { endpoint_networks: networks.into(), ..Rules::default() };
    assert_eq!(of(&rules).0, ["10.1.0.1:8080"], "loopback also where the rules would have it");
}

#[test]
fn endpoints_of_an_older_apiserver_are_read() {
    let object = json!({
        "metadata": { "name": "web", "namespace": "shop" },
        "subsets": [{
            "addresses": [{ "ip": "10.1.0.1" }], "notReadyAddresses": [{ "ip": "10.1.0.2" }],
            "ports": [
                { "name": "http", "port": 8080 },
                { "name": "dns", "port": 53, "protocol": "UDP" },
            ],
        }],
    });
    let endpoints: LegacyEndpoints = serde_json::from_value(object).expect("Endpoints");
    let mut cluster = snapshot(vec![exposed("web", 0, "web")], &[]);
    cluster.endpoints.extend(of_endpoints(&endpoints));
    let made = plan(&cluster, &Rules::default());
    let found = instances(made.offers.values().next().expect("offered"));
    assert_eq!(found, [("10.1.0.1:8080".to_owned(), true), ("10.1.0.2:8080".to_owned(), false)]);
}

#[test]
fn an_external_name_is_offered_at_its_addresses_where_that_is_allowed() {
    let spec = json!({
        "type": "ExternalName", "externalName": "db.example.com", "ports": [{ "port": 5432 }],
    });
    let mut cluster = snapshot(vec![with_spec(exposed("db", 0, "db"), &spec)], &[]);
    let ips = ["192.0.2.7", "127.0.0.1"].map(|it| it.parse().expect("ip"));
    cluster.resolved.insert("db.example.com".to_owned(), ips.into());
    let rules = Rules { external_names: true, ..Rules::default() };
    let made = plan(&cluster, &rules);
    let found = instances(made.offers.values().next().expect("offered"));
    assert_eq!(found, [("192.0.2.7:5432".to_owned(), true)]);
}

#[test]
fn a_dry_run_names_what_is_offered_and_why_the_rest_is_not() {
    let annotations = json!({ EXPOSE: "db:http", ALLOW: "role:node" });
    let services =
        vec![exposed("web", 0, "web"), service("db", 1, &annotations), exposed("again", 2, "web")];
    let slices = [slice("web", &ready(&["10.1.0.1", "10.1.0.2", "127.0.0.1"]))];
    let said = describe(&plan(&snapshot(services, &slices), &Rules::default()));
    let lines: Vec<Vec<&str>> = said.lines().map(|it| it.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "SERVICE", "PORT", "READY", "ALLOW"]);
    assert_eq!(lines[1], ["db", "shop/db", "80", "0/0", "role:node"]);
    assert_eq!(lines[2], ["web", "shop/web", "80", "2/2", "(1", "left", "out)", "default"]);
    let refused = "not offered: shop/again: the name web in the mesh belongs to the older Service \
                   shop/web\n";
    assert!(said.ends_with(refused), "{said}");
    assert_eq!(lines.len(), 4, "{said}");
    assert_eq!(describe(&planned(Vec::new())), "no Service is offered\n");
}

#[test]
fn a_request_has_the_instances_and_their_allow_list() {
    let many: Vec<String> = (0..250).map(|n| format!("10.1.{}.{}", n / 200, n % 200 + 1)).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let annotations = json!({ EXPOSE: "web", ALLOW: "site:fra, role:node" });
    let services = vec![service("web", 0, &annotations), exposed("other", 1, "other")];
    let made = plan(&snapshot(services, &[slice("web", &ready(&many))]), &Rules::default());
    let name = |it: &str| it.parse::<ServiceName>().expect("a name");
    assert_eq!(made.offers[&name("web")].left_out, 150);
    let request = made.request(60);
    assert_eq!(request.services[&name("web")].instances.len(), MAX_INSTANCES);
    assert_eq!(request.services[&name("web")].allow, ["site:fra", "role:node"]);
    let everyone: Vec<String> = Allow::everyone().iter().map(ToString::to_string).collect();
    assert_eq!(request.services[&name("other")].allow, everyone);
}

#[test]
fn the_page_names_every_reason_of_an_event() {
    let page = include_str!("../../../../docs/gateway.md");
    let name = || "web".parse::<ServiceName>().expect("a name");
    let holder = || key(&exposed("web", 0, "web"));
    let causes = [
        Cause::NameTaken { name: name(), holder: holder() },
        Cause::PortTaken { port: 80, holder: holder() },
        Cause::BadAnnotation { annotation: EXPOSE, why: String::new() },
        Cause::BadName(String::new()),
        Cause::NoPort(String::new()),
        Cause::WhichPort(2),
        Cause::TooMany,
        Cause::ExternalName,
        Cause::Daemon { name: name(), why: String::new() },
    ];
    for cause in causes {
        assert!(page.contains(&format!("`{}`", cause.reason())), "{cause:?}");
    }
}

proptest! {
    /// For any input of the cluster's users, the daemon accepts the offer, and no instance is the
    /// gateway itself.
    #[test]
    fn any_annotation_makes_an_offer_that_the_daemon_reads(
        texts in proptest::collection::vec(("[a-zA-Z0-9:, -]{0,20}", "[a-z:, -]{0,12}"), 0..24),
        addresses in proptest::collection::vec(any::<IpAddr>(), 0..5),
    ) {
        let services: Vec<Service> = texts.iter().enumerate().map(|(n, (expose, allow))| {
            service(&format!("s{n}"), 0, &json!({ EXPOSE: expose, ALLOW: allow }))
        }).collect();
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let slices: Vec<EndpointSlice> =
            (0..texts.len()).map(|n| slice(&format!("s{n}"), &ready(&addresses))).collect();
        let made = plan(&snapshot(services, &slices), &Rules::default());
        let request = made.request(60);
        prop_assert!(meshport_daemon::admin::request::Request::check(&request).is_ok());
        for offer in made.offers.values() {
            prop_assert!(offer.instances.iter().all(|it| may_be_reached(it.address.ip())));
        }
    }
}
