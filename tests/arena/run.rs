//! One run: a stage, clients, the schedule of one fault, and the results.

use std::path::Path;
use std::time::Duration;

use meshport_tests::wait;

use crate::client::Clients;
use crate::contenders::{CONTROL, Contender};
use crate::faults::Fault;
use crate::record::Record;
use crate::score::Moments;
use crate::stage::{CLIENT, Stage};

/// How long clients run before the fault, to measure the normal state and open twelve held
/// connections each.
const WARM_UP: Duration = Duration::from_secs(6);
/// The share of new connections that must work before the fault; otherwise the arena itself has
/// failed.
const MIN_WELL_PERCENT: usize = 90;

/// The results of one run, in the order of the contenders; the clients without a balancer are last.
pub(crate) struct Played {
    pub(crate) moments: Moments,
    pub(crate) records: Vec<(String, Record)>,
}

/// Plays a fault against all contenders at once.
pub(crate) fn play(
    fault: &Fault,
    contenders: &[Contender],
    seed: u64,
    folder: &Path,
    log_level: &str,
) -> Played {
    let mut stage = Stage::new(contenders, fault.relay, seed, folder, log_level);
    let mut targets: Vec<_> =
        contenders.iter().map(|it| (it.name.to_owned(), it.local())).collect();
    targets.push((CONTROL.to_owned(), stage.addresses()[1]));
    let epoch = wait::now();
    let host = stage.network.hosts[CLIENT].namespace_file();
    let clients = Clients::start(&host, &stage.authority(), &targets, epoch);
    let begun = epoch + WARM_UP;
    let since = |moment| wait::now().min(moment).saturating_duration_since(epoch);
    let mut moments =
        Moments { fault: WARM_UP, struck: WARM_UP, heal: None, healed: None, end: WARM_UP };
    for (at, act) in &fault.steps {
        wait::moment(begun + Duration::from_secs((*at).into()));
        let before = wait::now();
        act.perform(&mut stage);
        if *at == 0 {
            moments.struck = since(wait::now());
        }
        if fault.heal == Some(*at) {
            // Several steps may heal: from the first to the last.
            moments.heal.get_or_insert(since(before));
            moments.healed = Some(since(wait::now()));
        }
    }
    let end = begun + Duration::from_secs(fault.end.into());
    wait::moment(end);
    moments.end = end.saturating_duration_since(epoch);
    let mut records = clients.finish();
    let records: Vec<(String, Record)> = targets
        .iter()
        .filter_map(|(name, _)| Some((name.clone(), records.remove(name)?)))
        .collect();
    for (name, record) in &records {
        check(name, record, moments);
    }
    Played { moments, records }
}

/// A balancer that does not work without a fault shows nothing about the fault.
fn check(name: &str, record: &Record, moments: Moments) {
    let before = || record.attempts.iter().filter(|it| it.begun < moments.fault);
    let well = before().filter(|it| it.outcome.is_ok()).count();
    assert!(
        well > 0 && well * 100 >= before().count() * MIN_WELL_PERCENT,
        "{name} served {well} of {} connections before the fault: see its log",
        before().count()
    );
}
