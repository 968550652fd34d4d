use std::time::Duration;

use super::*;

mod exposed;
mod properties;
mod virtual_address;

const NODE: &str = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";

fn problems(text: &str) -> Vec<Problem> {
    parse(text).expect_err("the text has problems")
}

/// The one problem of a text that starts with a good site.
fn only(text: &str) -> Problem {
    let list = problems(&format!("site = \"fra\"\n{text}"));
    assert_eq!(list.len(), 1, "{text}: {list:#?}");
    list.into_iter().next().unwrap()
}

fn good(text: &str) -> Settings {
    parse(&format!("site = \"fra\"\n{text}")).unwrap_or_else(|list| panic!("{text}: {list:#?}"))
}

#[test]
fn a_site_is_enough() {
    let settings = good("");
    assert_eq!(settings, Settings::defaults("fra".parse().unwrap()));
    assert_eq!(settings.admin.socket, PathBuf::from("/var/lib/meshport/meshport.sock"));
    let apiserver = &settings.services["kube-apiserver"];
    assert_eq!(apiserver.listen.len(), 2);
    assert_eq!(apiserver.health.mode, HealthMode::Kubernetes);
    assert_eq!(apiserver.origin, None);
}

#[test]
fn folders_come_from_the_file_then_from_the_caller() {
    let defaults = Defaults { state_dir: "/home/a/state".into(), socket: None };
    let site = "site = \"fra\"\n";
    let settings = parse_with(site, &defaults).unwrap();
    assert_eq!(settings.admin.socket, PathBuf::from("/home/a/state/meshport.sock"));
    let settings = parse_with(&format!("{site}state-dir = \"/srv\""), &defaults).unwrap();
    assert_eq!(settings.admin.socket, PathBuf::from("/srv/meshport.sock"));
    let defaults = Defaults { socket: Some("/run/meshport/meshport.sock".into()), ..defaults };
    let settings = parse_with(&format!("{site}state-dir = \"/srv\""), &defaults).unwrap();
    assert_eq!(settings.admin.socket, PathBuf::from("/run/meshport/meshport.sock"));
    let text = format!("{site}[admin]\nsocket = \"/x\"");
    assert_eq!(parse_with(&text, &defaults).unwrap().admin.socket, PathBuf::from("/x"));
}

#[test]
fn every_key_is_read() {
    let settings = good(&format!(
        "name = \"worker-7\"\nstate-dir = \"/s\"\n[log]\nformat = \"json\"\nlevel = \"debug\"\n\
         [mesh]\nlisten = \"0.0.0.0:0\"\nadvertise = [\"203.0.113.5:51820\"]\n\
         seeds = [\"{NODE}@seed.example.com:51820\"]\nmtu = 0x2328\nkeepalive = \"25s\"\n\
         max-relayed = 7\nshards = 3\n\
         [admin]\nhttp = \"off\"\n[discovery]\nprobe-interval = \"2s\"\nprobe-timeout = \"1s\"\n\
         suspicion = \"5s\"\npath-probe-active = \"250ms\"\npath-probe-idle = \"10s\"\n\
         sync-interval = \"1m\"\n[service.kube-apiserver]\norigin = \"127.0.0.1:6443\"\n\
         policy = \"pinned\"\npinned = [\"cp-1\", \"{NODE}\"]\nmax-sessions = 5\n\
         hold = \"0s\"\ncut-window = \"2s\"\nconnect-timeout = \"7s\"\n\
         band = \"2ms\"\nband-percent = 20\nhedge = false\nhedge-min = \"50ms\"\n\
         hedge-max = \"1s\"\ndrift-percent = 0\ndrain-window = \"5m\"\n\
         fallback = [\"k8s.example.com:6443\"]\n\
         allow = [\"role:node\", \"site:fra\", \"node:worker-7\", \"node:{NODE}\"]\n\
         [service.kube-apiserver.health]\ninterval = \"2s\"\ntimeout = \"2s\"\nfall = 3\n\
         ready-timeout = \"6s\"\nca-file = \"/ca\"\nclient-cert-file = \"/c\"\n\
         client-key-file = \"/k\"\nbearer-token-file = \"/t\"\nserver-name = \"k8s.local\"\n\
         [service.web]\nlisten = [\"0.0.0.0:80\"]\nallow-remote-clients = true\n\
         [service.web.health]\nmode = \"http\"\npath = \"/ok?x=1\"\n"
    ));
    assert_eq!((settings.mesh.mtu, settings.mesh.max_relayed), (9000, 7));
    assert_eq!(settings.mesh.shards, 3);
    assert_eq!(settings.mesh.keepalive, Some(Duration::from_secs(25)));
    assert_eq!((settings.admin.http, settings.log.level), (None, LogLevel::Debug));
    assert_eq!(settings.discovery.sync_interval, Duration::from_secs(60));
    let apiserver = &settings.services["kube-apiserver"];
    let pinned: Vec<String> = apiserver.pinned.iter().map(Pin::to_string).collect();
    assert_eq!(pinned, ["cp-1", NODE]);
    assert!(matches!(apiserver.pinned[..], [Pin::Name(_), Pin::Node(_)]));
    assert_eq!((apiserver.health.fall, apiserver.band_percent), (3, 20));
    assert_eq!((apiserver.hedge, apiserver.drift_percent), (false, 0));
    assert_eq!(apiserver.hedge_min * 20, apiserver.hedge_max);
    assert_eq!(apiserver.drain_window, Duration::from_secs(300));
    assert_eq!(apiserver.fallback[0].to_string(), "k8s.example.com:6443");
    let allow: Vec<String> = apiserver.allow.iter().map(Allow::to_string).collect();
    assert_eq!(allow[..3], ["role:node", "site:fra", "node:worker-7"]);
    assert!(matches!(apiserver.allow[3], Allow::Node(_)));
    assert!(settings.services["web"].allow_remote_clients);
    assert_eq!(settings.services["web"].health.path, "/ok?x=1");
    assert_eq!(parse(&settings.to_toml()).as_ref(), Ok(&settings));
}

/// Text after the site, then line, column, key, a part of found, a part of expected, nearest.
type Case = (&'static str, usize, usize, &'static str, &'static str, &'static str, &'static str);

const CASES: &[Case] = &[
    ("stat-dir = \"/x\"", 2, 1, "stat-dir", "", "one of site, name", "state-dir"),
    ("state_dir = \"/x\"", 2, 1, "state_dir", "", "state-dir", "state-dir"),
    ("mtu = 1500", 2, 1, "mtu", "", "one of", "mesh.mtu"),
    ("zzz = 1", 2, 1, "zzz", "", "one of site, name, state-dir, sandbox, log", ""),
    ("[servce]", 2, 2, "servce", "", "service", "service"),
    ("[mesh]\nmtoo = 1", 3, 1, "mesh.mtoo", "", "listen, advertise", ""),
    ("[mesh]\nlevel = \"x\"", 3, 1, "mesh.level", "", "listen", "log.level"),
    ("name = \"Worker\"", 2, 8, "name", "\"Worker\"", "worker-7", ""),
    ("name = 7", 2, 8, "name", "7", "a name", ""),
    ("state-dir = \"\"", 2, 13, "state-dir", "\"\"", "a path", ""),
    ("log = true", 2, 7, "log", "true", "a table, as in [log]", ""),
    ("[[mesh]]", 2, 1, "mesh", "a list", "a table", ""),
    ("[log]\nformat = \"jsn\"", 3, 10, "log.format", "\"jsn\"", "\"text\", \"json\"", "json"),
    ("[log]\nlevel = \"verbose\"", 3, 9, "log.level", "\"verbose\"", "\"trace\"", ""),
    ("[mesh]\nmtu = 1279", 3, 7, "mesh.mtu", "1279", "from 1280 to 9200 (bytes)", ""),
    ("[mesh]\nmtu = 9201", 3, 7, "mesh.mtu", "9201", "1280", ""),
    ("[mesh]\nshards = 5", 3, 10, "mesh.shards", "5", "from 0 to 4 (threads)", ""),
    ("[mesh]\nmtu = -1", 3, 7, "mesh.mtu", "-1", "1280", ""),
    ("[mesh]\nmtu = 1e3", 3, 7, "mesh.mtu", "1e3", "whole number", ""),
    ("[mesh]\nmtu = 99999999999999999999", 3, 7, "mesh.mtu", "9999", "1280", ""),
    ("[mesh]\nlisten = \"51820\"", 3, 10, "mesh.listen", "\"51820\"", "[::]:51820", ""),
    ("[mesh]\nkeepalive = \"1500ms\"", 3, 13, "mesh.keepalive", "1500ms", "whole seconds", ""),
    ("[mesh]\nkeepalive = 25", 3, 13, "mesh.keepalive", "25", "\"off\", or a duration", ""),
    ("[mesh]\nadvertise = [\n  \"0.0.0.0:1\",\n]", 4, 3, "mesh.advertise", "0.0.0.0:1", "host", ""),
    ("[mesh]\nseeds = [\"a@b:1\"]", 3, 10, "mesh.seeds", "a@b:1", "NODEID@HOST:PORT", ""),
    ("[mesh]\nseeds = [\"192.0.2.1\"]", 3, 10, "mesh.seeds", "192.0.2.1", "NODEID@HOST", ""),
    ("[mesh]\nseeds = \"x\"", 3, 9, "mesh.seeds", "\"x\"", "a list of at most 64", ""),
    ("[admin]\nhttp = \"0.0.0.0:7446\"", 3, 8, "admin.http", "0.0.0.0", "loopback", ""),
    ("[admin]\nhttp = 1979-05-27", 3, 8, "admin.http", "a date", "loopback", ""),
    ("[discovery]\nsuspicion = \"4\"", 3, 13, "discovery.suspicion", "\"4\"", "a duration", ""),
    ("[discovery]\nsuspicion = \"1h\"", 3, 13, "discovery.suspicion", "1h", "\"5m\"", ""),
    (
        "[discovery]\nprobe-timeout = \"1s\"",
        3,
        17,
        "discovery.probe-timeout",
        "1s",
        "less than",
        "",
    ),
    ("[discovery]\nprobe-timeout = \"2s\"", 3, 17, "discovery.probe-timeout", "2s", "at most", ""),
    (
        "[discovery]\nprobe-interval = \"5s\"",
        3,
        18,
        "discovery.probe-interval",
        "5s",
        "at most suspicion",
        "",
    ),
    (
        "[discovery]\npath-probe-active = \"6s\"",
        3,
        21,
        "discovery.path-probe-active",
        "6s",
        "at most path-probe-idle",
        "",
    ),
    (
        "[discovery]\npath-probe-idle = \"300ms\"",
        3,
        19,
        "discovery.path-probe-idle",
        "300ms",
        "\"500ms\"",
        "",
    ),
    ("[service.Web]\nlisten = []", 2, 10, "service", "\"Web\"", "a service name", ""),
    ("[service]\nweb = 1", 3, 7, "service.web", "1", "a table", ""),
    ("[service.web]\norigin = \"127.0.0.1:1\"", 2, 10, "service.web.listen", "", "[] to offer", ""),
    ("[service.web]\nlisten = []", 3, 10, "service.web.listen", "no origin", "origin", ""),
    (
        "[service.web]\nlisten = [\"0.0.0.0:80\"]",
        3,
        11,
        "service.web.listen",
        "0.0.0.0:80",
        "allow-remote-clients",
        "",
    ),
    (
        "[service.web]\nlisten = [\"127.0.0.1:7445\"]",
        3,
        11,
        "service.web.listen",
        "kube-apiserver.listen",
        "nothing else",
        "",
    ),
    (
        "[service.web]\nlisten = [\"127.0.0.1:7446\"]",
        3,
        11,
        "service.web.listen",
        "admin.http",
        "nothing else",
        "",
    ),
    (
        "[service.a-web]\nlisten = [\"[::1]:7445\"]",
        3,
        11,
        "service.a-web.listen",
        "[::1]:7445",
        "nothing else",
        "",
    ),
    (
        "[service.web]\nlisten = [\"127.0.0.1:80\", \"127.0.0.1:80\"]",
        3,
        27,
        "service.web.listen",
        "127.0.0.1:80",
        "only once",
        "",
    ),
    (
        "[service.kube-apiserver]\norigin = \"localhost:7445\"",
        3,
        10,
        "service.kube-apiserver.origin",
        "of this node",
        "instance itself",
        "",
    ),
    (
        "[service.kube-apiserver]\npolicy = \"pinned\"",
        3,
        10,
        "service.kube-apiserver.policy",
        "pinned",
        "at least one",
        "",
    ),
    (
        "[service.kube-apiserver]\npolicy = \"pined\"",
        3,
        10,
        "service.kube-apiserver.policy",
        "pined",
        "nearest",
        "pinned",
    ),
    (
        "[service.kube-apiserver]\npinned = [\"a\"]",
        3,
        10,
        "service.kube-apiserver.pinned",
        "nearest",
        "policy = \"pinned\"",
        "",
    ),
    (
        "[service.kube-apiserver]\nhold = \"9s\"",
        3,
        8,
        "service.kube-apiserver.hold",
        "9s",
        "\"8s\"",
        "",
    ),
    (
        "[service.kube-apiserver]\nmax-sessions = 0",
        3,
        16,
        "service.kube-apiserver.max-sessions",
        "0",
        "from 1 to",
        "",
    ),
    (
        "[service.kube-apiserver]\nband-percent = 101",
        3,
        16,
        "service.kube-apiserver.band-percent",
        "101",
        "percent",
        "",
    ),
    (
        "[service.kube-apiserver.health]\nfall = 0",
        3,
        8,
        "service.kube-apiserver.health.fall",
        "0",
        "from 1",
        "",
    ),
    (
        "[service.kube-apiserver.health]\ntimeout = \"6s\"",
        3,
        11,
        "service.kube-apiserver.health.timeout",
        "6s",
        "ready-timeout",
        "",
    ),
    (
        "[service.kube-apiserver.health]\nready-timeout = \"500ms\"",
        3,
        17,
        "service.kube-apiserver.health.ready-timeout",
        "500ms",
        "at least timeout",
        "",
    ),
    (
        "[service.kube-apiserver.health]\nbearer-token-file = \"/t\"",
        3,
        21,
        "service.kube-apiserver.health.bearer-token-file",
        "set",
        "ca-file",
        "",
    ),
    (
        "[service.kube-apiserver.health]\nca-file = \"/a\"\nclient-cert-file = \"/c\"",
        4,
        20,
        "service.kube-apiserver.health.client-cert-file",
        "set",
        "client-key-file",
        "",
    ),
    (
        "[service.kube-apiserver.health]\nclient-key-file = \"/c\"",
        3,
        19,
        "service.kube-apiserver.health.client-key-file",
        "set",
        "client-cert-file",
        "",
    ),
    (
        "[service.kube-apiserver.health]\npath = \"/x\"",
        3,
        8,
        "service.kube-apiserver.health.path",
        "kubernetes",
        "mode = \"http\"",
        "",
    ),
    (
        "[service.kube-apiserver.health]\nmode = \"tcp\"\nca-file = \"/x\"",
        4,
        11,
        "service.kube-apiserver.health.ca-file",
        "tcp",
        "mode = \"kubernetes\"",
        "",
    ),
    (
        "[service.kube-apiserver.health]\nmode = \"http\"\npath = \"x\"",
        4,
        8,
        "service.kube-apiserver.health.path",
        "\"x\"",
        "/healthz",
        "",
    ),
    (
        "[service.kube-apiserver.health]\nserver-name = \"a b\"",
        3,
        15,
        "service.kube-apiserver.health.server-name",
        "a b",
        "a DNS name",
        "",
    ),
    (
        "[service.kube-apiserver.health]\nintervall = \"1s\"",
        3,
        1,
        "service.kube-apiserver.health.intervall",
        "",
        "interval",
        "service.kube-apiserver.health.interval",
    ),
];

#[test]
fn every_mistake_has_its_place_and_remedy() {
    for (text, line, column, key, found, expected, nearest) in CASES {
        let problem = only(text);
        let shown = format!("{text}\n{problem}\n{problem:?}");
        assert_eq!((problem.line, problem.column), (*line, *column), "{shown}");
        assert_eq!(problem.key, *key, "{shown}");
        assert!(problem.found.contains(found), "{shown}");
        assert!(problem.expected.contains(expected), "{shown}");
        assert_eq!(problem.nearest.as_deref().unwrap_or(""), *nearest, "{shown}");
        assert_eq!(problem.to_string().lines().count(), 1, "{shown}");
    }
}

#[test]
fn messages_read_well() {
    let line = |text: &str| problems(text).iter().map(Problem::to_string).collect::<Vec<_>>();
    assert_eq!(
        line("name = \"a\"\n\nstie = \"fra\""),
        ["line 3, column 1: unknown key \"stie\"; did you mean \"site\"?"]
    );
    assert_eq!(
        line("site = \"fra\"\n[mesh]\nmtu = 9500"),
        ["line 3, column 7: mesh.mtu is 9500; expected a whole number from 1280 to 9200 (bytes)"]
    );
    assert_eq!(
        line("name = \"a\""),
        ["line 1, column 1: \"site\" is missing; expected a name of 1 to 63 of a-z, 0-9 and '-', \
          with no '-' at either end, such as \"fra\""]
    );
    assert_eq!(
        line("site = \"fra\"\n[log]\nformat = \"jsn\""),
        ["line 3, column 10: log.format is \"jsn\"; expected one of \"text\", \"json\"; did you \
          mean \"json\"?"]
    );
}

#[test]
fn all_problems_are_reported_at_once_in_file_order() {
    let text = "name = \"No Name\"\nport = 1\n[mesh]\nmtu = 1\nseeds = [\"X\", 3]\n[log]\n\
                levl = \"info\"\n[admin]\nhttp = \"10.0.0.1:1\"\n[service.web]\n\
                origin = \"127.0.0.1:1\"\nhold = \"1d\"\n[service.web.health]\nfall = 0\n";
    let list = problems(text);
    let places: Vec<(usize, &str)> = list.iter().map(|p| (p.line, p.key.as_str())).collect();
    assert_eq!(
        places,
        [
            (1, "site"),
            (1, "name"),
            (2, "port"),
            (4, "mesh.mtu"),
            (5, "mesh.seeds"),
            (5, "mesh.seeds"),
            (7, "log.levl"),
            (9, "admin.http"),
            (10, "service.web.listen"),
            (12, "service.web.hold"),
            (14, "service.web.health.fall"),
        ]
    );
}

#[test]
fn what_depends_on_a_refused_value_is_not_judged() {
    let problem = only("[service.kube-apiserver]\npolicy = \"nearest\"\npinned = [3]");
    assert_eq!(problem.key, "service.kube-apiserver.pinned");
    let text = "[service.kube-apiserver.health]\nclient-cert-file = \"/c\"\nclient-key-file = 1\n\
                ca-file = \"/a\"";
    assert_eq!(only(text).key, "service.kube-apiserver.health.client-key-file");
    assert_eq!(only("[service.web]\nlisten = [1]").key, "service.web.listen");
}

#[test]
fn text_that_is_not_toml_is_placed() {
    let list = problems("site = \"fra\"\nname = worker\n\n[mesh\nmtu = 5\n");
    let syntax: Vec<usize> = list
        .iter()
        .filter(|problem| problem.kind == ProblemKind::Syntax)
        .map(|problem| problem.line)
        .collect();
    assert_eq!(syntax, [2, 4], "{list:#?}");
    let list = problems("site = \"a\"\nsite = \"b\"\n");
    assert_eq!((list.len(), list[0].line), (1, 2));
    assert!(list[0].to_string().contains("duplicate key"), "{}", list[0]);
    let list = problems("# ä\nsite = \"ä\" x\n");
    assert_eq!((list[0].line, list[0].column), (2, 12), "{list:#?}");
}

#[test]
fn sizes_are_bounded() {
    let long = format!("site = \"fra\"\n#{}", "x".repeat(MAX_SETTINGS_BYTES));
    assert_eq!(problems(&long).len(), 1);
    let many: String = (0..1000).map(|n| format!("zz{n} = 1\n")).collect();
    assert_eq!(problems(&many).len(), MAX_PROBLEMS);
    let services: String = (0..MAX_SERVICES)
        .map(|n| format!("[service.s{n}]\nlisten = [\"127.0.0.1:{}\"]\n", n + 1))
        .collect();
    let problem = only(&services);
    assert!(problem.expected.contains("at most 16 services"), "{problem}");
    let listen: Vec<String> = (1..=9).map(|n| format!("\"127.0.0.1:{n}\"")).collect();
    let problem = only(&format!("[service.kube-apiserver]\nlisten = [{}]", listen.join(",")));
    assert_eq!(problem.found, "a list of 9");
    let deep = format!("[mesh]\nmtu = {}1{}", "[".repeat(5000), "]".repeat(5000));
    assert!(parse(&deep).is_err());
    let problem = only(&format!("state-dir = \"/{}\"", "x".repeat(107)));
    assert!(problem.to_string().contains("admin.socket"), "{problem}");
}

#[test]
fn shared_ports_are_fine_where_addresses_differ() {
    good("[service.web]\nlisten = [\"127.0.0.2:7445\"]");
    good("[service.web]\nlisten = [\"127.0.0.1:0\"]\n[service.api]\nlisten = [\"127.0.0.1:0\"]");
    good("[service.kube-apiserver]\nlisten = []");
    let unreachable = "[service.kube-apiserver]\nlisten = []\ncluster-kubeconfig = \"/k\"";
    assert_eq!(only(unreachable).key, "service.kube-apiserver.cluster-kubeconfig");
    let any = "[service.web]\nlisten = [\"0.0.0.0:7445\"]\nallow-remote-clients = true";
    assert!(only(any).found.contains("127.0.0.1:7445"));
    let loops = "[service.web]\nlisten = [\"0.0.0.0:99\"]\nallow-remote-clients = true\n\
                 origin = \"127.0.0.1:99\"";
    assert_eq!(only(loops).key, "service.web.origin");
    let twice = format!("[mesh]\nseeds = [\"{NODE}@a:1\", \"{NODE}@b:1\"]");
    assert_eq!((only(&twice).key.as_str(), only(&twice).column), ("mesh.seeds", 62));
    assert_eq!(only("[mesh]\nseeds = [\"cp-1\", \"cp-2\", \"cp-1\"]").column, 26);
    assert!(good("[mesh]\nseeds = [\"cp-1\", \"cp-2\"]").mesh.seeds.len() == 2);
}

#[test]
fn the_reference_is_a_settings_file() {
    let text = reference();
    let defaults = Settings::defaults("fra".parse().unwrap());
    assert_eq!(parse(&text).as_ref(), Ok(&defaults));
    let is_commented = |line: &&str| line.starts_with('#') && !line.starts_with("# ");
    let commented = text.lines().filter(is_commented).filter(|line| line.len() > 1).count();
    let uncommented: String = text
        .lines()
        .map(|line| if is_commented(&line) { &line[1..] } else { line })
        .flat_map(|line| [line, "\n"])
        .collect();
    assert_eq!(parse(&uncommented).as_ref(), Ok(&defaults));
    assert_eq!(commented, 55, "keys with a default");
    let is_set = |line: &&str| line.starts_with(char::is_alphabetic);
    let set: Vec<&str> = text.lines().filter(is_set).collect();
    assert_eq!(set, ["site = \"fra\""]);
    assert!(text.lines().all(|line| line.chars().count() <= 100));
}

#[test]
fn the_examples_of_the_reference_are_accepted() {
    let text = reference();
    let examples: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# No default; for example: ")?.split_once(" = "))
        .collect();
    assert_eq!(examples.len(), 11);
    let health: Vec<String> = examples[6..].iter().map(|(k, v)| format!("{k} = {v}\n")).collect();
    let text_of = |(key, value): (&str, &str)| format!("{key} = {value}\n");
    good(&format!(
        "{}[events]\n{}{}[egress]\n{}[service.kube-apiserver]\n{}{}\
         [service.kube-apiserver.health]\n{}",
        text_of(examples[0]),
        text_of(examples[1]),
        text_of(examples[2]),
        text_of(examples[3]),
        text_of(examples[4]),
        text_of(examples[5]),
        health.concat()
    ));
    let more = text.split("is then required:\n").nth(1).unwrap();
    let more: String = more.lines().map(|line| format!("{}\n", line[1..].trim())).collect();
    assert_eq!(good(&more).services["registry"].health.path, "/v2/");
}

#[test]
fn json_has_the_shape_of_the_file() {
    let settings = good("name = \"a\"");
    let value = toml::Value::try_from(&settings).unwrap();
    assert_eq!(value["mesh"]["mtu"].as_integer(), Some(9200));
    assert_eq!(value["service"]["kube-apiserver"]["hold"].as_str(), Some("3s"));
    assert_eq!(value["service"]["kube-apiserver"]["health"]["fall"].as_integer(), Some(2));
    assert_eq!(parse(&toml::to_string(&value).unwrap()), Ok(settings));
}

#[test]
fn durations_have_units() {
    let parsed = |text: &str| text.parse::<Period>().map(|period| period.0.as_nanos()).ok();
    assert_eq!(parsed("500ms"), Some(500_000_000));
    assert_eq!(parsed("24h"), Some(86_400_000_000_000));
    assert_eq!(parsed("1d"), parsed("24h"));
    for text in ["", "5", "s", "-1s", "+1s", "1.5s", "1 s", "1S", "1w", "99999999999999d", "1sä"] {
        assert_eq!(parsed(text), None, "{text}");
    }
    assert_eq!(Period(Duration::from_secs(90)).to_string(), "90s");
    assert_eq!(Period(Duration::from_secs(120)).to_string(), "2m");
    assert_eq!(Period(Duration::MAX).to_string(), format!("{}ns", u64::MAX));
}

#[test]
fn the_valid_part_of_a_faulty_file_is_returned_beside_its_problems() {
    let text = "site = \"fra\"\nnonsense = 1\n[admin]\nsocket = \"/run/x.sock\"\nhttp = 5\n";
    let (settings, problems) = parse_leniently(text, &Defaults::default());
    assert_eq!(settings.unwrap().admin.socket.to_str(), Some("/run/x.sock"));
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert_eq!(parse_with(text, &Defaults::default()), Err(problems));
    let (none, problems) =
        parse_leniently(&" ".repeat(MAX_SETTINGS_BYTES + 1), &Defaults::default());
    assert!(none.is_none() && problems.len() == 1);
}
