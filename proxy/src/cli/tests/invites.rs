//! The names in an invite, and meshes that are made in two attempts.

use std::collections::BTreeSet;

use meshport_config::{MAX_SEEDS, Mandate, NodeId, Revocation, Revocations, Revoked, Seed, Terms};

use meshport_discovery::{Discovery, DiscoveryConfig, LocalNode, snapshot_of};
use rand_core::OsRng;

use super::*;
use meshport_daemon::admin::api::SeedRow;
use meshport_state::Identity;

/// A member that a daemon knows.
fn row(number: u8, site: &str, endpoints: &[String]) -> SeedRow {
    let endpoints = endpoints.iter().map(|it| it.parse().expect("an endpoint")).collect();
    let node = NodeId::from_bytes([number; 32]);
    SeedRow {
        seed: Seed::new(node, endpoints).expect("it has some"),
        name: format!("node-{number}").parse().expect("a name"),
        site: site.parse().expect("a site"),
        is_origin: number <= 3,
        is_relay: false,
        own: false,
    }
}

fn invite_knowing(
    machines: &Machines,
    flags: &[&str],
    known: &[SeedRow],
) -> Result<InviteReport, Error> {
    let args = invite_args(&[&["--site", "nyc"], flags].concat());
    invite::invite(&args, &machines.path("first"), &args.endpoints, known, NOW)
}

#[test]
fn an_invite_names_members_that_the_daemon_knows() {
    let machines = Machines::new();
    machines.init("first", FIRST).expect("a mesh");
    let at = |number: u8| [format!("192.0.2.{number}:51820")];
    let site = |number: u8| if number.is_multiple_of(2) { "fra" } else { "nyc" };
    let mut known: Vec<SeedRow> = (1..=12).map(|it| row(it, site(it), &at(it))).collect();
    known[0].own = true;
    // Nothing is taken from another node's daemon.
    let refused = message(invite_knowing(&machines, &[], &known));
    assert!(refused.contains("contact no member"), "{refused}");
    let own = machines.state("first").credential().expect("loads").expect("it is a node");
    known[0].seed.node = own.node;
    let text = |number: u8| known[usize::from(number) - 1].seed.to_string();

    // No flags are needed: the daemon knows this node's addresses.
    let report = invite_knowing(&machines, &[], &known).expect("a line");
    assert_eq!(report.seeds.len(), MAX_SEEDS);
    assert_eq!(report.seeds[..3], [1, 2, 3].map(text), "itself, then origins by sites");
    let invite = meshport_config::Invite::parse(&report.invite).expect("a line");
    assert_eq!(invite.seeds.len(), MAX_SEEDS);

    // Seeds from a person come first, also by name.
    let twelfth = text(12);
    let flags = [HERE, &["--seed", "node-9", "--seed", &twelfth]].concat();
    let report = invite_knowing(&machines, &flags, &known).expect("a line");
    assert!(report.seeds[0].ends_with("@203.0.113.5:51820"), "{:?}", report.seeds);
    assert_eq!(report.seeds[1..3], [9, 12].map(text));
    let unknown = message(invite_knowing(&machines, &["--seed", "node-99"], &known));
    assert!(unknown.contains("node-99") && unknown.contains("peers --seeds"), "{unknown}");
    assert!(unknown.contains("? For a node"), "{unknown}");

    // Members that the daemon knows come before seeds in the state folder.
    let stored: Vec<Seed> = (21..=28).map(|it| row(it, "sin", &at(it)).seed).collect();
    machines.state("first").store_seeds(&stored).expect("stored");
    let report = invite_knowing(&machines, &[], &known[..5]).expect("a line");
    assert_eq!(report.seeds[..5], [1, 2, 3, 4, 5].map(text));
    assert_eq!(report.seeds[5..], [0, 1, 2].map(|at: usize| stored[at].to_string()));
}

#[test]
fn without_a_daemon_the_saved_directory_names_members() {
    let machines = Machines::new();
    machines.init("first", FIRST).expect("a mesh");
    let state = machines.state("first");
    assert!(saved_directory::members(&state, NOW).expect("nothing is saved").is_empty());
    let line = machines.invite("first", HERE).expect("a line").invite;
    let mut members = vec![("first", "192.0.2.1:51820")];
    for (name, at) in [("a", "192.0.2.2:51820"), ("b", "192.0.2.3:51820")] {
        machines.join(name, &line, &["--name", name]).expect("it joins");
        members.push((name, at));
    }
    let members = members.iter().map(|(name, at)| {
        let Identity { credential, record_key, .. } =
            machines.state(name).identity(NOW).expect("whole");
        let (node, mesh, now) = (credential.node, credential.mesh, clock::now());
        let me = LocalNode { credential, record_key };
        let mut member = Discovery::new(DiscoveryConfig::default(), me, 1, [1; 32], now);
        member.set_endpoints(vec![at.parse().expect("an address")], now);
        let entry = member.directory().get(&node).expect("it knows itself");
        (mesh, entry.credential.clone(), entry.state.clone().expect("it has signed"))
    });
    let members: Vec<_> = members.collect();
    let nodes = members.iter().map(|(_, credential, state)| (&**credential, &**state));
    state.store_directory(&snapshot_of(nodes, &members[0].0, NOW)).expect("stored");

    let rows = saved_directory::members(&state, NOW).expect("whole");
    let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!((names, rows[0].own), (vec!["cp-1", "a", "b"], true));
    let report = invite_knowing(&machines, &["--seed", "b"], &rows).expect("b is known");
    let seeds: Vec<&str> =
        report.seeds.iter().filter_map(|seed| Some(seed.split_once('@')?.1)).collect();
    assert_eq!(seeds, ["192.0.2.1:51820", "192.0.2.3:51820", "192.0.2.2:51820"]);
    let much_later = NOW.saturating_add(3 * 365 * DAY);
    assert!(saved_directory::members(&state, much_later).expect("all have ended").is_empty());
    state.store_directory(b"damaged").expect("stored");
    assert!(message(saved_directory::members(&state, NOW)).contains("directory"));
}

/// Only what an issuer will renew is short, as after a renewal.
#[test]
fn a_credential_is_short_where_a_mandate_made_here_covers_the_node() {
    let machines = Machines::new();
    machines.init("first", FIRST).expect("a mesh");
    let state = machines.state("first");
    let days = |flags: &[&str]| {
        let report = machines.invite("first", &[HERE, flags].concat()).expect("a line");
        report.credential_ttl_s / DAY
    };
    assert_eq!(days(&[]), 365);
    let own = state.credential().expect("whole").expect("it is a node");
    let authority = state.authority_key().expect("whole").expect("it is here");
    let delegate = |roles: &str, site: &str, days: u64, lasts_days: u64| {
        let terms = Terms {
            issuer: own.node,
            roles: roles.parse().expect("roles"),
            site: Some(site.parse().expect("a site")),
            lifetime_s: days * DAY,
            from: NOW,
            until: NOW.saturating_add(lasts_days * DAY),
        };
        let mandate = Mandate::create(&authority, &terms, &mut OsRng).expect("good");
        state.note_mandate(&mandate).expect("stored");
        mandate
    };
    let mandate = delegate("node,relay", "nyc", 30, 365);
    assert_eq!(days(&[]), 30);
    assert_eq!(days(&["--role", "relay"]), 30);
    assert_eq!(days(&["--credential-ttl", "90d"]), 90);
    // Another role, and a mandate for it in another site.
    delegate("node,origin:x", "fra", 30, 365);
    for role in ["node,origin:x", "operator"] {
        assert_eq!(days(&["--role", role]), 365, "{role}");
    }
    // One that ends before the first renewal, and a later one.
    delegate("node", "nyc", 30, 29);
    assert_eq!(days(&[]), 30);
    delegate("node", "nyc", 7, 365);
    assert_eq!(days(&[]), 7);
    // Its turns are revoked one by one.
    let mut revoked = Revocations::default();
    for turn in mandate.turns() {
        revoked.add(Revocation::issue(&authority, Revoked::Invite(turn.key), NOW));
    }
    state.store_revocations(&revoked).expect("stored");
    assert_eq!(days(&["--role", "relay"]), 365);
    assert_eq!(days(&[]), 7);
    revoked.add(Revocation::issue(&authority, Revoked::Node(own.node), NOW));
    state.store_revocations(&revoked).expect("stored");
    assert_eq!(days(&[]), 365);
    // Revoking the keys does not need the bounds, which a later release may write differently.
    let (file, turns) = (state.path().join("mandates"), state.turns_of(&own.node).expect("whole"));
    let text = fs::read_to_string(&file).expect("it is there");
    fs::write(&file, text.replace(&format!(" {} ", 30 * DAY), " month ")).expect("written");
    assert_eq!(state.turns_of(&own.node).expect("whole"), turns);
}

/// A leaked one permits one name, and revoking it removes one machine.
#[test]
fn invites_for_many_machines_are_bound_to_a_name_each() {
    let machines = Machines::new();
    machines.init("first", FIRST).expect("a mesh");
    let (first, out) = (machines.path("first"), machines.path("invites"));
    let (folder, state) = (out.to_string_lossy(), first.to_string_lossy());
    let flags = ["--site", "nyc", "--count", "3", "--name", "worker", "--out", &folder];
    let args = invite_args(&[&flags[..], HERE, &["--state-dir", &state]].concat());
    invite::run(&args).expect("three lines");
    let line = |number: u8| {
        let path = out.join(format!("worker-{number}.invite"));
        fs::read_to_string(path).expect("it is there")
    };
    let keys: BTreeSet<String> = (1..=3)
        .map(|number| {
            let invite = meshport_config::Invite::parse(line(number).trim()).expect("a line");
            let name = invite.delegation.grant.name.as_ref().expect("it has one");
            assert_eq!(name.as_str(), format!("worker-{number}"));
            invite.delegation.key.to_string()
        })
        .collect();
    assert_eq!(keys.len(), 3, "each has a key of its own");
    machines.join_at("w2", &line(2), &[], clock::wall()).expect("under its own name");
    let refused = message(machines.join_at("w3", &line(3), &["--name", "other"], clock::wall()));
    assert!(refused.contains("worker-3"), "{refused}");
    // They already exist.
    assert!(message(invite::run(&args)).contains("worker-1.invite"));
    let nameless = invite_args(&[&["--site", "nyc", "--count", "3"], HERE].concat());
    assert!(message(invite::run(&nameless)).contains("--name"));
}

#[test]
fn an_invite_that_would_be_too_long_names_fewer_members() {
    let machines = Machines::new();
    machines.init("first", FIRST).expect("a mesh");
    let long = [&*"a".repeat(60); 4].join(".");
    let endpoints: Vec<String> = (1..=4).map(|port| format!("{long}:{port}")).collect();
    let known: Vec<SeedRow> = (1..=8).map(|it| row(it, "fra", &endpoints)).collect();
    let report = invite_knowing(&machines, &[], &known).expect("a line");
    assert!((1..MAX_SEEDS).contains(&report.seeds.len()), "{}", report.seeds.len());
}

#[test]
fn a_mesh_whose_making_was_cut_short_is_made_by_the_next_call() {
    const WRITTEN: [&str; 4] = ["mesh.secret", "node.key", "record.key", "authority.key"];
    let machines = Machines::new();
    let first = machines.init("first", FIRST).expect("a mesh");
    for left in 0..=WRITTEN.len() {
        let name = format!("cut-{left}");
        StateDir::create(machines.path(&name)).expect("made");
        for file in &WRITTEN[..left] {
            let (from, to) = (machines.path("first"), machines.path(&name));
            fs::copy(from.join(file), to.join(file)).expect("copied");
        }
        let again = machines.init(&name, FIRST).expect("it goes on");
        let state = machines.state(&name);
        let identity = state.identity(NOW).expect("whole");
        assert_eq!(identity.credential.mesh, again.mesh);
        let authority = state.authority_key().expect("loads").expect("it is there");
        assert_eq!(authority.public(), again.mesh);
        // An existing authority may have signed something.
        assert_eq!(again.mesh == first.mesh, left == WRITTEN.len());
        assert!(message(machines.init(&name, FIRST)).contains("already exists"));
    }
    machines.init("alone", &["--authority-only"]).expect("an authority");
    assert!(message(machines.init("alone", &["--authority-only"])).contains("already exists"));
}

#[test]
fn a_recreated_mesh_forgets_what_the_old_one_reported() {
    let machines = Machines::new();
    let former = machines.init("first", FIRST).expect("a mesh");
    let state = machines.state("first");
    let authority = state.authority_key().expect("loads").expect("it is there");
    let mut revoked = Revocations::default();
    let gone = Revoked::Node(NodeId::from_bytes([7; 32]));
    revoked.add(Revocation::issue(&authority, gone, NOW));
    state.store_revocations(&revoked).expect("stored");
    fs::write(machines.path("first").join("node.next"), "of the old mesh").expect("written");
    let again = machines.init("first", &[FIRST, &["--force"]].concat()).expect("asked for");
    assert_ne!(again.mesh, former.mesh);
    state.settle_next().expect("there is nothing to do");
    assert_eq!(state.identity(NOW).expect("it starts").credential.mesh, again.mesh);
}
