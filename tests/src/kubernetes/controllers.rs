//! Controller managers, which talk only to the local address.

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

    fn controllers_flags(&self, name: &str) -> Vec<String> {
        let config = self.pki.kubeconfig("controllers", LOCAL, Some("controllers"));
        vec![
            format!("--kubeconfig={}", config.display()),
            format!("--authentication-kubeconfig={}", config.display()),
            format!("--authorization-kubeconfig={}", config.display()),
            "--leader-elect=true".to_owned(),
            "--use-service-account-credentials=true".to_owned(),
            format!("--service-account-private-key-file={}", self.pki.text("sa.key")),
            format!("--root-ca-file={}", self.pki.text("ca.crt")),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--cert-dir={}", self.path(name).display()),
        ]
    }
}
