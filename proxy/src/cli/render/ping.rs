//! `meshport ping`: a line per probe and a summary.

use meshport_core::units::milliseconds;
use meshport_daemon::admin::api::NodeRef;

/// The summary of all probes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PingSummary {
    pub(crate) sent: usize,
    pub(crate) answered: usize,
    /// Least, mean and greatest round trip in milliseconds, when there was an answer.
    pub(crate) rtt_ms: Option<[f64; 3]>,
}

impl PingSummary {
    pub(crate) fn of(probes: &[Option<f64>]) -> Self {
        let answers: Vec<f64> = probes.iter().flatten().copied().collect();
        let least = answers.iter().copied().reduce(f64::min);
        let greatest = answers.iter().copied().reduce(f64::max);
        #[expect(clippy::cast_precision_loss, reason = "a count of probes is small")]
        let mean = answers.iter().sum::<f64>() / answers.len() as f64;
        let rtt_ms = least.zip(greatest).map(|(least, greatest)| [least, mean, greatest]);
        Self { sent: probes.len(), answered: answers.len(), rtt_ms }
    }
}

pub(crate) fn ping_header(who: &NodeRef) -> String {
    format!("ping {} in {} ({}) through the mesh\n", who.name, who.site, who.node.short())
}

pub(crate) fn ping_line(who: &NodeRef, sequence: usize, probe: Option<f64>) -> String {
    match probe {
        Some(ms) => format!("answer {sequence} from {}: {}\n", who.name, milliseconds(ms)),
        None => format!("no answer {sequence} from {}\n", who.name),
    }
}

pub(crate) fn ping_summary(who: &NodeRef, summary: &PingSummary) -> String {
    let lost = (summary.sent - summary.answered) * 100 / summary.sent.max(1);
    let counts = format!("{} sent, {} answered, {lost} % lost", summary.sent, summary.answered);
    match summary.rtt_ms {
        None => format!("{}: {counts}\n", who.name),
        Some([least, mean, greatest]) => format!(
            "{}: {counts}; min {}, avg {}, max {}\n",
            who.name,
            milliseconds(least),
            milliseconds(mean),
            milliseconds(greatest)
        ),
    }
}
