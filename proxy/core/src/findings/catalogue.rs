//! The list of kinds.

use super::{Kind, Severity};

macro_rules! catalogue {
    ($($(#[$doc:meta])* $name:ident: $severity:ident $id:literal {
        title: $title:literal,
        healthy: $healthy:literal,
        meaning: $meaning:literal,
        remedy: $remedy:literal,
    })*) => {
        $(
            $(#[$doc])*
            pub static $name: Kind = Kind {
                id: $id,
                severity: Severity::$severity,
                title: $title,
                healthy: $healthy,
                meaning: $meaning,
                remedy: $remedy,
            };
        )*

        /// All kinds, by id.
        pub static ALL: &[&Kind] = &[$(&$name),*];
    };
}

catalogue! {
    /// A configured address belongs to another process or not to this machine, or is forbidden.
    ADDRESS_TAKEN: Error "MP101" {
        title: "the daemon cannot listen on a local address of this node",
        healthy: "local addresses are free or used by this daemon",
        meaning: "Clients of this node reach another process, or nobody. The daemon runs without \
                  the address; it does not start if the address is that of the mesh (UDP)",
        remedy: "Stop that process (`ss -lntup` lists it), or give this machine the address: a \
                 running daemon takes it once possible. Or set another address in the \
                 configuration and restart the daemon",
    }
    /// Rights or owner of the state folder and of files with secrets.
    OPEN_TO_OTHERS: Warning "MP102" {
        title: "the state folder or a file with a secret is open to other users",
        healthy: "the state folder is open to its owner only",
        meaning: "Other users of this machine can list the folder or read a secret; the daemon \
                  cannot read a file that belongs to another user",
        remedy: "Make the user that runs the daemon their owner (`chown`), and run `chmod 700` on \
                 the state folder and `chmod 600` on files",
    }
    /// The wall clock contradicts signed times or the clocks of members.
    WRONG_CLOCK: Error "MP103" {
        title: "the clock of this machine or of a member is wrong",
        healthy: "this clock agrees with this node's credential and with members",
        meaning: "A node whose clock is off by more than 5 min may refuse valid credentials, and \
                  its daemon may fail to start",
        remedy: "Correct the clock and keep it synchronised (`timedatectl`, `chronyc tracking`)",
    }
    /// Packets do not get out, or no answer comes back.
    NO_ANSWERS: Error "MP104" {
        title: "no member answers",
        healthy: "nothing on this machine blocks UDP to members",
        meaning: "If all are silent at once, the cause is probably this machine's network",
        remedy: "Check its link and routes, and that outgoing UDP from the port of `listen` under \
                 [mesh] is allowed",
    }
    /// No unsolicited packet reaches this node.
    UDP_IN: Warning "MP105" {
        title: "unsolicited UDP packets do not reach this node",
        healthy: "unsolicited UDP packets reach this node",
        meaning: "A firewall admits only replies. This node can connect to others, but a node that \
                  does not know it yet, or has lost its session, cannot start a handshake",
        remedy: "Allow incoming UDP to the port of `listen` under [mesh], from any address and \
                 port",
    }
    /// Both ends of a path are behind NAT.
    BOTH_BEHIND_NAT: Warning "MP106" {
        title: "this node and another are both behind NAT",
        healthy: "no origin is out of reach because of NAT",
        meaning: "Neither can start the handshake, so there is no direct path between them",
        remedy: "Give the role `relay` to a member that both reach, or forward a port and set \
                 `advertise` under [mesh]",
    }
    /// A path that passes small packets only.
    NARROW_PATH: Warning "MP107" {
        title: "a path drops large packets",
        healthy: "no path is known to drop large packets",
        meaning: "Small packets pass, those of sessions are lost. They are sent in fragments, \
                  which costs capacity; if these are lost too, or the other node runs an older \
                  release, sessions avoid the path as if it were dead",
        remedy: "Check the MTU of the path and whether a firewall drops ICMP (packet too big); \
                 `mtu` under [mesh] limits the packets that this node sends",
    }
    /// The limit on open files.
    FEW_DESCRIPTORS: Warning "MP108" {
        title: "the limit on open files is too low for max-sessions",
        healthy: "the limit on open files is high enough",
        meaning: "New sessions are refused before max-sessions is reached",
        remedy: "Raise LimitNOFILE in the daemon's unit, or `ulimit -n` in the shell that starts \
                 it",
    }
    /// Keys and credential do not form an identity.
    NO_IDENTITY: Error "MP109" {
        title: "this machine has no usable identity in its state folder",
        healthy: "the state folder contains a node's keys and credential",
        meaning: "A running daemon keeps its credential; the next start fails",
        remedy: "Do what the message says, and run `meshport reload` if a daemon runs; a machine \
                 that never joined needs `meshport join INVITE`",
    }
    /// The configuration, or a file it names.
    UNFIT_CONFIGURATION: Error "MP110" {
        title: "the configuration or a file it names has problems",
        healthy: "the configuration is valid",
        meaning: "A running daemon keeps its settings; the next start may fail",
        remedy: "Correct it, and run `meshport reload` if a daemon runs; `meshport check` lists \
                 all problems and the settings in force",
    }
    /// No daemon answers on the admin socket.
    NO_DAEMON: Warning "MP111" {
        title: "no daemon answers",
        healthy: "the daemon answers",
        meaning: "Clients of this node's local addresses are refused, and checks that need the \
                  daemon are skipped",
        remedy: "Start it with `meshport run` or its unit; its log says why it stopped. Run this \
                 command as the same user or as root, and pass the daemon's configuration with \
                 --config",
    }
    /// The configuration has settings that wait for a restart.
    NEEDS_RESTART: Warning "MP112" {
        title: "changed settings need a restart",
        healthy: "no changed setting needs a restart",
        meaning: "The daemon still uses the previous values",
        remedy: "Run `meshport upgrade` or `systemctl restart meshport`: open sessions continue, \
                 except through a virtual address, or if `shards` under [mesh] has changed. In a \
                 container, replace the container",
    }
    /// The daemon is stopping.
    STOPPING: Warning "MP113" {
        title: "this daemon is stopping",
        healthy: "the daemon is not stopping",
        meaning: "It refuses new sessions of other nodes; this node's clients are served until it \
                  ends",
        remedy: "If this is intended, do nothing; otherwise find out who stopped it",
    }
    /// All client slots are taken.
    SESSIONS_FULL: Warning "MP114" {
        title: "the limit on client sessions is reached",
        healthy: "the limit on client sessions is not reached",
        meaning: "New client connections are reset",
        remedy: "Find the clients that hold them with `ss -tnp` on this machine, or raise \
                 max-sessions. Raise LimitNOFILE if the limit on open files is low",
    }
    /// One client has reached its limit of sessions.
    CLIENT_OVER_SHARE: Warning "MP115" {
        title: "a client has used up its share of max-sessions",
        healthy: "no client has used up its share of sessions",
        meaning: "Its new connections are reset; other clients are unaffected",
        remedy: "Find it with `ss -tnp`, or raise max-sessions. Raise LimitNOFILE if the limit on \
                 open files is low",
    }
    /// One client opens connections and does not use them.
    CLIENT_IDLES: Warning "MP116" {
        title: "a client does not use most of the connections it opens",
        healthy: "no client opens many connections that it does not use",
        meaning: "It resets them or sends nothing on them. Its new connections are delayed; other \
                  clients are unaffected",
        remedy: "Find it with `ss -tnp`",
    }
    /// No slot is free for sessions of other nodes.
    OVERLOADED: Warning "MP117" {
        title: "sessions of other nodes are refused (overloaded)",
        healthy: "no session of another node was refused recently",
        meaning: "A node may hold no more sessions here than the number of free slots",
        remedy: "Find out what opens them on those nodes, or revoke a compromised node. Raise \
                 LimitNOFILE if the limit on open files is low",
    }
    /// A full disk, or one that takes no writes.
    STATE_NOT_STORED: Warning "MP118" {
        title: "a file of the state folder cannot be written",
        healthy: "the daemon can write its state folder",
        meaning: "A new mesh secret, key or credential is not used before it is stored: once the \
                  previous one expires, other nodes refuse this node. New revocations and \
                  members count, but after a restart other nodes must send them again",
        remedy: "Free space on the file system of the state folder, or make it writable for the \
                 user of the daemon. The daemon tries again within a minute, and a revocation \
                 with the next one; repeat a command that failed",
    }
    /// The receiver does not accept events.
    EVENTS_NOT_POSTED: Warning "MP120" {
        title: "events cannot be posted",
        healthy: "events are posted, or no receiver is set",
        meaning: "The receiver misses events: the oldest are dropped when the queue is full. \
                  Nothing else is affected",
        remedy: "Check `url` and `ca-file` under [events] and the server there; for Kubernetes, \
                 whether the user of `cluster-kubeconfig` may create events in the namespace \
                 default",
    }
    /// The machine or the credential does not meet a requirement.
    VIRTUAL_ADDRESS_OBSTACLE: Error "MP121" {
        title: "this node cannot hold a virtual address",
        healthy: "this node can hold its virtual addresses",
        meaning: "Another node of the group holds it; if none can, its clients cannot connect",
        remedy: "Do what the message says; docs/virtual-addresses.md lists the requirements",
    }
    /// A group of one.
    VIRTUAL_ADDRESS_ALONE: Warning "MP122" {
        title: "no other node of a virtual address's group is reachable",
        healthy: "every virtual address has another node that can take it",
        meaning: "When this node fails, the address fails with it",
        remedy: "Give another node of the LAN the role vip and a [[virtual-address]] with the same \
                 address and group; `meshport peers` shows whether it is reachable",
    }

    /// A name does not resolve.
    SEED_NAME: Warning "MP201" {
        title: "the name of a seed does not resolve",
        healthy: "the names of seeds resolve",
        meaning: "This node cannot contact that seed at start; without another seed it does not \
                  find the mesh",
        remedy: "Correct the name in the file seeds of the state folder or in `seeds` under \
                 [mesh], or this machine's DNS",
    }
    /// A seed is silent.
    SEED_SILENT: Warning "MP202" {
        title: "a seed does not answer",
        healthy: "no seed is known to be silent",
        meaning: "If no seed or known member answers, this node does not find the mesh",
        remedy: "Check the nodes and addresses in the file seeds of the state folder and in \
                 `seeds` under [mesh], that a daemon of this mesh runs there, and that its UDP \
                 port is reachable from this machine. `meshport peers --seeds` on another node \
                 prints the current seeds. If you edit the file, make `# by hand` its last line",
    }
    /// When this node's credential expires.
    CREDENTIAL_ENDS: Warning "MP203" {
        title: "this node's credential expires soon, or has expired",
        healthy: "this node's credential does not expire soon",
        meaning: "Other nodes refuse a node whose credential has expired",
        remedy: "`meshport renew` replaces it without interrupting sessions",
    }
    /// The key of the authority on a node.
    AUTHORITY_KEY_HERE: Warning "MP204" {
        title: "the authority's key is in this node's state folder",
        healthy: "the authority's key is not on this node",
        meaning: "The daemon does not need it but can read it, so a compromised daemon means a \
                  compromised mesh",
        remedy: "Move it to an offline machine and use it there: `meshport invite --site SITE \
                 --authority FILE`",
    }
    /// Nodes differ in a setting that must be the same on all.
    SETTINGS_DIFFER: Warning "MP205" {
        title: "settings that must agree differ between members",
        healthy: "settings that must agree are the same on the members asked",
        meaning: "Members use different timeouts; those with the shortest declare slow members \
                  down",
        remedy: "Set the same values under [discovery] on all nodes, and restart the daemons you \
                 changed",
    }
    /// Program, daemon and members differ.
    VERSIONS_DIFFER: Warning "MP206" {
        title: "the daemon's version differs from this program's or a member's",
        healthy: "daemon, program and the members asked run the same version",
        meaning: "An update takes effect when the daemon restarts or is upgraded in place; new \
                  features work only between nodes that have them",
        remedy: "Run `meshport upgrade` or restart the daemon after an update, and finish the \
                 update on the other nodes",
    }
    /// Two processes with one key.
    KEY_USED_TWICE: Error "MP207" {
        title: "two processes use one node's key",
        healthy: "no key is used by two processes",
        meaning: "Each of the two cuts the other's sessions",
        remedy: "A state folder was copied. Stop the copy and join that machine with an invite of \
                 its own. If it is not yours: `meshport rotate-key` on the original machine shuts \
                 the copy out; `meshport revoke NODE` shuts out both",
    }
    /// Nodes that share a name.
    SAME_NAMES: Warning "MP208" {
        title: "several nodes have the same name",
        healthy: "every node has a unique name",
        meaning: "`ping` and `pinned` cannot use the name",
        remedy: "Join all but one again with --force and another --name",
    }
    /// A node announces a service that its credential does not allow.
    ROLE_MISSING: Warning "MP209" {
        title: "a node offers a service that its credential does not allow",
        healthy: "every origin has the role for its service",
        meaning: "Other nodes ignore the offer",
        remedy: "Join the node again with an invite that grants the role, or remove `origin` from \
                 its configuration",
    }
    /// More handshakes arrive than are answered.
    FLOOD: Warning "MP210" {
        title: "more handshakes arrive than this node answers",
        healthy: "handshakes arrive at a normal rate",
        meaning: "This is a flood, or many nodes start at once. Senders must prove their address \
                  first (cookies); members are still served",
        remedy: "If it lasts, find the source with a packet capture on the mesh's UDP port and \
                 filter it before it reaches this node",
    }
    /// No room for another node.
    DIRECTORY_FULL: Warning "MP211" {
        title: "the directory is full",
        healthy: "the directory is not full",
        meaning: "Nodes that connect here, origins and relays take precedence; other nodes may be \
                  missing",
        remedy: "Nodes that have left are forgotten after a day. If `meshport peers` lists nodes \
                 that are not yours, a member invents them: `meshport revoke invite:KEY \
                 --with-nodes` shuts out all that joined with that invite, including yours",
    }
    /// Members lack the new secret.
    SECRET_LAGGING: Warning "MP212" {
        title: "some members may not have the new mesh secret yet",
        healthy: "all members have the mesh secret",
        meaning: "They must join again once the old secret expires",
        remedy: "Start them before that",
    }
    /// Messages of a later version.
    UNKNOWN_MESSAGES: Warning "MP213" {
        title: "members send messages that are unknown to this version",
        healthy: "this version knows all messages that members send",
        meaning: "They run a later version. Unknown messages are ignored, and sessions continue",
        remedy: "Complete the upgrade: install the later version on this node; without a package, \
                 run `meshport upgrade` afterwards",
    }
    /// Issuers do not renew this node's credential.
    RENEWAL_FAILS: Warning "MP214" {
        title: "this node's credential is due for renewal, but no issuer renews it",
        healthy: "this node's credential is renewed in time, or does not depend on issuers",
        meaning: "Nothing fails yet. When the credential expires, other nodes refuse this node",
        remedy: "Do what the message says: start a member with the role issuer, make it reachable \
                 from this node or from a relay, or give it a mandate with `meshport delegate`. \
                 `meshport renew` with an invite made with `--credential-ttl 365d` works \
                 immediately",
    }
    /// An issuer's mandate.
    MANDATE_ENDS: Warning "MP215" {
        title: "this issuer's mandate expires soon, has expired or is missing",
        healthy: "this node's mandate does not expire soon, or the node is not an issuer",
        meaning: "Without a valid mandate it cannot renew other nodes. If no other issuer renews \
                  them, credentials expire",
        remedy: "Run `meshport delegate NODE` where the authority's key is, then `meshport \
                 delegate --install FILE` here",
    }

    /// Clients verify a name that an apiserver does not have, or their CA did not sign it.
    NAME_NOT_IN_CERTIFICATE: Error "MP301" {
        title: "clients refuse an apiserver's certificate",
        healthy: "clients accept the apiservers' certificates",
        meaning: "Clients fail with a TLS error when that apiserver answers",
        remedy: "If the name is missing, `meshport kubeconfig` chooses one that all certificates \
                 have; or add it to the certificates (kubeadm: apiServer.certSANs). If the CA did \
                 not sign the certificate, reissue it with the cluster's CA, or remove the origin \
                 if it is of another cluster",
    }
    /// The probe gets 401 or 403.
    PROBE_REFUSED: Warning "MP302" {
        title: "the local instance refuses the health probe",
        healthy: "health probes are answered",
        meaning: "With 401 it counts as ready while it answers at all: clients keep using it while \
                  it is not ready, or its etcd hangs. With 403 it counts as not ready: clients use \
                  it last",
        remedy: "Set ca-file and bearer-token-file or client-cert-file under \
                 [service.NAME.health], of a user that may get /readyz",
    }
    /// The cluster's list and the mesh differ.
    ROSTER_DIFFERS: Warning "MP303" {
        title: "the cluster's list of apiservers differs from the mesh's origins",
        healthy: "the cluster's list of apiservers matches the mesh's origins, where compared",
        meaning: "An apiserver is not reached through the mesh, or an origin is not one of the \
                  cluster's",
        remedy: "Set `origin` on the missing nodes, or start their daemons. If more origins serve \
                 than are listed, one belongs to another cluster, or its apiserver does not list \
                 itself",
    }
    /// Clients do not use the local address.
    KUBECONFIG_PAST_US: Warning "MP304" {
        title: "a kubeconfig points at one apiserver instead of the local address",
        healthy: "the kubeconfigs found here use the local address, or belong to other clusters",
        meaning: "Its clients fail when that apiserver does",
        remedy: "`meshport kubeconfig --from FILE --merge FILE --use` points it at the local \
                 address; restart its client afterwards",
    }
    /// No apiserver uses the socket.
    EGRESS_UNUSED: Warning "MP305" {
        title: "no apiserver uses the way back",
        healthy: "the socket of the way back is used, or there is none",
        meaning: "`kubectl logs` and webhooks bypass meshport, or fail where there is no other \
                  path",
        remedy: "Configure this machine's apiserver with --egress-selector-config-file and the \
                 socket's folder (`meshport generate egress`), and restart it",
    }
    /// A service without origins.
    NO_ORIGIN: Error "MP306" {
        title: "no origin of a service is known",
        healthy: "every service has an origin",
        meaning: "Clients of the service are refused",
        remedy: "Start the daemon of an origin, or set `origin` on a node whose credential has the \
                 role origin:NAME",
    }
    /// No origin works.
    NO_ORIGIN_ANSWERS: Error "MP307" {
        title: "none of the origins of a service answers",
        healthy: "every service has an origin that answers",
        meaning: "Clients of the service are refused",
        remedy: "`meshport explain` shows what each of them lacks; the first table of \
                 docs/troubleshoot.md has the remedies",
    }
    /// An allow list without this node.
    NOT_ALLOWED: Warning "MP308" {
        title: "an origin refuses this node",
        healthy: "no origin refuses this node",
        meaning: "Sessions go to other origins, if there are any",
        remedy: "Add the node's name, site or role to `allow` under [service.NAME] at the origin. \
                 A name or site counts only if the invite fixed it",
    }
    /// The end of an apiserver's certificate.
    CERTIFICATE_ENDS: Warning "MP309" {
        title: "an apiserver's certificate expires soon, or has expired",
        healthy: "no apiserver's certificate expires within 30 days",
        meaning: "Clients refuse an apiserver whose certificate has expired",
        remedy: "Renew it there (kubeadm: `kubeadm certs renew apiserver`), and restart that \
                 apiserver",
    }
    /// The setting that belongs to a role is missing.
    OFFERS_NOTHING: Warning "MP310" {
        title: "a node has a role for a service, but no instance configured",
        healthy: "the node offers every service that its roles name",
        meaning: "Other nodes do not find an origin here",
        remedy: "Set `origin` under [service.NAME] to the address of the instance, or renew the \
                 credential without the role",
    }
    /// All origins answer that they are not ready.
    NONE_READY: Error "MP311" {
        title: "none of the origins of a service is ready",
        healthy: "no service depends on an origin that is not ready",
        meaning: "New sessions go to one that is not ready, since it may still serve; their \
                  requests may fail or hang. During the setup of a cluster this is normal",
        remedy: "`meshport status` on each origin's node names the checks that fail, as does \
                 `kubectl get --raw '/readyz?verbose'`; if etcd is among them, restore its quorum",
    }
}
