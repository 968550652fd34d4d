//! Keys and certificates of a cluster, in files, as kubeadm would lay them out.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde_json::json;

/// The token of the cluster's administrator.
pub const ADMIN_TOKEN: &str = "b5c7f2-admin-token-of-the-test";

/// The authority of one cluster and the certificates it signed.
#[derive(Debug)]
pub struct Pki {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Pki {
    /// Creates the authority, the key of service accounts and the tokens in `folder`.
    pub fn new(folder: &Path) -> Self {
        fs::create_dir_all(folder).expect("a folder for certificates");
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "cluster authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority = params.self_signed(&key).expect("an authority");
        let pki = Self { folder: folder.to_owned(), issuer: Issuer::new(params, key) };
        pki.write("ca.crt", &authority.pem());
        let accounts = KeyPair::generate().expect("a key");
        pki.write("sa.key", &accounts.serialize_pem());
        pki.write("sa.pub", &accounts.public_key_pem());
        pki.write("tokens.csv", &format!("{ADMIN_TOKEN},admin,u1,\"system:masters\"\n"));
        pki.write("health.token", ADMIN_TOKEN);
        pki
    }

    /// A file of this folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A file of this folder, as an argument or a value in a kubeconfig.
    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("temporary folders have plain names").to_owned()
    }

    /// `NAME.crt` and `NAME.key` of a server with these names and addresses.
    pub fn server(&self, name: &str, names: &[String]) {
        let mut params = CertificateParams::new(names).expect("names of a server");
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(name, &params);
    }

    /// `NAME.crt` and `NAME.key` of a client, whose user and group Kubernetes reads from it.
    pub fn client(&self, name: &str, user: &str, group: Option<&str>) {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(name, &params);
    }

    /// A kubeconfig `NAME.conf` that leads to `server` as the client `client` of this folder, or as
    /// the administrator by token; its path.
    pub fn kubeconfig(&self, name: &str, server: &str, client: Option<&str>) -> PathBuf {
        let user = match client {
            None => json!({ "token": ADMIN_TOKEN }),
            Some(client) => json!({
                "client-certificate": self.text(&format!("{client}.crt")),
                "client-key": self.text(&format!("{client}.key")),
            }),
        };
        let cluster = json!({ "server": server, "certificate-authority": self.text("ca.crt") });
        let document = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{ "name": "test", "cluster": cluster }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "me" } }],
            "users": [{ "name": "me", "user": user }],
        });
        let name = format!("{name}.conf");
        self.write(&name, &format!("{document:#}\n"));
        self.path(&name)
    }

    fn sign(&self, name: &str, params: &CertificateParams) {
        let key = KeyPair::generate().expect("a key");
        let leaf = params.signed_by(&key, &self.issuer).expect("a certificate");
        self.write(&format!("{name}.crt"), &leaf.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("the folder can be written");
    }
}
