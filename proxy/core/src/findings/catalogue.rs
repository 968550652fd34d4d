//! The list itself.

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
    /// A configured address belongs to another process.
    ADDRESS_TAKEN: Error "MP101" {
        title: "another process has a local address of this node",
        healthy: "local addresses are free, or this daemon's",
        meaning: "The daemon does not start, or clients of this node reach the other process",
        remedy: "Stop that process (`ss -lntup` lists it), or set another address in the \
                 configuration. A running daemon takes the address back",
    }
    /// Rights or owner of the state folder and of files with secrets.
    OPEN_TO_OTHERS: Warning "MP102" {
        title: "the state folder or a file with a secret is open to other users",
        healthy: "the state folder is open to its owner only",
        meaning: "Other users of this machine see what is here and when it changes, or read a \
                  secret; a file of another owner cannot be read by the daemon",
        remedy: "Give them to the user who runs the daemon, and run `chmod 700` on the state \
                 folder and `chmod 600` on files",
    }
    /// The wall clock contradicts what is signed, or the clocks of members.
    WRONG_CLOCK: Error "MP103" {
        title: "the clock of this machine or of a member is wrong",
        healthy: "this clock agrees with this node's credential and with members",
        meaning: "Sessions continue, but a clock that is off by more than 5 min refuses \
                  credentials that are valid, and a daemon may fail to start",
        remedy: "Correct the clock and keep it synchronised (`timedatectl`, `chronyc tracking`)",
    }
    /// Packets do not get out, or no answer comes back.
    NO_ANSWERS: Error "MP104" {
        title: "no member answers",
        healthy: "nothing here stops UDP to members",
        meaning: "When all are silent at once, it is probably this machine's network",
        remedy: "Check its link and routes, and that outgoing UDP from the port of `listen` under \
                 [mesh] is allowed",
    }
    /// No unsolicited packet reaches this node.
    UDP_IN: Warning "MP105" {
        title: "unsolicited UDP packets do not reach this node",
        healthy: "unsolicited UDP packets reach this node",
        meaning: "A firewall lets in only answers. This node finds others, but a node that does \
                  not know it yet, or has lost its session, cannot start a handshake",
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
        meaning: "Sessions avoid it as if it were dead, although small packets pass",
        remedy: "Check the MTU of the path and whether a firewall drops ICMP (packet too big); \
                 `mtu` under [mesh] limits what this node sends",
    }
    /// The limit on open files.
    FEW_DESCRIPTORS: Warning "MP108" {
        title: "fewer open files are allowed than max-sessions could need",
        healthy: "the limit on open files suffices",
        meaning: "With many sessions, new ones are refused although max-sessions is not reached",
        remedy: "Raise LimitNOFILE in the unit of the daemon, or `ulimit -n` where it is started",
    }
    /// Keys and credential do not make a node.
    NO_IDENTITY: Error "MP109" {
        title: "this machine has no usable identity in its state folder",
        healthy: "the state folder has the keys and the credential of a node",
        meaning: "A daemon does not start with it",
        remedy: "Do what the message says; a machine that never joined needs `meshport join \
                 INVITE`",
    }
    /// The configuration, or a file it names.
    UNFIT_CONFIGURATION: Error "MP110" {
        title: "the configuration or a file it names has problems",
        healthy: "the configuration is valid",
        meaning: "A running daemon goes on with the settings it has; the next start fails",
        remedy: "Correct it; `meshport check` lists all problems and the settings in force",
    }
    /// No daemon answers on the admin socket.
    NO_DAEMON: Warning "MP111" {
        title: "no daemon answers",
        healthy: "the daemon answers",
        meaning: "Clients of this node's local addresses are refused, and what only a daemon knows \
                  is not checked",
        remedy: "Start it with `meshport run` or its unit; its log says why it ended. Run this as \
                 the same user or as root, and name its configuration with --config",
    }
    /// The configuration has settings that wait for a restart.
    NEEDS_RESTART: Warning "MP112" {
        title: "settings of the configuration wait for a restart",
        healthy: "no setting waits for a restart",
        meaning: "The daemon runs with the former values",
        remedy: "Restart the daemon at a convenient time",
    }
    /// The daemon is on its way out.
    STOPPING: Warning "MP113" {
        title: "this daemon is stopping",
        healthy: "the daemon is not stopping",
        meaning: "It accepts no client; open sessions may continue for a while",
        remedy: "Nothing to do if this is intended; otherwise find out who stopped it",
    }
    /// All places for clients are taken.
    SESSIONS_FULL: Warning "MP114" {
        title: "the limit of client sessions is reached",
        healthy: "there is room for more client sessions",
        meaning: "New client connections are reset",
        remedy: "Find the clients that hold them with `ss -tnp` on this machine, or raise \
                 max-sessions",
    }
    /// One client has as many sessions as it may have.
    CLIENT_OVER_SHARE: Warning "MP115" {
        title: "a client has its share of max-sessions",
        healthy: "no client has more than its share of sessions",
        meaning: "Its next connections are reset; other clients are served",
        remedy: "Find it with `ss -tnp`, or raise max-sessions",
    }
    /// One client opens connections and resets them.
    CLIENT_RESETS: Warning "MP116" {
        title: "a client resets most connections that it opens",
        healthy: "no client resets most of its connections",
        meaning: "Its next ones are delayed; those of others are not",
        remedy: "Find it with `ss -tnp`",
    }
    /// No place for sessions of other nodes.
    OVERLOADED: Warning "MP117" {
        title: "sessions of other nodes are refused (overloaded)",
        healthy: "there is room for sessions of other nodes",
        meaning: "A node may have at most as many sessions here as there are places left for \
                  others",
        remedy: "Find out on those nodes what opens them, or revoke a compromised one. Raise \
                 LimitNOFILE if the limit on open files is low",
    }
    /// Events that are not taken.
    EVENTS_NOT_POSTED: Warning "MP120" {
        title: "events cannot be posted",
        healthy: "events are posted, or no receiver is set",
        meaning: "The receiver misses events; the oldest are dropped when too many wait. Nothing \
                  else depends on them",
        remedy: "Check `url` and `ca-file` under [events] and the server there; for Kubernetes, \
                 whether the user of `cluster-kubeconfig` may create events in the namespace \
                 default",
    }
    /// The machine or the credential does not fit.
    VIRTUAL_ADDRESS_OBSTACLE: Error "MP121" {
        title: "this node cannot hold a virtual address",
        healthy: "nothing keeps this node from its virtual addresses",
        meaning: "Other nodes of the group hold it; if none can, its clients reach nobody",
        remedy: "Do what the message says; docs/virtual-addresses.md has what a node needs",
    }
    /// A group of one.
    VIRTUAL_ADDRESS_ALONE: Warning "MP122" {
        title: "no other node of a virtual address's group is heard",
        healthy: "every virtual address has another node that can take it",
        meaning: "When this node fails, the address fails with it",
        remedy: "Give another node of the LAN the role vip and a [[virtual-address]] with the same \
                 address and group; `meshport peers` says whether it is reached",
    }

    /// A name does not resolve.
    SEED_NAME: Warning "MP201" {
        title: "the name of a seed does not resolve",
        healthy: "the names of seeds resolve",
        meaning: "This node cannot contact that seed when it starts; without another it does not \
                  find the mesh",
        remedy: "Correct the name in the file seeds of the state folder or in `seeds` under \
                 [mesh], or this machine's DNS",
    }
    /// A seed is silent.
    SEED_SILENT: Warning "MP202" {
        title: "a seed does not answer",
        healthy: "no seed is known to be silent",
        meaning: "Without an answer of any seed or known member this node does not find the mesh",
        remedy: "Check the nodes and addresses in the file seeds of the state folder and in \
                 `seeds` under [mesh], that a daemon of this mesh runs there, and that its UDP \
                 port is reachable from here. `meshport peers --seeds` on another node prints \
                 current ones",
    }
    /// When this node's credential expires.
    CREDENTIAL_ENDS: Warning "MP203" {
        title: "this node's credential expires soon, or has expired",
        healthy: "this node's credential is valid for 30 days or more",
        meaning: "Other nodes refuse a node whose credential has expired",
        remedy: "`meshport renew` replaces it without an interruption",
    }
    /// The key of the authority on a node.
    AUTHORITY_KEY_HERE: Warning "MP204" {
        title: "the authority's key is in this node's state folder",
        healthy: "the authority's key is not on this node",
        meaning: "The daemon does not need it but can read it, so a compromised daemon means a \
                  compromised mesh",
        remedy: "Move it offline and name it there: `meshport invite --site SITE --authority FILE`",
    }
    /// Nodes with different settings where all need the same.
    SETTINGS_DIFFER: Warning "MP205" {
        title: "settings that must agree differ between members",
        healthy: "settings that must agree are the same on the members asked",
        meaning: "Members judge each other's silence by different times; the one with the \
                  shortest declares slow members down",
        remedy: "Set the same values under [discovery] on all nodes, and restart those that change",
    }
    /// Program, daemon and members differ.
    VERSIONS_DIFFER: Warning "MP206" {
        title: "the daemon is of another version than this program or members",
        healthy: "daemon, program and the members asked are of one version",
        meaning: "An update takes effect with the next restart; what a version adds works only \
                  between nodes that have it",
        remedy: "Restart the daemon after an update, and finish the update on the other nodes",
    }
    /// Two processes with one key.
    KEY_USED_TWICE: Error "MP207" {
        title: "two processes use one node's key",
        healthy: "no key is used by two processes",
        meaning: "Each of the two cuts the other's sessions",
        remedy: "A state folder was copied. Stop the copy and join that machine with an invite of \
                 its own. If it is not yours: `meshport rotate-key` on the right machine shuts the \
                 copy out; `meshport \
                 revoke NODE` shuts out both",
    }
    /// Nodes that share a name.
    SAME_NAMES: Warning "MP208" {
        title: "several nodes have the same name",
        healthy: "every node has a name of its own",
        meaning: "The name cannot be used in `ping` or `pinned`",
        remedy: "Let all but one join again with --force and another --name",
    }
    /// A node announces what its credential does not allow.
    ROLE_MISSING: Warning "MP209" {
        title: "a node offers a service that its credential does not allow",
        healthy: "every origin has the role for its service",
        meaning: "Other nodes ignore the offer",
        remedy: "Let the node join again with an invite that has the role, or remove `origin` \
                 from its configuration",
    }
    /// More handshakes than are answered.
    FLOOD: Warning "MP210" {
        title: "more handshakes arrive than this node answers",
        healthy: "handshakes arrive at a usual rate",
        meaning: "It is a flood, or many nodes start together. Senders must prove their address \
                  first (cookies); members are still served",
        remedy: "If it lasts, find the source with a packet capture on the mesh's UDP port and \
                 filter it before it reaches this node",
    }
    /// No place for another node.
    DIRECTORY_FULL: Warning "MP211" {
        title: "the directory is full",
        healthy: "the directory has room for more nodes",
        meaning: "Nodes that connect here, origins and relays displace others, so other nodes may \
                  be missing",
        remedy: "Nodes that are gone are forgotten after a day. If `meshport peers` lists nodes \
                 that are not yours, someone invents them: `meshport revoke invite:KEY \
                 --with-nodes` shuts out all that joined with that invite, including yours",
    }
    /// Members without the new secret.
    SECRET_LAGGING: Warning "MP212" {
        title: "members are not known to have the mesh's new secret yet",
        healthy: "all members have the mesh's secret",
        meaning: "When the former secret ends, they must join again",
        remedy: "Start them before it ends",
    }
    /// Messages of a later version.
    UNKNOWN_MESSAGES: Warning "MP213" {
        title: "members send messages that this version does not know",
        healthy: "every message of members is known to this version",
        meaning: "They run a later version. What is not known is ignored, and sessions go on",
        remedy: "Complete the upgrade: install the later version on this node and restart its \
                 daemon",
    }
    /// Issuers do not renew this node.
    RENEWAL_FAILS: Warning "MP214" {
        title: "no issuer renews this node's credential, although it is time",
        healthy: "this node's credential is renewed in time, or not by issuers",
        meaning: "Nothing fails yet. When the credential expires, other nodes refuse this node",
        remedy: "Do what the message says: start a member with the role issuer, or give it a \
                 mandate with `meshport delegate`. `meshport renew` with an invite helps at once",
    }
    /// An issuer's mandate.
    MANDATE_ENDS: Warning "MP215" {
        title: "this issuer's mandate ends soon, has ended or is missing",
        healthy: "this node's mandate is valid for long, or it is no issuer",
        meaning: "Without a mandate in force it cannot renew others. If no other issuer does, \
                  credentials expire",
        remedy: "Where the authority's key is: `meshport delegate NODE`; then here: `meshport \
                 delegate --install FILE`",
    }

    /// Clients verify a name that an apiserver does not have.
    NAME_NOT_IN_CERTIFICATE: Error "MP301" {
        title: "an apiserver's certificate lacks a name that clients verify",
        healthy: "the apiservers' certificates have the names that kubeconfigs verify",
        meaning: "Clients fail with a TLS error when that apiserver answers",
        remedy: "`meshport kubeconfig` chooses a name that all certificates have; or add the name \
                 to the certificates (kubeadm: apiServer.certSANs)",
    }
    /// The probe gets 401.
    PROBE_REFUSED: Warning "MP302" {
        title: "the local instance refuses the health probe",
        healthy: "health probes are answered",
        meaning: "It answers 401, so its readiness is unknown and nodes prefer other origins",
        remedy: "Set ca-file and bearer-token-file or client-cert-file under \
                 [service.NAME.health]",
    }
    /// The cluster's list and the mesh differ.
    ROSTER_DIFFERS: Warning "MP303" {
        title: "the cluster lists other apiservers than the mesh has origins",
        healthy: "the cluster lists the apiservers that the mesh has, as far as it is compared",
        meaning: "An apiserver is not reached through the mesh, or an origin is not one of the \
                  cluster's",
        remedy: "Set `origin` on nodes that are missing, or start their daemons. If more origins \
                 serve than are listed, one belongs to another cluster or its apiserver does not \
                 list itself",
    }
    /// Clients that do not use the local address.
    KUBECONFIG_PAST_US: Warning "MP304" {
        title: "a kubeconfig points at one apiserver and past the local address",
        healthy: "the kubeconfigs found here use the local address, or belong to other clusters",
        meaning: "Its clients fail when that apiserver does",
        remedy: "`meshport kubeconfig --from FILE --merge FILE --use` points it at the local \
                 address; then restart its client",
    }
    /// A socket for apiservers that none uses.
    EGRESS_UNUSED: Warning "MP305" {
        title: "no apiserver uses the way back",
        healthy: "the socket of the way back is used, or there is none",
        meaning: "`kubectl logs` and webhooks bypass meshport, or fail where there is no other way",
        remedy: "Give the apiserver of this machine --egress-selector-config-file and the folder \
                 of the socket (`meshport generate egress`), and restart it",
    }
    /// A service without origins.
    NO_ORIGIN: Error "MP306" {
        title: "no origin of a service is known",
        healthy: "every service has an origin",
        meaning: "Clients of the service are refused",
        remedy: "Set `origin` on a node whose credential has the role origin:NAME",
    }
    /// No origin works.
    NO_ORIGIN_ANSWERS: Error "MP307" {
        title: "none of the origins of a service answers",
        healthy: "every service has an origin that answers",
        meaning: "Clients of the service are refused",
        remedy: "`meshport explain` says what each of them lacks; the first table of \
                 docs/troubleshoot.md says what to do about it",
    }
    /// An allow list without this node.
    NOT_ALLOWED: Warning "MP308" {
        title: "an origin refuses this node",
        healthy: "no origin refuses this node",
        meaning: "Sessions go to other origins, if there are any",
        remedy: "Add the node's name, site or role to `allow` under [service.NAME] there. A name \
                 or site counts only if the invite fixed it",
    }
    /// The end of an apiserver's certificate.
    CERTIFICATE_ENDS: Warning "MP309" {
        title: "an apiserver's certificate expires soon, or has expired",
        healthy: "the apiservers' certificates are valid for 30 days or more",
        meaning: "Clients refuse an apiserver whose certificate has expired",
        remedy: "Renew it there (kubeadm: `kubeadm certs renew apiserver`), and restart that \
                 apiserver",
    }
    /// A role without the setting that goes with it.
    OFFERS_NOTHING: Warning "MP310" {
        title: "a node may offer a service and has no instance configured",
        healthy: "the node offers every service that its roles name",
        meaning: "Other nodes do not find an origin here",
        remedy: "Set `origin` under [service.NAME] to the address of the instance, or renew the \
                 credential without the role",
    }
}
