use proptest::prelude::*;

use super::*;

const MILLISECOND: Duration = Duration::from_millis(1);

fn arrivals(link: &mut Link, count: u32, gap: Duration, bytes: usize) -> Vec<Verdict> {
    (0..count).map(|index| link.send(gap * index, bytes)).collect()
}

fn jitter() -> impl Strategy<Value = Jitter> {
    prop_oneof![
        Just(Jitter::None),
        (0u64..50_000).prop_map(|us| Jitter::Uniform { max: Duration::from_micros(us) }),
        (0u64..50_000).prop_map(|us| Jitter::Exponential { mean: Duration::from_micros(us) }),
    ]
}

prop_compose! {
    fn config()(
        latency_us in 0u64..300_000,
        jitter in jitter(),
        loss in 0.0f64..0.5,
        burst in 1.0f64..20.0,
        overtaking in 0.0f64..=1.0,
        duplication in 0.0f64..0.3,
        rate in proptest::option::of((100_000u64..1_000_000_000, 0u64..200)),
    ) -> LinkConfig {
        LinkConfig {
            latency: Duration::from_micros(latency_us),
            jitter,
            loss: Loss::bursty(loss, burst),
            overtaking,
            duplication,
            rate: rate.map(|(bits, ms)| Rate::new(bits, Duration::from_millis(ms))),
            mtu: 1500,
            ..LinkConfig::default()
        }
    }
}

proptest! {
    #[test]
    fn nothing_arrives_before_the_latency(config in config(), seed: u64, gap_us in 0u64..5_000) {
        let gap = Duration::from_micros(gap_us);
        let mut link = Link::new(config.clone(), seed);
        for (index, verdict) in arrivals(&mut link, 300, gap, 1200).into_iter().enumerate() {
            if let Verdict::Deliver(deliveries) = verdict {
                let sent = gap * u32::try_from(index).unwrap();
                prop_assert!(deliveries.at >= sent + config.latency);
                prop_assert!(deliveries.duplicate_at.is_none_or(|copy| copy >= deliveries.at));
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_verdicts(config in config(), seed: u64) {
        let first = arrivals(&mut Link::new(config.clone(), seed), 300, MILLISECOND, 900);
        let second = arrivals(&mut Link::new(config, seed), 300, MILLISECOND, 900);
        prop_assert_eq!(first, second);
    }

    #[test]
    fn a_link_without_overtaking_keeps_order(mut config in config(), seed: u64) {
        config.overtaking = 0.0;
        let mut link = Link::new(config, seed);
        let mut last = Duration::ZERO;
        for verdict in arrivals(&mut link, 500, Duration::from_micros(100), 700) {
            if let Verdict::Deliver(Deliveries { at, duplicate_at }) = verdict {
                prop_assert!(at >= last);
                last = duplicate_at.unwrap_or(at);
            }
        }
        prop_assert_eq!(link.counters().overtook, 0);
    }

    #[test]
    fn every_datagram_is_counted_once(config in config(), seed: u64) {
        let mut link = Link::new(config, seed);
        let verdicts = arrivals(&mut link, 400, Duration::from_micros(200), 1500);
        let counters = link.counters();
        let dropped = counters.dropped_down
            + counters.dropped_too_big
            + counters.dropped_queue_full
            + counters.dropped_lost;
        prop_assert_eq!(counters.sent, 400);
        prop_assert_eq!(counters.sent, counters.delivered + dropped);
        let arrived = verdicts.iter().filter(|v| matches!(v, Verdict::Deliver(_))).count() as u64;
        prop_assert_eq!(counters.delivered, arrived);
    }

    #[test]
    fn the_loss_rate_is_the_configured_one(
        share in 0.01f64..0.3, burst in 1.0f64..8.0, independent: bool, seed: u64,
    ) {
        const SENT: u32 = 60_000;
        let loss = if independent { Loss::independent(share) } else { Loss::bursty(share, burst) };
        prop_assume!((loss.mean() - share).abs() < 1e-9);
        let mut link = Link::new(LinkConfig { loss, ..LinkConfig::default() }, seed);
        arrivals(&mut link, SENT, MILLISECOND, 100);
        let measured = link.counters().dropped_lost as f64 / f64::from(SENT);
        // Six standard deviations of the mean of a chain whose runs are `burst` long.
        let length = if independent { 1.0 } else { 2.0 * burst };
        let bound = 6.0 * (share * (1.0 - share) * length / f64::from(SENT)).sqrt();
        prop_assert!((measured - share).abs() < bound, "measured {} for {}", measured, share);
    }

    #[test]
    fn odd_settings_do_not_panic(
        p in prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(-1.0), Just(2.0)],
        seed: u64,
        bytes in 0usize..1_000_000,
    ) {
        let config = LinkConfig {
            latency: Duration::MAX,
            jitter: Jitter::Exponential { mean: Duration::MAX },
            loss: Loss { enter_burst: p, leave_burst: p, outside: p, inside: p },
            overtaking: p,
            duplication: p,
            rate: Some(Rate { bits_per_second: 0, queue_bytes: u64::MAX }),
            ..LinkConfig::default()
        };
        arrivals(&mut Link::new(config, seed), 5, MILLISECOND, bytes);
    }
}

#[test]
fn bursts_are_as_long_as_configured() {
    let config = LinkConfig { loss: Loss::bursty(0.05, 8.0), ..LinkConfig::default() };
    let mut link = Link::new(config, 7);
    let lost: Vec<bool> = arrivals(&mut link, 200_000, MILLISECOND, 100)
        .iter()
        .map(|verdict| matches!(verdict, Verdict::Drop(DropReason::Lost)))
        .collect();
    let total = lost.iter().filter(|lost| **lost).count() as f64;
    let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
    let mean = total / bursts;
    assert!((7.0..9.0).contains(&mean), "mean burst of {mean}");
}

#[test]
fn jitter_alone_reorders_when_overtaking_is_allowed() {
    let config = LinkConfig {
        jitter: Jitter::Uniform { max: 20 * MILLISECOND },
        overtaking: 1.0,
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, 1);
    arrivals(&mut link, 1000, MILLISECOND, 100);
    assert!(link.counters().overtook > 300, "{:?}", link.counters());
}

#[test]
fn exponential_jitter_has_its_mean_and_its_bound() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let draws: Vec<f64> = (0..100_000).map(|_| exponential(&mut rng)).collect();
    let mean = draws.iter().sum::<f64>() / draws.len() as f64;
    assert!((0.98..1.02).contains(&mean), "mean {mean}");
    let beyond_two = draws.iter().filter(|draw| **draw > 2.0).count() as f64 / 100_000.0;
    assert!((0.129..0.142).contains(&beyond_two), "exp(-2) is 0.135, not {beyond_two}");
    assert!(draws.iter().all(|draw| *draw <= f64::from(EXPONENTIAL_CUT_OFF)));
}

#[test]
fn a_bottleneck_spaces_datagrams_and_drops_what_does_not_fit() {
    // 8 Mbit/s is one byte per microsecond; the queue holds ten datagrams.
    let rate = Rate::new(8_000_000, 10 * MILLISECOND);
    assert_eq!(rate.queue_bytes, 10_000);
    let mut link = Link::new(LinkConfig { rate: Some(rate), ..LinkConfig::default() }, 0);
    let verdicts: Vec<Verdict> = (0..20).map(|_| link.send(Duration::ZERO, 1000)).collect();
    for (index, verdict) in verdicts.iter().enumerate() {
        let expected = if index < 10 {
            let at = MILLISECOND * (u32::try_from(index).unwrap() + 1);
            Verdict::Deliver(Deliveries { at, duplicate_at: None })
        } else {
            Verdict::Drop(DropReason::QueueFull)
        };
        assert_eq!(*verdict, expected, "datagram {index}");
    }
    assert!(matches!(link.send(10 * MILLISECOND, 1000), Verdict::Deliver(_)), "it has drained");
}

#[test]
fn a_queue_smaller_than_a_datagram_still_passes_one_at_a_time() {
    let rate = Rate { bits_per_second: 8_000_000, queue_bytes: 0 };
    let mut link = Link::new(LinkConfig { rate: Some(rate), ..LinkConfig::default() }, 0);
    assert!(matches!(link.send(Duration::ZERO, 1000), Verdict::Deliver(_)));
    assert_eq!(link.send(Duration::ZERO, 1000), Verdict::Drop(DropReason::QueueFull));
    assert!(matches!(link.send(MILLISECOND, 1000), Verdict::Deliver(_)));
}

#[test]
fn size_and_state_of_the_link_are_respected() {
    let mut link = Link::new(LinkConfig { mtu: 1500, ..LinkConfig::default() }, 0);
    assert_eq!(link.send(Duration::ZERO, 1501), Verdict::Drop(DropReason::TooBig));
    assert!(matches!(link.send(Duration::ZERO, 1500), Verdict::Deliver(_)));
    link.set_up(false);
    assert_eq!(link.send(Duration::ZERO, 100), Verdict::Drop(DropReason::Down));
    link.set_up(true);
    assert!(matches!(link.send(Duration::ZERO, 100), Verdict::Deliver(_)));
}

#[test]
fn the_same_datagrams_are_lost_whatever_the_delay() {
    let lost = |config: LinkConfig| -> Vec<bool> {
        arrivals(&mut Link::new(config, 11), 5000, MILLISECOND, 100)
            .iter()
            .map(|verdict| matches!(verdict, Verdict::Drop(DropReason::Lost)))
            .collect()
    };
    let near = LinkConfig { loss: Loss::bursty(0.1, 3.0), ..LinkConfig::default() };
    let far = LinkConfig { loss: near.loss, ..LinkConfig::lossy_lte() };
    let far = LinkConfig { rate: None, ..far };
    assert_eq!(lost(near), lost(far));
}

#[test]
fn every_preset_carries_traffic() {
    for name in PRESETS {
        let config = LinkConfig::preset(name).expect("listed");
        let mut link = Link::new(config, 5);
        arrivals(&mut link, 2000, 2 * MILLISECOND, 1400);
        assert!(link.counters().delivered > 1900, "{name}: {:?}", link.counters());
    }
    assert_eq!(LinkConfig::preset("carrier-pigeon"), None);
}
