//! How each rival is configured: the minimum that its manual requires, with nothing slowed down.

use std::net::SocketAddr;
use std::process::Command;

use meshport_tests::netns::Namespace;
use meshport_tests::process::{Process, run_ok};
use meshport_tests::wireguard::{End, INNER, tunnel};

use crate::contenders::{Running, most_sessions, write};
use crate::testbed::{FAR, LOCAL, NEAR, SERVER, Testbed};

/// Bytes that nebula 1.6 adds to an IPv4 packet: IP 20, UDP 8, header 16, tag 16.
const NEBULA_OVERHEAD: u32 = 60;

/// haproxy on the near host, in front of one server.
pub(crate) fn haproxy(testbed: &Testbed, server: SocketAddr) -> Process {
    let config = testbed.file("haproxy.cfg");
    let most = most_sessions().min(20_000);
    write(
        &config,
        &format!(
            "global\n  maxconn {most}\n  nbthread 2\n\
             defaults\n  mode tcp\n  maxconn {most}\n  timeout connect 5s\n  timeout client 10m\n  \
             timeout server 10m\n\
             listen bench\n  bind {LOCAL}\n  server far {server}\n"
        ),
    );
    let mut command = testbed.near.command("haproxy");
    command.arg("-db").arg("-f").arg(&config);
    Process::start("haproxy", &mut command, &testbed.file("haproxy.log"))
}

/// A userspace WireGuard on both hosts, and haproxy through it.
pub(crate) fn wireguard(
    testbed: &Testbed,
    program: impl Fn(&Namespace, &str) -> Command,
) -> Running {
    let (near, far) = (NEAR.to_string(), FAR.to_string());
    let ends = [
        End { host: &testbed.near, address: &near, name: "near" },
        End { host: &testbed.far, address: &far, name: "far" },
    ];
    let mut processes = Vec::new();
    tunnel(ends, testbed.mtu, &testbed.folder, program, |name, command| {
        let log = testbed.file(&format!("wireguard-{name}.log"));
        processes.push(Process::start(name, command, &log));
    });
    processes.push(haproxy(testbed, inner_server()));
    Running { at: LOCAL, processes }
}

fn interface(name: &str) -> String {
    format!("mpb{}{}", std::process::id() % 1_000_000, &name[..1])
}

fn inner_server() -> SocketAddr {
    let address = format!("{}:{SERVER}", INNER[1]);
    address.parse().expect("an address")
}

/// nebula on both hosts, with its own authority, and haproxy through it.
pub(crate) fn nebula(testbed: &Testbed) -> Running {
    let file = |name: &str| testbed.file(name).to_string_lossy().into_owned();
    let (ca, ca_key) = (file("nebula-ca.crt"), file("nebula-ca.key"));
    run_ok("nebula-cert", &["ca", "-name", "bench", "-out-crt", &ca, "-out-key", &ca_key]);
    let mtu = testbed.mtu - NEBULA_OVERHEAD;
    let hosts = [(&testbed.near, "near", 0), (&testbed.far, "far", 1)];
    let mut processes: Vec<Process> = hosts
        .into_iter()
        .map(|(host, name, at)| {
            let (crt, key) =
                (file(&format!("nebula-{name}.crt")), file(&format!("nebula-{name}.key")));
            let ip = format!("{}/24", INNER[at]);
            let sign = ["sign", "-ca-crt", &ca, "-ca-key", &ca_key, "-name", name, "-ip", &ip];
            run_ok("nebula-cert", &[&sign[..], &["-out-crt", &crt, "-out-key", &key]].concat());
            let settings = testbed.file(&format!("nebula-{name}.yml"));
            let device = interface(name);
            let text = format!(
                "pki: {{ca: {ca}, cert: {crt}, key: {key}}}\n\
                 static_host_map: {{\"{}\": [\"{FAR}:4242\"], \"{}\": [\"{NEAR}:4242\"]}}\n\
                 lighthouse: {{am_lighthouse: false, hosts: []}}\n\
                 listen: {{host: 0.0.0.0, port: 4242}}\n\
                 tun: {{dev: {device}, mtu: {mtu}}}\n\
                 firewall:\n  outbound: [{{port: any, proto: any, host: any}}]\n  \
                 inbound: [{{port: any, proto: any, host: any}}]\n",
                INNER[1], INNER[0]
            );
            write(&settings, &text);
            let mut command = host.command("nebula");
            command.arg("-config").arg(&settings);
            Process::start(name, &mut command, &testbed.file(&format!("nebula-{name}.log")))
        })
        .collect();
    processes.push(haproxy(testbed, inner_server()));
    Running { at: LOCAL, processes }
}

/// stunnel as a client on the near host and as a server on the far one.
pub(crate) fn stunnel(testbed: &Testbed) -> Running {
    let certificate = testbed.file("stunnel.pem");
    let made = rcgen::generate_simple_self_signed(["bench".to_owned()]).expect("a certificate");
    write(&certificate, &format!("{}{}", made.signing_key.serialize_pem(), made.cert.pem()));
    let common = "foreground = yes\npid =\nsocket = l:TCP_NODELAY=1\nsocket = r:TCP_NODELAY=1\n";
    let far = format!(
        "{common}[bench]\naccept = {FAR}:7443\nconnect = 127.0.0.1:{SERVER}\ncert = {}\n",
        certificate.display()
    );
    let near = format!("{common}[bench]\nclient = yes\naccept = {LOCAL}\nconnect = {FAR}:7443\n");
    let start = |host: &Namespace, name: &str, text: &str| {
        let settings = testbed.file(&format!("stunnel-{name}.conf"));
        write(&settings, text);
        let mut command = host.command("stunnel");
        command.arg(&settings);
        Process::start(name, &mut command, &testbed.file(&format!("stunnel-{name}.log")))
    };
    let far = start(&testbed.far, "far", &far);
    Running { at: LOCAL, processes: vec![start(&testbed.near, "near", &near), far] }
}

/// An SSH connection with a port forward. On the far side the process is the child that serves it.
pub(crate) fn ssh(testbed: &Testbed) -> Running {
    let file = |name: &str| testbed.file(name).to_string_lossy().into_owned();
    for name in ["ssh-host", "ssh-client"] {
        run_ok("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &file(name)]);
    }
    let settings = testbed.file("sshd.conf");
    let text = format!(
        "HostKey {}\nListenAddress {FAR}:7022\nAuthorizedKeysFile {}\nPidFile none\n\
         StrictModes no\nUsePAM no\nPermitRootLogin yes\nMaxSessions 1000\n",
        file("ssh-host"),
        file("ssh-client.pub")
    );
    write(&settings, &text);
    // Its folder of privilege separation; there already where the service runs.
    run_ok("mkdir", &["-p", "/run/sshd"]);
    let mut command = testbed.far.command("/usr/sbin/sshd");
    command.args(["-D", "-e", "-f"]).arg(&settings);
    let server = Process::start("sshd", &mut command, &testbed.file("sshd.log"));
    let mut command = testbed.near.command("ssh");
    command.args(["-N", "-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "BatchMode=yes"]);
    command.args(["-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectionAttempts=20", "-i"]);
    command.args([&file("ssh-client"), "-p", "7022"]);
    command.args(["-L", &format!("{LOCAL}:127.0.0.1:{SERVER}"), &format!("root@{FAR}")]);
    let client = Process::start("ssh", &mut command, &testbed.file("ssh.log"));
    Running { at: LOCAL, processes: vec![client, server] }
}
