//! The effect on a worker's clients when the apiserver they use fails: kubectl calls in sequence,
//! `kubectl get --watch`, the Python client without any timeout, and a controller manager that must
//! keep its lease.

#![expect(clippy::print_stdout, reason = "figures for the reader of a test run")]

use std::time::{Duration, Instant};

use meshport_tests::kubernetes::{
    Arrivals, Beat, Call, Calls, Cluster, Fault, Kubectl, LOCAL, Plan, START_LIMIT, WORKER, Watch,
    Watchers, median, rounds,
};
use meshport_tests::wait;

/// How long a watch may see no events after a fault; one occurs every quarter of a second.
const MAX_GAP: Duration = Duration::from_secs(4);
/// The same in one round of faults, which runs beside other suites and has no median: client-go's
/// pause before it lists again and the processor time that is left come on top.
const MAX_GAP_OF_ONE: Duration = Duration::from_secs(8);
/// How long a call of kubectl may take.
const MAX_CALL: Duration = Duration::from_secs(5);
/// How long the controllers may take to react again.
const MAX_REACTION: Duration = Duration::from_secs(10);
/// Sessions that are open before a fault: two watches, the controllers.
const LEAST_SESSIONS: u64 = 3;
/// The order injects each fault into the apiserver that the previous one has not hit, so that
/// nothing waits for a restart. The fault that needs flags comes two faults after a restart.
const ORDER: [Fault; 5] =
    [Fault::Kill, Fault::Vanish, Fault::TerminateLater, Fault::Hang, Fault::Terminate];

/// The observed effect of a fault.
#[derive(Debug)]
struct Noticed {
    fault: Fault,
    begun: Instant,
    calls: Vec<Call>,
    kubectl: Duration,
    ended: usize,
    python: Duration,
    reaction: Duration,
}

impl Noticed {
    /// The start, relative to the fault, of each failed call, and its output.
    fn failed(&self) -> Vec<(f64, &Call)> {
        let failed = self.calls.iter().filter(|call| !call.succeeded);
        let since = |call: &Call| call.at.saturating_duration_since(self.begun).as_secs_f64();
        failed.map(|call| (since(call), call)).collect()
    }

    fn slowest(&self) -> Duration {
        self.calls.iter().map(|call| call.took).max().unwrap_or_default()
    }

    /// The start, relative to the fault, of the slowest call.
    fn slowest_at(&self) -> Duration {
        let slowest = self.calls.iter().max_by_key(|call| call.took);
        slowest.map_or(Duration::ZERO, |call| call.at.saturating_duration_since(self.begun))
    }

    fn print(&self) {
        println!(
            "{:20} calls {:2}, failed {}, slowest {:.2} s (at {:.1} s); longest silence: kubectl \
             --watch {:.2} s ({} ended), Python {:.2} s; controllers react after {:.2} s",
            self.fault.name(),
            self.calls.len(),
            self.failed().len(),
            self.slowest().as_secs_f64(),
            self.slowest_at().as_secs_f64(),
            self.kubectl.as_secs_f64(),
            self.ended,
            self.python.as_secs_f64(),
            self.reaction.as_secs_f64(),
        );
    }

    fn assert(&self) {
        let name = self.fault.name();
        assert!(self.failed().is_empty(), "{name}: {:?}", self.failed());
        assert!(self.slowest() <= MAX_CALL, "{name}: a call took {:?}", self.slowest());
        let max_gap = if rounds() > 1 { MAX_GAP } else { MAX_GAP_OF_ONE };
        assert!(self.kubectl <= max_gap, "{name}: kubectl saw nothing for {:?}", self.kubectl);
        assert!(self.python <= max_gap, "{name}: Python saw nothing for {:?}", self.python);
        assert!(self.reaction <= MAX_REACTION, "{name}: reaction after {:?}", self.reaction);
        if self.fault.is_graceful() {
            assert_eq!(self.ended, 0, "{name}: kubectl's watch ended");
        }
    }
}

/// The clients of one run.
struct Clients {
    kubectl: Kubectl,
    direct: Kubectl,
    watch: Watch,
    python: Option<Watchers>,
    namespaces: u32,
}

impl Clients {
    /// How long after `at` the controllers have reacted to a namespace that is created now.
    fn reaction(&mut self, at: Instant) -> Duration {
        self.namespaces += 1;
        let name = format!("made-{}", self.namespaces);
        self.direct.ok(&["create", "namespace", &name]);
        wait::until("the controllers fill a new namespace", START_LIMIT, || {
            let account = ["-n", &name, "get", "serviceaccount", "default"];
            self.direct.run(&account).status.success().then_some(())
        });
        at.elapsed()
    }

    fn silence(&self, from: Instant, until: Instant) -> Duration {
        let each = self.python.iter().flat_map(Watchers::arrivals);
        each.map(|own: Arrivals| own.longest_gap(from, until)).max().unwrap_or_default()
    }
}

/// Restarts the controllers and a second set that waits for their lease, and returns its holder.
///
/// Each lost watch doubles client-go's own pause before it lists again, up to half a minute, and
/// two quiet minutes reset it: a second round of faults would measure only that pause.
fn restart_controllers(cluster: &mut Cluster, clients: &mut Clients) -> String {
    ["controllers-standby", "controllers"].iter().for_each(|name| cluster.kill(name));
    cluster.start_controllers("controllers", WORKER);
    clients.reaction(wait::now());
    cluster.start_controllers("controllers-standby", 3);
    clients.direct.lease("kube-controller-manager")
}

/// Prints the median of each figure of each fault.
fn print_medians(all: &[Noticed]) {
    if rounds() < 2 {
        return;
    }
    for fault in ORDER {
        let own: Vec<&Noticed> = all.iter().filter(|it| it.fault == fault).collect();
        let middle = |figure: fn(&Noticed) -> Duration| {
            median(own.iter().map(|it| figure(it)).collect()).as_secs_f64()
        };
        println!(
            "{:20} median of {}: slowest {:.2} s; longest silence: kubectl --watch {:.2} s, \
             Python {:.2} s; controllers react after {:.2} s",
            fault.name(),
            own.len(),
            middle(Noticed::slowest),
            middle(|it| it.kubectl),
            middle(|it| it.python),
            middle(|it| it.reaction),
        );
    }
}

fn play(cluster: &mut Cluster, clients: &mut Clients, fault: Fault, after: &[&str]) -> Noticed {
    cluster.all_are_ready();
    let victim = cluster.gathered(LEAST_SESSIONS);
    assert!(victim < 3, "the third writes what is watched");
    let arguments = cluster.apiserver(victim).arguments();
    let has = |flag: &&&str| arguments.iter().any(|argument| argument == **flag);
    let lacks = fault.flags().iter().find(|flag| !has(flag));
    assert!(lacks.is_none(), "{} is to hit an apiserver without {lacks:?}", fault.name());
    let calls = Calls::begin(&clients.kubectl, &format!("call-{}", clients.namespaces));
    calls.pass(wait::now(), START_LIMIT);
    let ended = clients.watch.ends().len();
    let begun = wait::now();
    fault.strike(cluster, victim);
    let reaction = clients.reaction(begun);
    let until = begun + fault.span();
    calls.pass(until, START_LIMIT);
    let noticed = Noticed {
        fault,
        begun,
        calls: calls.finish(),
        kubectl: clients.watch.arrivals().longest_gap(begun, until),
        ended: clients.watch.ends().len() - ended,
        python: clients.silence(begun, until),
        reaction,
    };
    noticed.print();
    fault.heal(cluster, victim, after);
    noticed
}

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes-smoke"]
fn clients_get_over_every_fault_of_their_apiserver() {
    let mut cluster = Cluster::new(Plan {
        // Sessions that remained on other origins are moved at once.
        settings: "drift-percent = 100\n".to_owned(),
        ..Plan::default()
    });
    let _beat = Beat::start(&cluster, 3);
    let (kubectl, direct) = (cluster.kubectl(WORKER), cluster.kubectl_direct(3));
    let mut clients = Clients {
        watch: Watch::start(&kubectl),
        python: Watchers::start(&cluster, WORKER, LOCAL, 1),
        kubectl,
        direct,
        namespaces: 0,
    };
    let faults: Vec<Fault> = ORDER.repeat(rounds());
    let (mut all, mut holder) = (Vec::new(), String::new());
    for (at, fault) in faults.iter().enumerate() {
        if at % ORDER.len() == 0 {
            holder = restart_controllers(&mut cluster, &mut clients);
        }
        let after = faults.get(at + 2).map_or(&[][..], |next| next.flags());
        all.push(play(&mut cluster, &mut clients, *fault, after));
        assert!(cluster.process("controllers").is_running(), "the controllers gave up");
        assert_eq!(
            clients.direct.lease("kube-controller-manager"),
            holder,
            "the controllers' lease changed hands"
        );
    }
    print_medians(&all);
    all.iter().for_each(Noticed::assert);
}
