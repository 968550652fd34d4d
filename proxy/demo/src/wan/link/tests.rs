use proptest::prelude::*;

use super::*;

const MILLISECOND: Duration = Duration::from_millis(1);

fn arrivals(link: &mut Link, count: u32, gap: Duration, bytes: usize) -> Vec<Verdict> {
    (0..count).map(|index| link.send(gap * index, bytes)).collect()
}

fn count(verdicts: &[Verdict], is_counted: fn(&Verdict) -> bool) -> usize {
    verdicts.iter().filter(|verdict| is_counted(verdict)).count()
}

fn is_lost(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Drop(DropReason::Lost))
}

fn is_delivered(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Deliver(_))
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
        burst_ms in 0u32..500,
        overtaking in 0.0f64..=1.0,
        duplication in 0.0f64..0.3,
        rate in proptest::option::of((100_000u64..1_000_000_000, 0u64..200)),
    ) -> LinkConfig {
        LinkConfig {
            latency: Duration::from_micros(latency_us),
            jitter,
            loss: Loss::bursty(loss, burst_ms * MILLISECOND),
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
            loss: Loss { in_bursts: p, burst: Duration::MAX, outside: p, inside: p },
            overtaking: p,
            duplication: p,
            rate: Some(Rate { bits_per_second: 0, queue_bytes: u64::MAX }),
            ..LinkConfig::default()
        };
        arrivals(&mut Link::new(config, seed), 5, MILLISECOND, bytes);
    }
}

/// How many datagrams are lost in a row on average, of so many sent one each `gap`.
fn mean_run(loss: Loss, count: u32, gap: Duration) -> f64 {
    let mut link = Link::new(LinkConfig { loss, ..LinkConfig::default() }, 7);
    let lost: Vec<bool> = arrivals(&mut link, count, gap, 100).iter().map(is_lost).collect();
    let total = lost.iter().filter(|lost| **lost).count() as f64;
    let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
    total / bursts
}

#[test]
fn bursts_last_as_long_as_configured_whatever_is_sent() {
    let loss = Loss::bursty(0.05, 80 * MILLISECOND);
    let mean = mean_run(loss, 1_000_000, MILLISECOND);
    assert!((72.0..89.0).contains(&mean), "{mean} datagrams of one each ms");
    let mean = mean_run(loss, 400_000, 10 * MILLISECOND);
    assert!((7.6..9.2).contains(&mean), "{mean} datagrams of one each 10 ms");
    // A sender of one a second finds none of the last burst: only chance loses two in a row.
    let mean = mean_run(loss, 200_000, 1000 * MILLISECOND);
    assert!((1.03..1.075).contains(&mean), "{mean} datagrams of one a second");
}

#[test]
fn what_is_sent_at_one_moment_shares_its_fate() {
    let loss = Loss::bursty(0.5, MILLISECOND);
    let mut link = Link::new(LinkConfig { loss, ..LinkConfig::default() }, 7);
    let mut fates = [false; 2];
    for second in 0..50 {
        let now = second * 1000 * MILLISECOND;
        let first = matches!(link.send(now, 100), Verdict::Deliver(_));
        fates[usize::from(first)] = true;
        for _ in 0..50 {
            assert_eq!(matches!(link.send(now, 100), Verdict::Deliver(_)), first);
        }
    }
    assert_eq!(fates, [true; 2]);
}

#[test]
fn nothing_and_everything_may_be_lost_in_bursts() {
    for (share, lost) in [(0.0, 0), (1.0, 1000)] {
        let loss = Loss::bursty(share, 80 * MILLISECOND);
        let mut link = Link::new(LinkConfig { loss, ..LinkConfig::default() }, 7);
        assert_eq!(count(&arrivals(&mut link, 1000, MILLISECOND, 100), is_lost), lost);
    }
}

#[test]
fn decay_is_the_exponential_function() {
    for step in 0..64_000 {
        let x = f64::from(step) / 1000.0;
        let (own, exact) = (decay(x), (-x).exp());
        assert!((own / exact - 1.0).abs() < 1e-12, "exp(-{x}): {own} instead of {exact}");
    }
    for x in [64.0, 1e300, f64::INFINITY, f64::NAN] {
        assert_eq!(decay(x), 0.0);
    }
}

#[test]
fn jitter_alone_reorders_when_overtaking_is_allowed() {
    let config = LinkConfig {
        jitter: Jitter::Uniform { max: 20 * MILLISECOND },
        overtaking: 1.0,
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, 1);
    let (mut last, mut overtook) = (Duration::ZERO, 0);
    for verdict in arrivals(&mut link, 1000, MILLISECOND, 100) {
        let Verdict::Deliver(Deliveries { at, .. }) = verdict else { panic!("{verdict:?}") };
        overtook += u32::from(at < last);
        last = last.max(at);
    }
    assert!(overtook > 300, "{overtook}");
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
        arrivals(&mut Link::new(config, 11), 5000, MILLISECOND, 100).iter().map(is_lost).collect()
    };
    let near = LinkConfig { loss: Loss::bursty(0.1, 3 * MILLISECOND), ..LinkConfig::default() };
    let far = LinkConfig { loss: near.loss, ..LinkConfig::lossy_lte() };
    let far = LinkConfig { rate: None, ..far };
    assert_eq!(lost(near), lost(far));
}

#[test]
fn every_preset_carries_traffic() {
    for name in PRESETS {
        let config = LinkConfig::preset(name).expect("listed");
        let mut link = Link::new(config, 5);
        let delivered = count(&arrivals(&mut link, 2000, 2 * MILLISECOND, 1400), is_delivered);
        assert!(delivered > 1900, "{name}: {delivered}");
    }
    assert_eq!(LinkConfig::preset("carrier-pigeon"), None);
}

proptest! {
    // Sixty thousand packets each.
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_loss_rate_is_the_configured_one(
        share in 0.01f64..0.3, burst in 1u32..8, gap in 1u32..100, independent: bool, seed: u64,
    ) {
        const SENT: u32 = 60_000;
        let bursty = Loss::bursty(share, burst * MILLISECOND);
        let loss = if independent { Loss::independent(share) } else { bursty };
        prop_assert!((loss.mean() - share).abs() < 1e-9);
        let mut link = Link::new(LinkConfig { loss, ..LinkConfig::default() }, seed);
        let lost = count(&arrivals(&mut link, SENT, gap * MILLISECOND, 100), is_lost);
        let measured = lost as f64 / f64::from(SENT);
        // Six standard deviations of the mean of a chain whose runs are no longer than that.
        let length = if independent { 1.0 } else { 1.0 + 2.0 * f64::from(burst) / f64::from(gap) };
        let bound = 6.0 * (share * (1.0 - share) * length / f64::from(SENT)).sqrt();
        prop_assert!((measured - share).abs() < bound, "measured {} for {}", measured, share);
    }
}
