//! Ready-made paths, from a datacenter to a satellite, with the sources of their figures.
//!
//! Latencies are one way. A figure without a named source is this project's own choice. Bursts of
//! loss are as long as a few datagrams of a voice call, which sends one each [`VOICE`].

use std::time::Duration;

use super::{Jitter, LinkConfig, Loss, Rate};

/// The names [`LinkConfig::preset`] knows, from near to far.
pub const PRESETS: [&str; 6] =
    ["lan", "metro", "continent", "intercontinental", "lossy-lte", "satellite"];

/// From one datagram of a voice call to the next: the usual unit for the lengths of bursts.
const VOICE: Duration = Duration::from_millis(20);

impl LinkConfig {
    /// The preset of that name; [`PRESETS`] lists them.
    pub fn preset(name: &str) -> Option<Self> {
        Some(match name {
            "lan" => Self::lan(),
            "metro" => Self::metro(),
            "continent" => Self::continent(),
            "intercontinental" => Self::intercontinental(),
            "lossy-lte" => Self::lossy_lte(),
            "satellite" => Self::satellite(),
            _ => return None,
        })
    }

    /// Inside one datacenter: 0.12 ms one way, loss 2 in 100,000.
    ///
    /// Source: Guo et al., "Pingmesh: A Large-Scale System for Data Center Network Latency
    /// Measurement and Analysis", SIGCOMM 2015 (median round trips of a quarter of a millisecond,
    /// drop rates of 1 in 100,000 to 1 in 10,000).
    pub fn lan() -> Self {
        Self {
            latency: Duration::from_micros(120),
            jitter: Jitter::Exponential { mean: Duration::from_micros(20) },
            loss: Loss::independent(0.000_02),
            rate: Some(Rate::new(10_000_000_000, Duration::from_millis(1))),
            mtu: 1500,
            ..Self::default()
        }
    }

    /// Between datacenters of one region: 0.5 ms one way.
    ///
    /// Source: 100 km, the greatest distance between availability zones that AWS states for its
    /// regions, at 5 microseconds per kilometre of fibre.
    pub fn metro() -> Self {
        Self {
            latency: Duration::from_micros(500),
            jitter: Jitter::Exponential { mean: Duration::from_micros(50) },
            loss: Loss::independent(0.000_05),
            rate: Some(Rate::new(10_000_000_000, Duration::from_millis(5))),
            mtu: 1500,
            ..Self::default()
        }
    }

    /// Across a continent: 22 ms one way, loss 1 in 2,000 in bursts of 40 ms.
    ///
    /// Source: Verizon's service level for round trips across the United States, 45 ms.
    pub fn continent() -> Self {
        Self {
            latency: Duration::from_millis(22),
            jitter: Jitter::Exponential { mean: Duration::from_micros(500) },
            loss: Loss::bursty(0.000_5, VOICE.saturating_mul(2)),
            rate: Some(Rate::new(1_000_000_000, Duration::from_millis(20))),
            mtu: 1500,
            ..Self::default()
        }
    }

    /// Between continents: 75 ms one way, loss 1 in 1,000 in bursts of 60 ms.
    ///
    /// Source: `gcping`, round trips of 150 to 170 ms from the west of the United States to
    /// Google's regions in Europe; loss from ITU-T Y.1541, the upper bound of classes 0 to 4.
    pub fn intercontinental() -> Self {
        Self {
            latency: Duration::from_millis(75),
            jitter: Jitter::Exponential { mean: Duration::from_millis(1) },
            loss: Loss::bursty(0.001, VOICE.saturating_mul(3)),
            rate: Some(Rate::new(1_000_000_000, Duration::from_millis(50))),
            mtu: 1500,
            ..Self::default()
        }
    }

    /// A bad day on a mobile network: 27 ms one way with a long tail, loss 2 % in bursts of
    /// 160 ms.
    ///
    /// Source: Catchpoint's week of LTE pings from Los Angeles and New York (Performance Calendar
    /// 2013): median round trip 55 ms, with a standard deviation above the median. The bursts stand
    /// for handovers.
    pub fn lossy_lte() -> Self {
        Self {
            latency: Duration::from_millis(27),
            jitter: Jitter::Exponential { mean: Duration::from_millis(10) },
            loss: Loss::bursty(0.02, VOICE.saturating_mul(8)),
            overtaking: 0.005,
            rate: Some(Rate::new(12_000_000, Duration::from_millis(300))),
            mtu: 1420,
            ..Self::default()
        }
    }

    /// One hop over a geostationary satellite: 279 ms one way, loss 1 in 200 in bursts of 80 ms.
    ///
    /// Source: RFC 2488, section 2: propagation for stations at the edge of the view area.
    pub fn satellite() -> Self {
        Self {
            latency: Duration::from_millis(279),
            jitter: Jitter::Uniform { max: Duration::from_millis(15) },
            loss: Loss::bursty(0.005, VOICE.saturating_mul(4)),
            rate: Some(Rate::new(50_000_000, Duration::from_millis(250))),
            mtu: 1500,
            ..Self::default()
        }
    }
}
