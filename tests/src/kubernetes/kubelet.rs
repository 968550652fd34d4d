//! A real kubelet with containerd on a host: pods in the host's network, with an image built here
//! from a static busybox.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use super::{Cluster, LOCAL, START_LIMIT, program};
use crate::process::run_ok;
use crate::wait;

/// The only image, for sandboxes and containers.
pub const IMAGE: &str = "meshport.test/busybox:1";
/// Applets in the image, in addition to busybox itself.
const APPLETS: [&str; 9] = ["sh", "cat", "cp", "dd", "head", "seq", "sha256sum", "sleep", "tar"];

/// How long a node's containers may take to end after it.
const END_LIMIT: Duration = Duration::from_secs(10);

/// A node's leftovers on the machine: its folder, and the control groups of its containers. Removed
/// on drop, after its processes have ended.
#[derive(Debug)]
pub(super) struct Remains {
    folder: PathBuf,
    /// Control groups that existed before.
    before: BTreeSet<PathBuf>,
}

impl Remains {
    fn of(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), before: groups().collect() }
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        // Containers end shortly after the namespace of their containerd.
        wait::within(END_LIMIT, || {
            for group in groups().filter(|group| !self.before.contains(group)) {
                // A group that still has a process is retried.
                let _ = fs::remove_dir(group);
            }
            let all_ended = groups().all(|group| self.before.contains(&group));
            let is_removed = fs::remove_dir_all(&self.folder).is_ok() || !self.folder.exists();
            (all_ended && is_removed).then_some(())
        });
    }
}

/// The control groups of a containerd's kubelet containers, in each hierarchy.
fn groups() -> impl Iterator<Item = PathBuf> {
    let folders = |of: &Path| {
        let listed = fs::read_dir(of).into_iter().flatten().flatten();
        let paths = listed.filter(|it| it.file_type().is_ok_and(|kind| kind.is_dir()));
        paths.map(|it| it.path()).collect::<Vec<_>>()
    };
    let hierarchies = folders(Path::new("/sys/fs/cgroup")).into_iter();
    hierarchies.flat_map(move |hierarchy| folders(&hierarchy.join("k8s.io")))
}

impl Cluster {
    /// Starts containerd and a kubelet on a host; the kubelet listens where the plan says and knows
    /// only the local address as its apiserver. Its pods use the host's network. Waits until its
    /// node is registered.
    ///
    /// # Panics
    /// If something does not start; control groups of version 1 are needed.
    pub fn start_real_kubelet(&mut self, at: usize) {
        let folder = self.path("node");
        self.remains.push(Remains::of(&folder));
        let socket = self.start_containerd(at, &folder);
        let image = image(&folder);
        let ctr = |arguments: &[&str]| {
            let socket = socket.to_string_lossy();
            let all = [&["-a", &*socket, "-n", "k8s.io"], arguments].concat();
            run_ok(&program("ctr").to_string_lossy(), &all)
        };
        ctr(&["images", "import", &image.to_string_lossy()]);

        let node = self.node_name(at);
        let client = format!("kubelet-{node}");
        self.pki.client(&client, &format!("system:node:{node}"), Some("system:nodes"));
        let config = self.pki.kubeconfig(&client, LOCAL, Some(&client));
        let endpoint = format!("unix://{}", socket.display());
        let flags = [
            format!("--kubeconfig={}", config.display()),
            format!("--hostname-override={node}"),
            format!("--node-ip={}", self.host(at).address),
            format!("--address={}", self.plan.kubelet_address),
            format!("--root-dir={}", folder.join("kubelet").display()),
            format!("--cert-dir={}", folder.join("certificates").display()),
            format!("--client-ca-file={}", self.pki.text("ca.crt")),
            format!("--container-runtime-endpoint={endpoint}"),
            format!("--image-service-endpoint={endpoint}"),
        ];
        let fixed = [
            "--container-runtime=remote",
            "--healthz-port=0",
            "--read-only-port=0",
            "--anonymous-auth=false",
            "--authorization-mode=AlwaysAllow",
            "--cgroup-driver=cgroupfs",
            // No control groups for pods: this machine's groups stay unchanged.
            "--cgroups-per-qos=false",
            "--enforce-node-allocatable=",
            "--eviction-hard=",
            "--fail-swap-on=false",
            "--resolv-conf=",
            "--volume-plugin-dir=/nonexistent",
        ];
        let flags: Vec<String> = flags.into_iter().chain(fixed.map(str::to_owned)).collect();
        // It bind-mounts its folder onto itself.
        let mut command = self.host(at).command_with_cgroups("unshare");
        command.arg("--mount").arg(program("kubelet")).args(&flags).env("HOME", &folder);
        self.adopt(&client, &mut command);
        let kubectl = self.kubectl_direct(1);
        wait::until("the kubelet has registered its node", START_LIMIT, || {
            assert!(self.process(&client).is_running(), "the kubelet ended");
            kubectl.run(&["get", "node", &node]).status.success().then_some(())
        });
    }

    /// Its socket, once it answers.
    fn start_containerd(&mut self, at: usize, folder: &Path) -> PathBuf {
        fs::create_dir_all(folder).expect("the cluster's folder can be written");
        let socket = folder.join("containerd.sock");
        let programs = program("runc").parent().expect("a program is in a folder").to_owned();
        let text = format!(
            "version = 2\nroot = {root:?}\nstate = \"/run/containerd\"\n\
             disabled_plugins = [\"io.containerd.internal.v1.opt\"]\n\
             [grpc]\naddress = {socket:?}\n\
             [plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"{IMAGE}\"\n\
             disable_apparmor = true\nrestrict_oom_score_adj = true\n\
             [plugins.\"io.containerd.grpc.v1.cri\".cni]\nconf_dir = {cni:?}\nbin_dir = {cni:?}\n\
             [plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"native\"\n\
             [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n\
             runtime_type = \"io.containerd.runc.v2\"\n\
             [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n\
             BinaryName = {runc:?}\nRoot = \"/run/runc\"\n",
            root = folder.join("root"),
            cni = folder.join("cni"),
            runc = programs.join("runc"),
        );
        let config = folder.join("containerd.toml");
        fs::write(&config, text).expect("the folder can be written");
        // The first process of a namespace: shims and containers end with it. /run is its own.
        let mut command = self.host(at).command_with_cgroups("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-ec"]);
        command.arg("mount -t tmpfs tmpfs /run; exec \"$0\" \"$@\"").arg(program("containerd"));
        command.arg("--config").arg(&config);
        // It finds its shim and runc on the path.
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", programs.display()));
        self.adopt("containerd", &mut command);
        wait::until("containerd answers", START_LIMIT, || {
            let mut ctr = Command::new(program("ctr"));
            let output = ctr.arg("-a").arg(&socket).arg("version").output().ok()?;
            output.status.success().then_some(())
        });
        socket
    }
}

/// An image as `docker save` writes it: one layer with busybox and links to it.
fn image(folder: &Path) -> PathBuf {
    let layer = folder.join("layer");
    for part in ["bin", "tmp", "etc"] {
        fs::create_dir_all(layer.join(part)).expect("the folder can be written");
    }
    fs::copy(program("busybox"), layer.join("bin/busybox")).expect("busybox is copied");
    for applet in APPLETS {
        symlink("busybox", layer.join("bin").join(applet)).expect("a link");
    }
    let made = folder.join("image");
    fs::create_dir_all(&made).expect("the folder can be written");
    let tar = |of: &Path, to: &Path, names: &[&str]| {
        let (of, to) = (of.to_string_lossy(), to.to_string_lossy());
        run_ok("tar", &[&["-C", &*of, "--owner=0", "--group=0", "-cf", &*to], names].concat());
    };
    tar(&layer, &made.join("layer.tar"), &["."]);
    let sum = run_ok("sha256sum", &[&made.join("layer.tar").to_string_lossy()]);
    let sum = sum.split(' ').next().expect("a sum comes first");
    let config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": { "Env": ["PATH=/bin"], "Cmd": ["sleep", "1000000"] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{sum}")] },
    });
    fs::write(made.join("config.json"), config.to_string()).expect("written");
    let manifest =
        json!([{ "Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"] }]);
    fs::write(made.join("manifest.json"), manifest.to_string()).expect("written");
    let whole = folder.join("image.tar");
    tar(&made, &whole, &["config.json", "manifest.json", "layer.tar"]);
    whole
}
