//! keepalived and haproxy of Debian on the same hosts, as kubeadm's guide on high availability
//! (docs/ha-considerations.md of kubernetes/kubeadm) sets them up as services.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use meshport_tests::process::{Process, meshport};
use meshport_tests::wait;
use tempfile::TempDir;

use super::faults::{Group, Part};
use super::wires::{NODES, Wires};
use super::{SETTLE, V4};

/// The port of haproxy, `APISERVER_DEST_PORT` of the guide.
const PORT: u16 = 8443;

/// Processes end before their namespaces do.
#[derive(Debug)]
pub(super) struct Rival {
    running: BTreeMap<(&'static str, &'static str), Process>,
    folder: TempDir,
    wires: Wires,
}

impl Rival {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut rival = Self { running: BTreeMap::new(), folder, wires: Wires::new() };
        for name in NODES {
            rival.start(name, Part::Apiserver);
        }
        for name in NODES {
            rival.start_haproxy(name);
            rival.start(name, Part::Daemon);
        }
        rival
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&mut self, name: &'static str, program: &'static str, arguments: &[&str]) {
        let executable = match program {
            "apiserver" => meshport().to_string_lossy().into_owned(),
            _ => program.to_owned(),
        };
        let mut command = self.wires.host(name).command(&executable);
        let log = self.path(&format!("{program}-{name}.log"));
        let process = Process::start(program, command.args(arguments), &log);
        self.running.insert((name, program), process);
    }

    fn start_haproxy(&mut self, name: &'static str) {
        let servers = NODES.map(|node| {
            let number = Wires::number(node);
            format!("    server {node} 10.77.0.{number}:6443 check verify none\n")
        });
        let config = self.path(&format!("haproxy-{name}.cfg"));
        fs::write(&config, HAPROXY.to_owned() + &servers.concat()).expect("the folder is there");
        self.run(name, "haproxy", &["-db", "-f", &config.to_string_lossy()]);
    }

    fn start_keepalived(&mut self, name: &'static str) {
        let script = self.path("check_apiserver.sh");
        write_script(&script);
        let (state, priority) = if name == NODES[0] { ("MASTER", 101) } else { ("BACKUP", 100) };
        let text = format!(
            "global_defs {{\n    router_id LVS_DEVEL\n    script_user root\n}}\n\
             vrrp_script check_apiserver {{\n  script \"{}\"\n  interval 3\n  weight -2\n  \
             fall 10\n  rise 2\n}}\n\
             vrrp_instance VI_1 {{\n    state {state}\n    interface lan\n    \
             virtual_router_id 51\n    priority {priority}\n    authentication {{\n        \
             auth_type PASS\n        auth_pass 42\n    }}\n    virtual_ipaddress {{\n        \
             {V4}\n    }}\n    track_script {{\n        check_apiserver\n    }}\n}}\n",
            script.display()
        );
        let file = |what: &str| self.path(&format!("{what}-{name}")).to_string_lossy().into_owned();
        let (config, pid, child) = (file("keepalived.conf"), file("pid"), file("vrrp.pid"));
        fs::write(&config, text).expect("the folder is there");
        // What was killed leaves its number, and the address.
        let _ = (fs::remove_file(&pid), fs::remove_file(&child));
        let arguments = ["-n", "-l", "-P", "-f", &config, "-p", &pid, "-r", &child];
        self.run(name, "keepalived", &arguments);
    }
}

impl Group for Rival {
    fn wires(&self) -> &Wires {
        &self.wires
    }

    fn target(&self) -> SocketAddr {
        SocketAddr::new(V4.parse().expect("an address"), PORT)
    }

    fn authority(&self) -> PathBuf {
        self.path("pki").join("ca.crt")
    }

    fn processes(&self, name: &str, part: Part) -> Vec<String> {
        match part {
            Part::Daemon => self.wires.processes(name, Some("keepalived")),
            Part::Apiserver => self.wires.processes(name, Some("meshport")),
        }
    }

    fn start(&mut self, name: &'static str, part: Part) {
        match part {
            Part::Daemon => {
                if self.wires.processes(name, Some("haproxy")).is_empty() {
                    self.start_haproxy(name);
                }
                self.start_keepalived(name);
            }
            Part::Apiserver => {
                let listen = format!("10.77.0.{}:6443", Wires::number(name));
                let (pki, port) = (self.path("pki"), self.path(&format!("{name}.port")));
                let (pki, file) = (pki.to_string_lossy(), port.to_string_lossy());
                let _ = fs::remove_file(&port);
                let names = ["stand-in", "--name", name, "--listen", &listen];
                let files = ["--pki", &pki, "--port-file", &file];
                self.run(name, "apiserver", &[&names[..], &files].concat());
                wait::until("the apiserver tells its port", SETTLE, || fs::read(&port).ok());
            }
        }
    }

    fn set_clock(&mut self, _: &str, _: &str) -> bool {
        false
    }
}

fn write_script(path: &Path) {
    let text = format!(
        "#!/bin/sh\nerrorExit() {{\n    echo \"*** $*\" 1>&2\n    exit 1\n}}\n\
         curl -sfk --max-time 2 https://localhost:{PORT}/healthz -o /dev/null || \
         errorExit \"Error GET https://localhost:{PORT}/healthz\"\n"
    );
    fs::write(path, text).expect("the folder is there");
    fs::set_permissions(path, Permissions::from_mode(0o755)).expect("it is ours");
}

/// The guide's file up to the servers; on one thread, since there are two processors here.
const HAPROXY: &str = "\
global
    log stdout format raw local0
    nbthread 1
defaults
    mode                    http
    log                     global
    option                  httplog
    option                  dontlognull
    option http-server-close
    option forwardfor       except 127.0.0.0/8
    option                  redispatch
    retries                 1
    timeout http-request    10s
    timeout queue           20s
    timeout connect         5s
    timeout client          35s
    timeout server          35s
    timeout http-keep-alive 10s
    timeout check           10s
frontend apiserver
    bind *:8443
    mode tcp
    option tcplog
    default_backend apiserverbackend
backend apiserverbackend
    option httpchk
    http-check connect ssl
    http-check send meth GET uri /healthz
    http-check expect status 200
    mode tcp
    balance     roundrobin
";
