//! Gossip that agrees with what is known about its sender is not passed to the protocol, and
//! nothing is missed.

use super::*;

/// What a node does in the five seconds after a member has gossiped, in this life of the member.
fn after_gossip(from: Life, known: bool) -> Vec<(Duration, Output)> {
    let (mut swim, start) = (swim(1), base());
    let members = [2, 3, 4].map(|it| (node(it), claim(Standing::Alive)));
    swim.apply(members, false, &Sight::default(), start);
    outputs(&mut swim);
    let known = if known { vec![(node(2), claim(Standing::Alive))] } else { Vec::new() };
    let sight = Sight { known, ..Sight::default() };
    let header = RawHeader { from, incarnation: 0, to: life(1), message: RawMessage::Gossip };
    let bytes = postcard::to_stdvec(&header).unwrap();
    let seen = swim.handle_datagram(incoming(node(2), &bytes), &sight, start).unwrap();
    assert!(seen.claims.is_empty() && !seen.stale && !seen.announces);
    let mut done: Vec<_> = outputs(&mut swim).into_iter().map(|it| (Duration::ZERO, it)).collect();
    while let Some(due) = swim.poll_timeout().filter(|due| *due - start < Duration::from_secs(5)) {
        swim.handle_timeout(&sight, due);
        done.extend(outputs(&mut swim).into_iter().map(|it| (due - start, it)));
    }
    done
}

#[test]
fn gossip_of_a_known_member_changes_nothing_whether_it_is_read_or_not() {
    let read = after_gossip(life(1), false);
    assert!(!read.is_empty(), "a member is probed");
    assert_eq!(after_gossip(life(1), true), read);
}

#[test]
fn gossip_of_a_later_life_is_read_although_the_former_one_is_known() {
    let renamed = Output::Renamed(node(2), life(2));
    assert!(after_gossip(life(2), true).iter().any(|(_, output)| *output == renamed));
}
