//! Controller managers and schedulers, which talk only to the local address.

use std::path::Path;

use super::{Cluster, LOCAL, program};

impl Cluster {
    /// Starts a controller manager on a host.
    pub fn start_controllers(&mut self, name: &str, at: usize) {
        let flags = self.controllers_flags(name);
        self.start(name, at, &program("kube-controller-manager"), &flags);
    }

    /// Starts one that speaks HTTP/1.1, with a connection for each kind of object that it watches,
    /// like clients without HTTP/2.
    pub fn start_controllers_without_http2(&mut self, name: &str, at: usize) {
        let program = program("kube-controller-manager").to_string_lossy().into_owned();
        let mut all = vec!["DISABLE_HTTP2=1".to_owned(), program];
        all.extend(self.controllers_flags(name));
        self.start(name, at, Path::new("env"), &all);
    }

    /// Starts a scheduler with leader election.
    pub fn start_scheduler(&mut self, name: &str, at: usize) {
        let flags = self.leader_flags(name, "scheduler");
        self.start(name, at, &program("kube-scheduler"), &flags);
    }

    fn controllers_flags(&self, name: &str) -> Vec<String> {
        let mut flags = self.leader_flags(name, "controllers");
        flags.extend([
            "--use-service-account-credentials=true".to_owned(),
            format!("--service-account-private-key-file={}", self.pki.text("sa.key")),
            format!("--root-ca-file={}", self.pki.text("ca.crt")),
        ]);
        flags
    }

    /// Flags of a program that competes for a lease, with the certificate of this client.
    fn leader_flags(&self, name: &str, client: &str) -> Vec<String> {
        let config = self.pki.kubeconfig(client, LOCAL, Some(client));
        vec![
            format!("--kubeconfig={}", config.display()),
            format!("--authentication-kubeconfig={}", config.display()),
            format!("--authorization-kubeconfig={}", config.display()),
            "--leader-elect=true".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--cert-dir={}", self.path(name).display()),
        ]
    }
}
