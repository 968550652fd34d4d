use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::cli::Cli;
use crate::cli::kubeconfig::yaml;

fn args(what: What) -> GenerateArgs {
    let word = |text: &str| text.parse().expect("a word");
    GenerateArgs {
        what,
        address: "127.0.0.1:7445".parse().expect("an address"),
        name: word("api.example.com"),
        image: word("registry.example.com/meshport:9"),
        binary: word("/opt/meshport"),
        format: monitoring::Format::Rules,
        runbooks: word("https://docs.example.com/meshport"),
    }
}

fn text(what: What) -> String {
    generate(&args(what)).expect("generated")
}

fn documents(what: What) -> Vec<Value> {
    let text = text(what);
    text.split("\n---\n")
        .map(|one| yaml::parse(one).unwrap_or_else(|error| panic!("{what:?}: {error}\n{one}")))
        .collect()
}

fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    value.pointer(path).unwrap_or_else(|| panic!("{path} is missing in {value:#}"))
}

/// The pages for operators: their file names and texts.
fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let paths = std::fs::read_dir(root).expect("the pages").map(|entry| entry.expect("a page"));
    let mut pages = Vec::new();
    for path in paths.map(|entry| entry.path()) {
        if path.extension().is_some_and(|extension| extension == "md") {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            pages.push((name, std::fs::read_to_string(&path).expect("text")));
        }
    }
    pages
}

/// The code blocks of one language, with the names of their pages.
fn blocks(language: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (name, page) in pages() {
        for block in page.split("```").skip(1).step_by(2) {
            if let Some(code) = block.strip_prefix(language).and_then(|it| it.strip_prefix('\n')) {
                found.push((name.clone(), code.to_owned()));
            }
        }
    }
    found
}

#[test]
fn each_says_what_it_is_and_which_page_explains_it() {
    let pages = pages();
    for what in What::value_variants() {
        let text = text(*what);
        let head: String = text.lines().take_while(|line| line.starts_with('#')).collect();
        assert!(head.contains("To change:"), "{what:?}: {head}");
        let named = head.split("docs/").nth(1).and_then(|rest| rest.split_once(".md"));
        let (named, _) = named.unwrap_or_else(|| panic!("{what:?} names no page"));
        let page = pages.iter().find(|(name, _)| *name == format!("{named}.md"));
        let (_, page) = page.unwrap_or_else(|| panic!("there is no page {named}"));
        let verb = what.to_possible_value().expect("it is shown").get_name().to_owned();
        assert!(page.contains(&format!("meshport generate {verb}")), "{named} and {verb}");
        let mut words = text.split(|c: char| c.is_whitespace() || c == '"');
        let is_left = |word: &str| word.len() > 1 && word.starts_with('@') && word.ends_with('@');
        assert_eq!(words.find(|word| is_left(word)), None, "{what:?}");
    }
}

#[test]
fn values_are_put_in_and_checked() {
    assert!(text(What::Systemd).contains("\nExecStart=/opt/meshport run\n"));
    assert!(text(What::StaticPod).contains("image: registry.example.com/meshport:9\n"));
    let mut outside = args(What::K3s);
    outside.address = "10.0.0.1:7445".parse().expect("an address");
    assert!(generate(&outside).expect_err("refused").to_string().contains("loopback"));
    let mut relative = args(What::Systemd);
    relative.binary = "meshport".parse().expect("a word");
    assert!(generate(&relative).expect_err("refused").to_string().contains("absolute"));
    for bad in ["", "a b", "a\nb", "a\"b", "%h", "$x"] {
        assert!(bad.parse::<PlainWord>().is_err(), "{bad:?}");
    }
}

/// Only the folder of a program alone is executable as a whole.
#[test]
fn the_unit_executes_the_programs_own_folder_or_the_program() {
    for (binary, executable) in [
        ("/usr/lib/meshport/meshport", "/usr/lib/meshport"),
        ("/usr/local/bin/meshport", "/usr/local/bin/meshport"),
        ("/meshport", "/meshport"),
    ] {
        let mut args = args(What::Systemd);
        args.binary = binary.parse().expect("a word");
        let unit = generate(&args).expect("generated");
        assert!(unit.contains(&format!("\nExecStart={binary} run\n")), "{unit}");
        assert!(unit.contains(&format!("\nExecPaths={executable} -/lib ")), "{unit}");
    }
}

/// The drop-in changes lines that the unit has, and contains what the daemon reports as missing.
#[test]
fn the_drop_in_for_virtual_addresses_fits_the_unit() {
    let (unit, drop_in) = (text(What::Systemd), text(What::SystemdVip));
    let is_setting = |line: &&str| !line.starts_with(['#', '[']) && !line.is_empty();
    let settings: Vec<&str> = drop_in.lines().filter(is_setting).collect();
    assert_eq!(settings.len(), 6);
    for setting in settings {
        let (key, _) = setting.split_once('=').expect("a setting");
        assert!(unit.contains(&format!("\n{key}=")), "{key}");
        assert!(!unit.contains(&format!("\n{setting}\n")), "{setting} is in the unit already");
    }
}

/// The minimal rights of a pod.
fn assert_small_rights(spec: &Value) {
    assert_eq!(at(spec, "/hostNetwork"), true);
    assert_eq!(at(spec, "/automountServiceAccountToken"), false);
    assert_eq!(at(spec, "/securityContext/seccompProfile/type"), "RuntimeDefault");
    for shared in ["hostPID", "hostIPC"] {
        assert_eq!(spec.get(shared), None);
    }
    let lists = ["initContainers", "containers"];
    for container in lists.iter().filter_map(|list| spec[list].as_array()).flatten() {
        let capabilities = at(container, "/securityContext/capabilities");
        assert_eq!(*capabilities, json!({"drop": ["ALL"]}));
        assert_eq!(at(container, "/securityContext/allowPrivilegeEscalation"), false);
        assert_eq!(at(container, "/securityContext/readOnlyRootFilesystem"), true);
        assert_eq!(container.pointer("/securityContext/privileged"), None);
        for mount in container["volumeMounts"].as_array().expect("mounts") {
            let mut volumes = spec["volumes"].as_array().expect("volumes").iter();
            assert!(volumes.any(|volume| volume["name"] == mount["name"]), "{mount}");
        }
    }
}

#[test]
fn pods_have_the_smallest_rights() {
    let pod = &documents(What::StaticPod)[0];
    let daemonset = &documents(What::Daemonset)[1];
    let selector = at(daemonset, "/spec/selector/matchLabels");
    assert_eq!(selector, at(daemonset, "/spec/template/metadata/labels"));
    for spec in [at(pod, "/spec"), at(daemonset, "/spec/template/spec")] {
        assert_small_rights(spec);
        assert_eq!(at(spec, "/securityContext/runAsNonRoot"), true);
    }
    assert_small_rights(at(&documents(What::Talos)[0], "/machine/pods/0/spec"));
}

#[track_caller]
fn assert_understood(words: &[String]) {
    let parsed = <Cli as clap::Parser>::try_parse_from(words);
    assert!(parsed.is_ok(), "{words:?}: {:?}", parsed.map(drop));
}

#[test]
fn the_pods_run_commands_that_are_understood_and_no_shell() {
    let pod = documents(What::StaticPod).remove(0);
    let template = at(&documents(What::Daemonset)[1], "/spec/template").clone();
    let talos = at(&documents(What::Talos)[0], "/machine/pods/0").clone();
    for container in [&pod, &template, &talos].map(|it| at(it, "/spec/containers/0").clone()) {
        let lists = ["command", "args"].map(|list| container[list].as_array().cloned());
        let words = lists.into_iter().flatten().flatten();
        let words = words.map(|it| it.as_str().expect("a word").replace("$(NODE_NAME)", "w-1"));
        let words: Vec<String> = words.collect();
        assert_understood(&words);
        // Not over HTTP: other users of the node can take the port.
        let probe = at(&container, "/livenessProbe").as_object().expect("a probe");
        assert!(!probe.contains_key("httpGet") && !probe.contains_key("tcpSocket"), "{probe:?}");
        let words = at(&probe["exec"], "/command").as_array().expect("words").iter();
        let words: Vec<String> = words.map(|it| it.as_str().expect("a word").to_owned()).collect();
        assert_eq!(words[..2], ["meshport", "health"]);
        assert_understood(&words);
    }
    for spec in [&pod, &template, &talos].map(|it| at(it, "/spec")) {
        assert_eq!(spec.get("initContainers"), None);
    }
}

#[test]
fn every_way_leads_to_the_local_address() {
    let [_, cluster] = &documents(What::KubeadmInit)[..] else { panic!("two documents") };
    assert_eq!(at(cluster, "/controlPlaneEndpoint"), "127.0.0.1:7445");
    assert_eq!(at(cluster, "/apiServer/certSANs/0"), "127.0.0.1");
    let join = &documents(What::KubeadmJoin)[0];
    let endpoint = at(join, "/discovery/bootstrapToken/apiServerEndpoint");
    assert_eq!(endpoint, "127.0.0.1:7445");
    let [first, further, agent] = &documents(What::K3s)[..] else { panic!("three documents") };
    assert_eq!(at(first, "/tls-san/0"), "127.0.0.1");
    assert_eq!(at(further, "/server"), "https://127.0.0.1:7445");
    assert_eq!(at(agent, "/server"), "https://127.0.0.1:7445");
    assert_eq!(at(agent, "/disable-apiserver-lb"), true);
    let [first, further] = &documents(What::Rke2)[..] else { panic!("two documents") };
    assert_eq!(at(first, "/tls-san/0"), "127.0.0.1");
    assert_eq!(at(further, "/server"), "https://127.0.0.1:9346");
    let k0s = &documents(What::K0s)[0];
    assert_eq!(at(k0s, "/spec/api/externalAddress"), "api.example.com");
    let talos = &documents(What::Talos)[0];
    assert_eq!(at(talos, "/cluster/controlPlane/endpoint"), "https://127.0.0.1:7445");
    assert_eq!(at(talos, "/machine/features/kubePrism/enabled"), false);
}

#[test]
fn configuration_inside_is_understood_by_meshport() {
    let [control_plane, workers] = &documents(What::Clusterapi)[..] else { panic!("two") };
    // The current version, which Cluster API 1.11 introduced.
    assert_eq!(at(control_plane, "/apiVersion"), "controlplane.cluster.x-k8s.io/v1beta2");
    assert_eq!(at(workers, "/apiVersion"), "bootstrap.cluster.x-k8s.io/v1beta2");
    let spec = at(control_plane, "/spec/kubeadmConfigSpec");
    let talos = &documents(What::Talos)[0];
    for toml in [at(spec, "/files/0/content"), at(talos, "/machine/files/0/content")] {
        let settings = meshport_config::parse(toml.as_str().expect("text")).expect("it is valid");
        let service = settings.services.values().next().expect("the apiserver");
        let origin = service.origin.as_ref().map(ToString::to_string);
        assert_eq!(origin.as_deref(), Some("127.0.0.1:6443"));
    }
    // The first control-plane node has nothing to wait for; a worker has.
    let waits = |commands: &Value| {
        let mut commands = commands.as_array().expect("commands").iter();
        commands.any(|it| it.as_str().expect("a command").starts_with("meshport wait"))
    };
    assert!(!waits(at(spec, "/preKubeadmCommands")));
    assert!(waits(at(workers, "/spec/template/spec/preKubeadmCommands")));
}

#[test]
fn configurations_in_the_pages_are_valid() {
    let blocks = blocks("toml");
    for (page, toml) in &blocks {
        let result = meshport_config::parse(toml);
        assert!(result.is_ok(), "{page}: {:?}\n{toml}", result.err());
    }
    assert!(blocks.len() >= 7, "{}", blocks.len());
}

#[test]
fn commands_in_the_pages_are_understood() {
    let mut commands = 0;
    for (page, code) in blocks("sh") {
        let code = code.replace("\\\n", " ");
        for command in code.split(['\n', '|']).flat_map(|line| line.split("&&")) {
            let words = command.split_whitespace();
            let words = words.take_while(|word| !word.starts_with(['#', '>', '<']));
            let words: Vec<&str> = words.collect();
            if words.first() != Some(&"meshport") {
                continue;
            }
            let parsed = <Cli as clap::Parser>::try_parse_from(&words);
            let parsed = parsed.map(drop).map_err(|error| error.to_string());
            assert_eq!(parsed, Ok(()), "{page}: {command}");
            commands += 1;
        }
    }
    assert!(commands >= 35, "{commands}");
}
