//! What it costs.

use super::net::{Net, ms, secs};
use crate::state::OriginState;

#[test]
fn two_hundred_nodes_stay_within_the_byte_budget() {
    let mut net = Net::with_nodes(31, 200, 5, 5);
    net.until(secs(60), "200 nodes joining at once", Net::agreed);
    let spent = |net: &Net, when: &str| {
        let all = net.running().map(|it| *net.get(it).counters());
        let sums = all.fold([0; 4], |sum, it| {
            [
                sum[0] + it.sent_swim_bytes,
                sum[1] + it.sent_path_bytes,
                sum[2] + it.sent_news_bytes,
                sum[3] + it.sent_sync_bytes,
            ]
        });
        let [swim, path, news, sync] = sums.map(|sum| sum / 200);
        let of = |f: fn(&crate::Counters) -> u64| -> u64 {
            net.running().map(|it| f(net.get(it).counters())).sum()
        };
        println!(
            "published {} merged {} syncs {} rumours dropped {} requests dropped {} wants {}",
            of(|it| it.published),
            of(|it| it.merged),
            of(|it| it.syncs),
            of(|it| it.dropped_rumours),
            of(|it| it.dropped_requests),
            of(|it| it.dropped_wants),
        );
        println!("per node {when}: swim {swim} path {path} news {news} sync {sync}");
    };
    spent(&net, "after joining");
    net.run(secs(10));
    spent(&net, "10 s later");
    net.run(secs(50));
    spent(&net, "60 s later");
    let (bytes, packets) = net.rate(secs(120));
    let with_headers = bytes + packets * 112.0;
    println!("quiet: {bytes:.0} B/s, {packets:.1} packets/s, {with_headers:.0} B/s with headers");
    spent(&net, "180 s later");
    assert!(bytes < 600.0, "{bytes}");
    assert!(with_headers < 2048.0, "{with_headers}");
    net.loss_percent = 1;
    net.set_service(2, OriginState::Unready);
    net.until(ms(1500), "news among 200", |net| {
        net.running().all(|it| net.sees_service(it, 2) == Some(OriginState::Unready))
    });
}
