//! Converts a scenario's path settings to link settings.

use std::collections::BTreeMap;
use std::time::Duration;

use meshport_demo::wan::link::PRESETS;
use meshport_demo::wan::{Jitter, LinkConfig, Loss, Rate};

use super::{Scenario, SitePath, keys, milliseconds, percent, strict};
use crate::Error;

/// Light in fibre takes 4.9 microseconds a kilometre (refractive index 1.468); cables and routers
/// make paths between cities about 50 % longer than the great circle (this project's choice).
const ROUND_TRIP_MS_PER_KM: f64 = 2.0 * 0.0049 * 1.5;
/// The mean radius of the earth.
const EARTH_KM: f64 = 6371.0;
/// The minimum round trip between two sites with coordinates.
const LEAST_RTT_MS: f64 = 0.5;

/// The preset of that name.
pub fn preset(name: &str) -> Result<LinkConfig, Error> {
    LinkConfig::preset(name).ok_or_else(|| {
        let near = strict::near(name, PRESETS);
        let all = PRESETS.join(", ");
        Error::Scenario(format!("there is no preset \"{name}\"{near} (presets: {all})"))
    })
}

/// The link from each site to each site, by index; a site to itself is the path inside it.
pub fn configs(scenario: &Scenario) -> Result<BTreeMap<(usize, usize), LinkConfig>, Error> {
    let mut configs = BTreeMap::new();
    for (a, site) in scenario.sites.iter().enumerate() {
        for (b, other) in scenario.sites.iter().enumerate() {
            let rtt_ms = match (a == b, site.at, other.at) {
                (true, ..) => site.rtt_ms,
                (false, Some(here), Some(there)) => by_distance(here, there),
                _ => scenario.default_rtt_ms,
            };
            configs.insert((a, b), plain(rtt_ms, scenario.loss_percent));
        }
    }
    for (index, path) in scenario.paths.iter().enumerate() {
        let [a, b] = &path.between;
        let named = |error| strict::of_item("path", index, &format!("{a} and {b}"), error);
        for pair in pairs(scenario, path).map_err(named)? {
            let before = configs[&pair].clone();
            configs.insert(pair, apply(before, path).map_err(named)?);
        }
    }
    Ok(configs)
}

/// The directions that a path applies to.
pub fn pairs(scenario: &Scenario, path: &SitePath) -> Result<Vec<(usize, usize)>, Error> {
    let [a, b] = &path.between;
    let (a, b) = (scenario.site(a.as_str())?, scenario.site(b.as_str())?);
    Ok(if path.one_way || a == b { vec![(a, b)] } else { vec![(a, b), (b, a)] })
}

/// The link with the path's settings applied.
///
/// # Errors
/// [`Error::Scenario`] for values out of range, and for keys that have no effect without others.
pub fn apply(mut link: LinkConfig, path: &SitePath) -> Result<LinkConfig, Error> {
    keys::check_path(path)?;
    if let Some(name) = &path.preset {
        // The path stands for many flows, regardless of the preset for a single one.
        link = LinkConfig { overtaking: 1.0, ..preset(name)? };
    }
    if let Some(rtt_ms) = path.rtt_ms {
        milliseconds(rtt_ms, "rtt-ms")?;
        link.latency = one_way(rtt_ms);
    }
    if let Some(jitter_ms) = path.jitter_ms {
        milliseconds(jitter_ms, "jitter-ms")?;
        link.jitter = jitter(jitter_ms, path.jitter.as_deref())?;
    }
    if let Some(share) = path.loss_percent {
        percent(share, "loss-percent")?;
        link.loss = match path.loss_burst_ms {
            Some(burst_ms) => {
                milliseconds(burst_ms, "loss-burst-ms")?;
                Loss::bursty(share / 100.0, Duration::from_secs_f64(burst_ms / 1000.0))
            }
            None => Loss::independent(share / 100.0),
        };
    }
    if let Some(share) = path.reorder_percent {
        percent(share, "reorder-percent")?;
        link.overtaking = share / 100.0;
    }
    if let Some(share) = path.duplicate_percent {
        percent(share, "duplicate-percent")?;
        link.duplication = share / 100.0;
    }
    if let Some(megabits) = path.rate_mbit {
        if !(0.001..=1e6).contains(&megabits) {
            let wrong = format!("rate-mbit = {megabits}: expected 0.001 to 1000000");
            return Err(Error::Scenario(wrong));
        }
        let queue_ms = path.queue_ms.unwrap_or(50.0);
        milliseconds(queue_ms, "queue-ms")?;
        #[expect(clippy::cast_possible_truncation, reason = "checked above")]
        #[expect(clippy::cast_sign_loss, reason = "checked above")]
        let bits = (megabits * 1e6) as u64;
        link.rate = Some(Rate::new(bits, Duration::from_secs_f64(queue_ms / 1000.0)));
    }
    link.mtu = path.mtu.unwrap_or(link.mtu);
    Ok(link)
}

fn plain(rtt_ms: f64, loss_percent: f64) -> LinkConfig {
    LinkConfig {
        loss: Loss::independent(loss_percent / 100.0),
        overtaking: 1.0,
        ..LinkConfig::delay(one_way(rtt_ms))
    }
}

fn one_way(rtt_ms: f64) -> Duration {
    Duration::from_secs_f64(rtt_ms / 2000.0)
}

fn jitter(mean_ms: f64, name: Option<&str>) -> Result<Jitter, Error> {
    let time = Duration::from_secs_f64(mean_ms / 1000.0);
    match name {
        None | Some("exponential") => Ok(Jitter::Exponential { mean: time }),
        Some("uniform") => Ok(Jitter::Uniform { max: time }),
        Some(name) => {
            let near = strict::near(name, ["exponential", "uniform"]);
            let valid = "expected exponential or uniform";
            Err(Error::Scenario(format!("jitter = \"{name}\": {valid}{near}")))
        }
    }
}

/// The round trip over a great circle, in steps of 10 microseconds: the last digits of trigonometry
/// differ between machines, and a run must not.
fn by_distance(a: [f64; 2], b: [f64; 2]) -> f64 {
    let [lat_a, lon_a] = a.map(f64::to_radians);
    let [lat_b, lon_b] = b.map(f64::to_radians);
    let half = |x: f64| (x / 2.0).sin().powi(2);
    let chord = half(lat_b - lat_a) + lat_a.cos() * lat_b.cos() * half(lon_b - lon_a);
    let km = 2.0 * EARTH_KM * chord.sqrt().min(1.0).asin();
    (km * ROUND_TRIP_MS_PER_KM * 100.0).round().max(LEAST_RTT_MS * 100.0) / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_give_plausible_round_trips() {
        let (frankfurt, ashburn) = ([50.1, 8.7], [39.0, -77.5]);
        let rtt = by_distance(frankfurt, ashburn);
        assert!((85.0..110.0).contains(&rtt), "{rtt}");
        assert_eq!(rtt, by_distance(ashburn, frankfurt));
        assert_eq!(by_distance(frankfurt, frankfurt), LEAST_RTT_MS);
    }
}
