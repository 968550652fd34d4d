//! Verbs where no daemon answers on the socket.

use super::*;

/// A first machine, as of now.
pub(super) fn first() -> (Machines, String) {
    let machines = Machines::new();
    let Verb::Init(args) = verb(&[&["init"], FIRST].concat()) else { panic!("it is init") };
    init::init(&args, &machines.path("first"), clock::wall()).expect("a mesh");
    let folder = machines.path("first").to_string_lossy().into_owned();
    (machines, folder)
}

#[test]
fn a_missing_socket_names_the_process_that_uses_the_state_folder() {
    let (machines, folder) = first();
    let ask = || match verb(&["peers", "--state-dir", &folder]) {
        Verb::Peers(args) => query::peers(&args),
        other => panic!("{other:?}"),
    };
    assert!(message(ask()).contains("Start the daemon with `meshport run`"));
    let state = machines.state("first");
    let _lock = state.lock().expect("it is free");
    let error = ask().expect_err("it has another socket");
    let said = error.to_string();
    assert!(said.contains(&format!("process {} uses", std::process::id())), "{said}");
    assert!(said.contains(&folder) && !said.contains("meshport run"), "{said}");
    assert_eq!(error.exit_code(), 6);
}

#[test]
fn a_missing_socket_of_a_machine_that_cannot_run_a_daemon_has_its_next_step() {
    use meshport_config::{Revocation, Revocations, Revoked};

    let (machines, folder) = first();
    let asked = |folder: &str| match verb(&["peers", "--state-dir", folder]) {
        Verb::Peers(args) => message(query::peers(&args)),
        other => panic!("{other:?}"),
    };
    let said = asked(&machines.path("never").to_string_lossy());
    assert!(said.contains("meshport join") && !said.contains("meshport run"), "{said}");

    let state = machines.state("first");
    let node = state.credential().expect("it can be read").expect("it has one").node;
    let authority = state.authority_key().expect("it can be read").expect("it is the first");
    let mut all = Revocations::default();
    all.add(Revocation::issue(&authority, Revoked::Node(node), clock::wall()));
    state.store_revocations(&all).expect("stored");
    let said = asked(&folder);
    assert!(said.contains("was revoked") && said.contains("meshport reset"), "{said}");
    assert!(!said.contains("Start the daemon"), "{said}");
}

#[test]
fn a_named_state_folder_goes_with_a_socket_or_a_configuration() {
    let (machines, folder) = first();
    let config = machines.path("meshport.toml");
    let config_text = config.to_string_lossy();
    let daemon = |flags: &[&str]| match verb(&[&["renew", "--state-dir", &folder], flags].concat())
    {
        Verb::Renew(args) => args.daemon,
        other => panic!("{other:?}"),
    };
    let socket = |flags: &[&str]| {
        let daemon = daemon(flags);
        assert_eq!(daemon.state().expect("it is there").path(), machines.path("first"));
        daemon.client().expect("it can be found").socket().to_owned()
    };
    assert_eq!(socket(&["--socket", "/run/of/its/own.sock"]), Path::new("/run/of/its/own.sock"));
    for (text, expected) in [
        ("site = \"fra\"\n[admin]\nsocket = \"/run/x.sock\"\n", PathBuf::from("/run/x.sock")),
        ("site = \"fra\"\nstate-dir = \"/srv/x\"\n", machines.path("first/meshport.sock")),
    ] {
        fs::write(&config, text).expect("written");
        assert_eq!(socket(&["--config", &config_text]), expected);
    }
}
