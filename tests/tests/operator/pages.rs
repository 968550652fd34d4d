//! The instructions of the pages on kubeadm, k0s and Cluster API, executed: their configurations
//! are checked, generated files have the fields that they name, and their commands run on emulated
//! machines.

mod machines;

use std::fs;
use std::path::Path;
use std::process::Command;

use meshport_tests::manual;
use meshport_tests::process::{meshport, run, run_ok};
use serde_json::{Value, json};

const KUBEADM: &str = "kubeadm.md";
const K0S: &str = "k0s.md";
const CLUSTER_API: &str = "cluster-api.md";
const NAME: &str = "api.example.com";
/// How a command writes a file.
const HERE: [&str; 2] = ["<<'END'\n", "\nEND\n"];

fn cli(arguments: &[&str]) -> String {
    run_ok(&meshport().to_string_lossy(), arguments)
}

/// The documents of a YAML file.
fn yaml(text: &str) -> Vec<Value> {
    let parse = |one| yaml_serde::from_str(one).unwrap_or_else(|error| panic!("{error}: {one}"));
    text.split("\n---\n").map(parse).collect()
}

fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    value.pointer(path).unwrap_or_else(|| panic!("{path} is missing in {value:#}"))
}

/// Whether there is something at a path that is written with points.
fn has(value: &Value, path: &str) -> bool {
    value.pointer(&format!("/{}", path.replace('.', "/"))).is_some()
}

/// The settings in a page: separate blocks, and files that its commands write.
pub(crate) fn settings(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for block in manual::blocks(page) {
        match block.language.as_str() {
            "toml" => found.push(block.text),
            "sh" => found.extend(block.text.split(HERE[0]).skip(1).map(|rest| {
                let (file, _) = rest.split_once(HERE[1]).expect("a file has an end");
                format!("{file}\n")
            })),
            _ => {}
        }
    }
    found
}

fn roles(settings: &str) -> String {
    let settings: toml::Table = settings.parse().expect("TOML");
    let services = settings.get("service").and_then(|it| it.as_table()).into_iter().flatten();
    let offered = services.filter(|(_, service)| service.get("origin").is_some());
    let mut roles = "node".to_owned();
    offered.for_each(|(name, _)| roles += &format!(",origin:{name}"));
    if settings.contains_key("virtual-address") {
        roles += ",vip";
    }
    roles
}

/// What `meshport check` says of settings on a node with their roles.
pub(crate) fn checked(folder: &Path, settings: &str) -> Value {
    let (state, file) = (folder.join("state"), folder.join("meshport.toml"));
    fs::write(&file, settings).expect("the folder can be written");
    let (state, file) = (state.to_string_lossy(), file.to_string_lossy());
    let roles = roles(settings);
    let place = ["--site", "fra", "--name", "cp-1", "--role", &roles, "--state-dir", &state];
    cli(&[&["init"][..], &place].concat());
    let check = ["check", "--json", "--state-dir", &state, &file];
    let output = run(&meshport().to_string_lossy(), &check);
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
#[ignore = "needs the program: ./tests/run operator"]
fn settings_in_the_pages_have_no_problem_on_a_node_with_their_roles() {
    let mut all = Vec::new();
    for page in [KUBEADM, K0S, CLUSTER_API] {
        all.extend(settings(page).into_iter().map(|settings| (page, settings)));
    }
    let [control_plane, _] = &yaml(&cli(&["generate", "clusterapi"]))[..] else { panic!("two") };
    let file = at(control_plane, "/spec/kubeadmConfigSpec/files/0/content");
    all.push((CLUSTER_API, file.as_str().expect("text").to_owned()));
    assert!(all.len() >= 6, "{all:?}");
    for (page, settings) in all {
        let folder = tempfile::tempdir().expect("a folder");
        let report = checked(folder.path(), &settings);
        let of = |list: &str| report[list].as_array().cloned().unwrap_or_default();
        let said = [of("problems"), of("obstacles"), of("warnings")].concat();
        assert!(report["ok"] == true && said.is_empty(), "{page}: {said:?}\n{settings}");
    }
}

/// The command of a page that begins like this, with its continuation lines.
fn command(page: &str, title: &str, begin: &str) -> String {
    let blocks = manual::under(page, title, "sh").concat();
    let mut lines = blocks.lines().skip_while(|line| !line.starts_with(begin));
    let mut command = String::new();
    for line in lines.by_ref() {
        command += line;
        command.push('\n');
        let code = line.split(" #").next().unwrap_or_default().trim_end();
        if !code.ends_with(['|', '\\']) {
            return command;
        }
    }
    panic!("{page} has no command {begin} under {title}");
}

/// The file that it writes, or its output.
fn written(command: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink(meshport(), folder.path().join("meshport")).expect("a link");
    let mut shell = Command::new("sh");
    shell.args(["-euc", command]).current_dir(folder.path());
    let path = std::env::var("PATH").expect("a path");
    shell.env("PATH", format!("{}:{path}", folder.path().display()));
    let output = shell.output().expect("a shell can be run");
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && problem.is_empty(), "{command}: {problem}");
    let files = fs::read_dir(folder.path()).expect("a folder").flatten();
    let file = files.map(|it| it.path()).find(|it| it.extension().is_some());
    file.map_or_else(
        || String::from_utf8_lossy(&output.stdout).into_owned(),
        |file| fs::read_to_string(file).expect("text"),
    )
}

#[test]
#[ignore = "needs the program: ./tests/run operator"]
fn the_files_of_kubeadm_have_the_endpoint_of_their_section() {
    let endpoint = format!("{NAME}:7445");
    for (first, others, endpoint) in [
        ("The first control-plane node", "Other nodes", "127.0.0.1:7445"),
        ("With a virtual address", "With a virtual address", &endpoint),
    ] {
        let init = yaml(&written(&command(KUBEADM, first, "meshport generate kubeadm-init")));
        let [init, cluster] = &init[..] else { panic!("two documents") };
        assert_eq!(
            (at(init, "/kind"), at(cluster, "/kind")),
            (&json!("InitConfiguration"), &json!("ClusterConfiguration"))
        );
        assert_eq!(at(cluster, "/controlPlaneEndpoint"), endpoint);
        let names = at(cluster, "/apiServer/certSANs").as_array().expect("a list");
        for name in ["127.0.0.1", NAME] {
            assert!(names.iter().any(|it| it == name), "{name} is not in {names:?}");
        }
        let join = yaml(&written(&command(KUBEADM, others, "meshport generate kubeadm-join")));
        let [join] = &join[..] else { panic!("one document") };
        assert_eq!(at(join, "/discovery/bootstrapToken/apiServerEndpoint"), endpoint);
        assert!(has(join, "controlPlane.certificateKey"), "{join:#}");
    }
}

#[test]
#[ignore = "needs the program: ./tests/run operator"]
fn the_file_of_k0s_has_the_fields_that_the_page_names() {
    let file = yaml(&written(&command(K0S, "Controllers", "meshport generate k0s"))).remove(0);
    let page = meshport_tests::repository::root().join("docs").join(K0S);
    let page = fs::read_to_string(page).expect("a page");
    let quoted = page.split('`').skip(1).step_by(2);
    let mut named = quoted.filter(|it| it.starts_with("spec.")).collect::<Vec<_>>();
    named.sort_unstable();
    named.dedup();
    let left_out = "spec.network.controlPlaneLoadBalancing";
    assert_eq!(named, ["spec.api.externalAddress", "spec.api.sans", left_out]);
    for path in named {
        assert_eq!(has(&file, path), path != left_out, "{path}: {file:#}");
    }
    assert_eq!(at(&file, "/spec/api/externalAddress"), NAME);
    assert_eq!(at(&file, "/spec/network/nodeLocalLoadBalancing/enabled"), false);
}
