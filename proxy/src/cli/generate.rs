//! `meshport generate`: files for other programs that run or use meshport.
//!
//! Each output is a template with a few values inserted. It begins with its purpose, what to change
//! and the page that explains it. No template contains a secret.

mod monitoring;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use meshport_config::TextError;

use super::output;
use meshport_daemon::Error;

/// `meshport generate`
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// The file to print
    #[arg(value_enum, value_name = "WHAT")]
    pub(crate) what: What,
    /// The local address that clients use
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7445")]
    pub(crate) address: SocketAddr,
    /// The DNS name of the apiserver, where the file needs one
    #[arg(long, value_name = "NAME", default_value = "api.example.com")]
    pub(crate) name: PlainWord,
    /// The container image of the pods
    #[arg(long, value_name = "IMAGE", default_value = concat!(
        "registry.example.com/meshport:", env!("CARGO_PKG_VERSION")))]
    pub(crate) image: PlainWord,
    /// The program's path on the nodes, for the systemd unit
    #[arg(long, value_name = "PATH", default_value = "/usr/local/bin/meshport")]
    pub(crate) binary: PlainWord,
    /// Monitoring: the output format
    #[arg(long, value_enum, default_value = "rules")]
    pub(crate) format: monitoring::Format,
    /// Monitoring: where the pages of docs/ are, for the runbook links of alerts
    #[arg(long, value_name = "URL", default_value = "https://docs.example.com/meshport")]
    pub(crate) runbooks: PlainWord,
}

/// The kinds of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    /// A systemd unit for the daemon, without root and in a sandbox
    Systemd,
    /// A drop-in of the unit for nodes that hold virtual addresses
    SystemdVip,
    /// The daemon as a static pod of the kubelet
    StaticPod,
    /// The daemon as a DaemonSet with minimal rights
    Daemonset,
    /// kubeadm: configuration of the first control-plane node
    KubeadmInit,
    /// kubeadm: configuration of a node that joins
    KubeadmJoin,
    /// Cluster API (v1beta2): files and hooks of a KubeadmControlPlane and its workers
    Clusterapi,
    /// k3s: configuration of servers and agents
    K3s,
    /// k0s: configuration of controllers
    K0s,
    /// RKE2: configuration of servers and agents
    Rke2,
    /// Talos: a patch of the machine configuration
    Talos,
    /// The way back from apiservers to nodes: EgressSelectorConfiguration and what goes with it
    Egress,
    /// Alerts for Prometheus or a dashboard for Grafana, see --format
    Monitoring,
}

/// A value that means the same in YAML, in a unit and in a shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlainWord(String);

impl FromStr for PlainWord {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
        if text.is_empty() || !text.chars().all(is_plain) {
            return Err(TextError::form("a plain word", text, "letters, digits and . _ - / : @"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for PlainWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl GenerateArgs {
    fn template(&self) -> String {
        let template = match self.what {
            What::Monitoring => return monitoring::generate(self.format, &self.runbooks.0),
            What::Systemd => include_str!("generate/meshport.service"),
            What::SystemdVip => include_str!("generate/systemd-vip.conf"),
            What::StaticPod => include_str!("generate/static-pod.yaml"),
            What::Daemonset => include_str!("generate/daemonset.yaml"),
            What::KubeadmInit => include_str!("generate/kubeadm-init.yaml"),
            What::KubeadmJoin => include_str!("generate/kubeadm-join.yaml"),
            What::Clusterapi => include_str!("generate/clusterapi.yaml"),
            What::K3s => include_str!("generate/k3s.yaml"),
            What::K0s => include_str!("generate/k0s.yaml"),
            What::Rke2 => include_str!("generate/rke2.yaml"),
            What::Talos => include_str!("generate/talos.yaml"),
            What::Egress => include_str!("generate/egress.yaml"),
        };
        template.to_owned()
    }
}

pub(crate) fn run(args: &GenerateArgs) -> Result<(), Error> {
    output::answer(&generate(args)?)
}

/// What the unit lets the daemon execute: the program's folder if it contains only the program, so
/// that a replaced program can be executed without a restart; otherwise only the program.
fn executable(binary: &str) -> &str {
    match Path::new(binary).parent() {
        Some(folder) if folder.file_name() == Path::new(binary).file_name() => {
            folder.to_str().unwrap_or(binary)
        }
        _ => binary,
    }
}

/// The template with the values in it.
///
/// # Errors
/// [`Error::Usage`] for an address other machines could reach, or a path that is not absolute.
fn generate(args: &GenerateArgs) -> Result<String, Error> {
    if !args.address.ip().is_loopback() {
        return Err(Error::Usage(format!(
            "{} is not a loopback address; this node's clients need one",
            args.address
        )));
    }
    if !args.binary.0.starts_with('/') {
        return Err(Error::Usage(format!("{} is not an absolute path", args.binary)));
    }
    let values = [
        ("@ADDRESS@", args.address.to_string()),
        ("@IP@", args.address.ip().to_string()),
        ("@PORT@", args.address.port().to_string()),
        ("@NAME@", args.name.to_string()),
        ("@IMAGE@", args.image.to_string()),
        ("@BINARY@", args.binary.to_string()),
        ("@EXECUTABLE@", executable(&args.binary.0).to_owned()),
    ];
    let template = args.template();
    Ok(values.iter().fold(template, |text, (mark, value)| text.replace(mark, value)))
}
