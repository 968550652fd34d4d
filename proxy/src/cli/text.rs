//! The examples and tables at the end of `--help`.

pub(super) const ROOT: &str = "\
GETTING STARTED:
  On the first machine, with an apiserver (its configuration: docs/install.md):
    meshport init --site fra --role node,origin:kube-apiserver
    meshport invite --site fra --endpoint 203.0.113.5:51820 > invite.txt
    meshport run

  On the second machine, with a copy of invite.txt:
    meshport join invite.txt
    meshport run
    curl -k https://127.0.0.1:7445/version

EXIT CODES:
    0  done, or the answer is yes
    1  the answer is no: a ping without reply, a wait that timed out
    2  the command line is invalid or cannot work
    3  the configuration has problems
    4  a key, credential, invite or the state folder was refused
    5  the system refused an address, a file or a socket
    6  no daemon answers, or it refused the request
    7  no upgrade: the daemon keeps serving
   70  a bug in meshport
  141  standard output was closed (SIGPIPE)

FILES:
                 root                          any other user
  configuration  /etc/meshport/meshport.toml   ~/.config/meshport/meshport.toml
  state folder   /var/lib/meshport             ~/.local/state/meshport
  socket         /run/meshport/meshport.sock   meshport/meshport.sock in
                                               $XDG_RUNTIME_DIR or state folder
";

pub(super) const FORWARD: &str = "\
EXAMPLES:
  The first time on a laptop, with an invite for the role operator in a file:
    meshport forward --invite invite.txt

  Later, with a kubeconfig that has the cluster under another address:
    meshport forward --exec -- kubectl get nodes
    meshport forward --kubeconfig ~/.kube/config
  and in another terminal:
    kubectl --context meshport get nodes

  Another service of the mesh, on a port of your choice:
    meshport forward --service registry --listen 127.0.0.1:5000

ENVIRONMENT OF THE COMMAND:
  KUBECONFIG         a file with the context, then the files with the user
  MESHPORT_ADDRESS   the local address, for programs without a kubeconfig

EXIT CODES:
  that of the command, or those of every command: meshport --help
";

pub(super) const DASHBOARD: &str = "\
EXAMPLES:
  The first time on a laptop, with an invite for the role operator in a file:
    meshport dashboard --invite invite.txt --open

  Later, starting with the page of one node:
    meshport dashboard worker-7 --open

EXIT CODES:
  0  ended by Ctrl-C   1  no member answered, or the node cannot be reached
";

pub(super) const INIT: &str = "\
EXAMPLES:
  A control-plane node that is also the first origin:
    meshport init --site fra --name cp-1 --role node,origin:kube-apiserver

  Only the authority, on a machine that stays offline:
    meshport init --authority-only --state-dir ./authority
";

pub(super) const INVITE: &str = "\
EXAMPLES:
  A worker in the same site; it reaches this node at that endpoint:
    meshport invite --site fra --endpoint 203.0.113.5:51820

  A control-plane node in another site, within the hour:
    meshport invite --site nyc --role node,origin:kube-apiserver --ttl 1h

  With the authority's key on a USB stick:
    meshport invite --site fra --authority /media/stick/authority.key

  Directly on the new machine:
    meshport invite --site fra | ssh worker-7 meshport join -

  For many machines, one invite each, valid for one name each:
    meshport invite --site fra --names machines.txt --out invites
    for name in $(cat machines.txt); do
      ssh root@$name meshport join --now - < invites/$name.invite
    done

  For an operator's laptop, used there with `meshport forward --invite FILE`:
    meshport invite --site fra --role operator --name laptop

SEEDS:
  An invite names up to eight members, so that a new node can join while some
  of them are down: this node, those of --seed, and others that the daemon here
  knows, origins and other sites first.
";

pub(super) const JOIN: &str = "\
EXAMPLES:
  With the output of `meshport invite` in a file, or on standard input:
    meshport join invite.txt
    meshport join --name worker-7 - < invite.txt

  With systemd and the package: join, start the service, wait for an apiserver:
    meshport join --now invite.txt

  Renew a credential that expires; the keys stay:
    meshport join --force invite.txt

An interrupted join continues when it is run again.
";

pub(super) const RUN: &str = "\
EXAMPLES:
  meshport run
  meshport run --config ./meshport.toml --log-level debug

  Join at the first start, as in a container:
    meshport run --join-file worker.invite

LOG:
  MESHPORT_LOG sets levels by part and overrides every other setting:
    MESHPORT_LOG=meshport_mesh=debug,info
";

pub(super) const CHECK: &str = "\
EXAMPLES:
  meshport check
  meshport check ./meshport.toml --json

  Every key with its meaning, unit, default and bounds:
    meshport check --reference
";

pub(super) const STATUS: &str = "\
EXAMPLES:
  meshport status
  meshport status --watch
  meshport status --json | jq '.services[0].chosen.name'

On a terminal, problems have a colour here and in routes, peers, explain,
credentials and doctor. NO_COLOR=1 turns colours off.
";

pub(super) const TOP: &str = "\
EXAMPLES:
  meshport top
  meshport top --every 5s
  ssh -t node-3 meshport top

For terminals of 80x24 or more. Only changes are drawn, at most twice a second.
NO_COLOR=1 also turns colours off. The page at http://127.0.0.1:7446/ shows the
same with a map.
";

pub(super) const DOCTOR: &str = "\
EXAMPLES:
  meshport doctor
  meshport doctor --short
  meshport doctor --explain MP203

  In a nightly job, also for warnings:
    meshport doctor --strict --json > doctor.json || send-alert

EXIT CODES:
  0  no error; with --strict, no warning either
  1  an error; with --strict, also a warning
  2  the command line is invalid

Findings have stable ids: MP1xx this machine, MP2xx the mesh, MP3xx services and
Kubernetes.
";

pub(super) const SUPPORT_BUNDLE: &str = "\
EXAMPLES:
  meshport support-bundle
  meshport support-bundle --output /tmp/bundle.tar.gz
  ssh worker-7 sudo meshport support-bundle --output - > worker-7.tar.gz

  Read it before you pass it on:
    tar -xzf bundle.tar.gz && less meshport-support-*/README.txt
";

pub(super) const ROUTES: &str = "\
EXAMPLES:
  meshport routes
  meshport routes --json | jq '.[0].origins[].name'
";

pub(super) const STATS: &str = "\
EXAMPLES:
  meshport stats
  meshport stats --csv > stats.csv
  meshport stats --json | jq '.[] | select(.kind == \"listener\")'

COLUMNS:
  ERRORS   listener: refused clients and those without an origin
           service: clients without an origin or beyond max-sessions
           origin: attempts that failed
  95 %     95 of 100 sessions got an origin's answer within this time
";

pub(super) const EXPLAIN: &str = "\
EXAMPLES:
  meshport explain
  meshport explain cp-2
  meshport explain --service kube-apiserver --json | jq '.[0].changes[0].cause'

COLUMNS:
  *          the origin of new sessions
  +          shares new sessions with it
  STANDING   healthy, or else, from better to worse:
             unproven   ready, but its path is not measured or its relay not
                        proven yet
             suspect    recent sessions were silent, refused or slow
             draining   drained by its operator
             doubtful   unready, stalled, or in an unknown state
             fallback   an address outside the mesh
             down       refuses, hangs, cannot be reached, or does not allow
                        this node
  COST       round-trip time plus penalties for loss and a relay; the lowest
             of equal standing comes first
  RTT        smoothed round-trip time through the mesh; - if not measured
  DEVIATION  mean deviation of single round trips from RTT
  PATH       own, direct, through a relay, outside the mesh, or dead
  EVIDENCE   score of recent silent, refused and slow sessions, 0 to 4; suspect
             from 1.5
";

pub(super) const PEERS: &str = "\
EXAMPLES:
  meshport peers
  meshport peers --json | jq '.[] | select(.liveness == \"down\").name'

  For `mesh.seeds`, or for `meshport invite --seed` on another machine; without
  a running daemon, from the saved directory:
    meshport peers --seeds
";

pub(super) const PING: &str = "\
EXAMPLES:
  meshport ping cp-1
  meshport ping cp-1 --count 20 --interval 200ms

Exit code 1 if no probe is answered.
";

pub(super) const WAIT: &str = "\
EXAMPLES:
  meshport wait
  meshport wait --service kube-apiserver --timeout 30s

Exit code 1 on timeout. Prints the obstacle if there is one after 3 s.
";

pub(super) const DRAIN: &str = "\
EXAMPLES:
  meshport drain
  meshport drain --wait 2m && systemctl stop kubelet

Exit code 1 if sessions of other nodes are still open after --wait.
";

pub(super) const HEALTH: &str = "\
EXAMPLES:
  meshport health           the daemon is alive
  meshport health --ready   each service in use has a healthy origin

EXIT CODES:
  0 yes, and it prints ok; 1 no; 6 no daemon answers
";

pub(super) const RELOAD: &str = "\
EXAMPLES:
  meshport check && meshport reload
  meshport reload --json
";

pub(super) const UPGRADE: &str = "\
EXAMPLES:
  meshport check && meshport upgrade
  systemctl kill --kill-who=main --signal=USR2 meshport

EXIT CODES:
  0  the successor serves
  1  it is not certain which process serves
  6  no daemon answers
  7  no upgrade: the daemon keeps serving
";

pub(super) const UNDRAIN: &str = "\
EXAMPLES:
  meshport undrain
  meshport undrain --service registry
";

pub(super) const REVOKE: &str = "\
EXAMPLES:
  On the machine with the authority's key and a daemon:
    meshport revoke worker-7
    meshport revoke leaked-invite.txt
    meshport revoke invite:9sRt...4k= --with-nodes
    meshport revoke cp-1 --issuer --since 7d

  With an offline authority, then on any node:
    meshport revoke 4WjD...9Q= --print --authority /media/stick/authority.key
    meshport revoke --import meshport-revocation-1.AbCd...
";

pub(super) const LEAVE: &str = "\
EXAMPLES:
  Before a machine is returned:
    meshport drain --wait 2m        # on an origin
    meshport leave --erase --yes
";

pub(super) const RESET: &str = "\
EXAMPLES:
  Before an image is copied to many machines, or on a machine that left:
    systemctl disable --now meshport
    meshport reset
";

pub(super) const CREDENTIALS: &str = "\
EXAMPLES:
  meshport credentials
  meshport credentials --json |
    jq '.[] | select(.validity == \"ends-soon\").name'

  In a nightly job, for the whole mesh:
    meshport credentials --any --within 14d > /dev/null || send-alert

COLUMNS:
  *           this node
  AGE         time since the credential was issued
  EXPIRES IN  time until other nodes refuse it
  STATUS      valid, expires soon, expired; revoked or replaced, with the time
  SECRET      number of the mesh secret that the node is known to have; it
              grows with each `meshport rotate-secret`
  KEY         short NodeId, or the key of a revoked invite
  -           not known, or not applicable
";

pub(super) const RENEW: &str = "\
EXAMPLES:
  On the machine with the authority's key:
    meshport renew

  On every other machine, with an invite for the same site and roles:
    meshport renew - < invite.txt
";

pub(super) const DELEGATE: &str = "\
EXAMPLES:
  Where the authority's key is, for a control plane with the role issuer:
    meshport delegate cp-1 --role node,origin:kube-apiserver,issuer \\
      > cp-1.mandate
  and on cp-1:
    meshport delegate --install - < cp-1.mandate

  Repeat this before the mandate ends; `status` warns in time.

  If cp-1 is stolen:
    meshport revoke cp-1
    meshport revoke cp-1 --issuer --since 7d
";

pub(super) const AUTHORITY: &str = "\
EXAMPLES:
  Right after `init`, a second key on other media, in case one is lost:
    meshport authority --add /media/safe/authority.key

  Every command that signs takes it:
    meshport invite --site fra --role node --authority /media/safe/authority.key

  Destroy a key that you replace; what it signed stays valid. A stolen one is
  revoked with all it signed, by a key above it:
    meshport revoke authority:9sRt...4k= --with-nodes
";

pub(super) const ROTATE_SECRET: &str = "\
EXAMPLES:
  On the machine with the authority's key; `status` names members that may lack
  the new secret:
    meshport rotate-secret
    meshport status

  With the authority's key on a machine that is not a node:
    meshport rotate-secret --state-dir AUTHORITY --print > next.txt
  and on any node:
    meshport rotate-secret --import - < next.txt
";

pub(super) const ROTATE_KEY: &str = "\
EXAMPLES:
  On the machine with the authority's key:
    meshport rotate-key

  On every other machine, with an invite for the same site and roles:
    meshport rotate-key - < invite.txt

First update all nodes to a version with this command: older ones refuse the new
key. Other nodes learn the new key by themselves; new invites must name it.
";

pub(super) const KUBECONFIG: &str = "\
EXAMPLES:
  Next to the existing kubeconfig, which has the user:
    meshport kubeconfig > ~/.kube/meshport
    export KUBECONFIG=~/.kube/meshport:~/.kube/config

  Into the existing kubeconfig, as its current context:
    meshport kubeconfig --merge ~/.kube/config --use

  The kubelet of this node (then restart it):
    cd /etc/kubernetes
    meshport kubeconfig --from kubelet.conf --merge kubelet.conf --use
";

pub(super) const HOSTS: &str = "\
EXAMPLES:
  meshport hosts --name api.example.com
  meshport hosts --name api.example.com --add
  meshport hosts --name api.example.com --remove

The hosts file changes names, not ports: clients use https://NAME:7445,
or meshport listens on the port that they use.
";

pub(super) const GENERATE: &str = "\
EXAMPLES:
  meshport generate systemd > /etc/systemd/system/meshport.service
  meshport generate kubeadm-init > kubeadm.yaml
  meshport generate static-pod --image registry.example.com/meshport:0.1.0
  meshport generate k0s --name api.example.com
  meshport generate monitoring --format dashboard > dashboard.json
";

pub(super) const DEMO: &str = "\
EXAMPLES:
  meshport demo
  meshport demo --for 60 --keep-running
  meshport demo --open
  meshport demo --json | jq .failover_ms

Exit code 1 if a request failed, the nearest apiserver was not chosen, or the
traffic did not fail over or return.
";

pub(super) const VERSION: &str = "\
EXAMPLES:
  meshport version
  meshport version --json | jq -r .daemon.version
";

pub(super) const COMPLETIONS: &str = "\
EXAMPLES:
  source <(meshport completions bash)
  meshport completions zsh > ~/.zfunc/_meshport
  meshport completions fish > ~/.config/fish/completions/meshport.fish
";
