use std::fmt::Debug;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use meshport_config::{AuthorityKey, Settings, Terms};
use meshport_mesh::Shards;
use meshport_state::{Identity, KnownRenewals, NextIdentity};
use rand_core::OsRng;
use tokio::time::timeout;

use super::*;
use crate::Handle;
use crate::admin::credentials::{MandateRequest, RenewRequest, RotateKeyRequest};
use crate::driver::answers::{Answer, Ask};
use crate::driver::commands::Command;
use crate::driver::write_queue::{MAX_WRITES, Snapshot};
use crate::identity::tests::{next_at, secrets};
use crate::node::{Environment, Node, Process};
use crate::tcp::{Host, memory};
use crate::testing::until;
use crate::vip::sockets::VipSockets;

/// Timeout for an answer of this process.
const SOON: Duration = Duration::from_secs(20);
const DAY_S: u64 = 86_400;

/// A node with this identity, and the values that it wants stored, which nobody does.
fn node(identity: &Identity) -> (Node, mpsc::Receiver<Write>) {
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let environment = Environment {
        shards: Shards::bind(loopback, 1500, 1).expect("a free port"),
        host: Host::Memory(memory::Host::default()),
        seed: [7; 32],
        generation: 1,
        seeds: Vec::new(),
        directory: None,
        revocations: Revocations::default(),
        renewals: KnownRenewals::default(),
        nodes: None,
        vip_sockets: VipSockets::default(),
    };
    let (writer, writes) = mpsc::channel(MAX_WRITES);
    let process = Process { writer: Some(writer), ..Process::default() };
    let settings = Settings::defaults("fra".parse().expect("a site"));
    (Node::start_with(&settings, identity, environment, process).expect("it starts"), writes)
}

/// The error of a request that is refused at once.
async fn refusal<R: Answer<Reply: Debug>>(handle: &Handle, request: R) -> String {
    let answer = timeout(SOON, handle.ask(request)).await.expect("it is answered at once");
    answer.expect_err("it is refused").to_string()
}

/// An identity that began a minute ago.
fn identity(now: UnixSeconds) -> Identity {
    let own = next_at(1, None, UnixSeconds(now.0 - 60));
    let NextIdentity { node_key, record_key, credential } = own;
    Identity { node_key, record_key, credential, secrets: secrets() }
}

#[tokio::test]
async fn a_key_and_a_credential_are_refused_while_either_is_being_written() {
    let now = clock::wall();
    let (node, mut writes) = node(&identity(now));
    let renew = move || RenewRequest { credential: next_at(1, None, now).credential.to_text() };
    let rotate = move || {
        let identity = next_at(2, Some(1), now).to_text().to_string();
        RotateKeyRequest { identity, overlap_s: 60 }
    };
    for is_key in [false, true] {
        let handle = node.handle();
        let asked = tokio::spawn(async move {
            match is_key {
                true => handle.ask(rotate()).await.map(drop),
                false => handle.ask(renew()).await.map(drop),
            }
        });
        let write = writes.recv().await.expect("it runs");
        assert_eq!(matches!(write, Write::Key(_)), is_key, "{write:?}");
        let handle = node.handle();
        for said in [refusal(&handle, renew()).await, refusal(&handle, rotate()).await] {
            assert!(said.contains("another change is being written"), "{is_key}: {said}");
        }
        node.controls.commands.send(Command::Stored(write)).await.expect("it runs");
        asked.await.expect("no panic").expect("it is in use");
    }
}

#[tokio::test]
async fn a_credential_is_refused_once_the_writer_takes_no_more() {
    let now = clock::wall();
    let (node, mut writes) = node(&identity(now));
    writes.close();
    let credential = next_at(1, None, now).credential.to_text();
    let said = refusal(&node.handle(), RenewRequest { credential }).await;
    assert!(said.contains("this daemon is stopping"), "{said}");
}

#[tokio::test]
async fn a_mandate_is_used_once_it_is_stored() {
    let now = clock::wall();
    let own = identity(now);
    let terms = Terms {
        issuer: own.credential.node,
        roles: own.credential.roles.clone(),
        site: None,
        lifetime_s: 30 * DAY_S,
        from: now,
        until: now.saturating_add(90 * DAY_S),
    };
    let authority = AuthorityKey::from_bytes([9; 32]);
    let line = |terms: &Terms| {
        let mandate = Mandate::create(&authority, terms, &mut OsRng).expect("it fits");
        mandate.to_text().expect("it fits").to_string()
    };
    let foreign = Terms { issuer: next_at(2, None, now).credential.node, ..terms.clone() };
    let (foreign, mandate) = (line(&foreign), line(&terms));
    for is_stored in [false, true] {
        let (node, mut writes) = node(&own);
        let handle = node.handle();
        let said = refusal(&handle, MandateRequest { mandate: foreign.clone() }).await;
        assert!(said.contains("the mandate is for node"), "{said}");
        let (asker, request) = (handle.clone(), MandateRequest { mandate: mandate.clone() });
        let asked = tokio::spawn(async move { asker.ask(request).await });
        let write = writes.recv().await.expect("it runs");
        assert!(matches!(write, Write::Mandate(_)), "{write:?}");
        let said = refusal(&handle, MandateRequest { mandate: mandate.clone() }).await;
        assert!(said.contains("another change is being written"), "{said}");
        let until = async || {
            let status = handle.status().await.expect("it runs");
            status.renewal.mandate_ends_at
        };
        assert_eq!(until().await, None);
        let written = match is_stored {
            true => Command::Stored(write),
            false => Command::NotStored(write, "no space".to_owned()),
        };
        node.controls.commands.send(written).await.expect("it runs");
        let answer = asked.await.expect("no panic");
        assert_eq!(answer.is_ok_and(|it| it.is_new && it.is_stored), is_stored);
        assert_eq!(until().await, is_stored.then_some(terms.until));
    }
}

#[tokio::test]
async fn a_failed_write_is_a_finding_until_one_succeeds() {
    let (node, _writes) = node(&identity(clock::wall()));
    let write = || Write::Directory(Snapshot { directory: Vec::new(), generation: 1 });
    let found = async || {
        let findings = node.handle().status().await.expect("it runs").findings;
        findings.into_iter().find(|it| it.id == "MP118").map(|it| it.detail)
    };
    assert_eq!(found().await, None);
    let why = "cannot write /x/directory: no space".to_owned();
    let failed = Command::NotStored(write(), why.clone());
    node.controls.commands.send(failed).await.expect("it runs");
    until("it is reported", async || found().await.is_some_and(|it| it.ends_with(&why))).await;
    node.controls.commands.send(Command::Stored(write())).await.expect("it runs");
    until("it is over", async || found().await.is_none()).await;
}
