//! Timers: handshakes, rekeys, keepalives, hellos, expiry.

use meshport_config::SecretId;

use super::{Core, Notice, Output};
use crate::MeshCount;
use crate::MeshError;
use crate::event::{MeshEvent, Now, Route};
use crate::peer::{Need, Peer};
use crate::peers::Slot;
use crate::schedule;
use crate::tunnel::{MIN_OUTPUT, Under};

/// First byte of a handshake initiation.
const TYPE_INITIATION: u8 = 1;
/// Maximum actions for a peer per turn; each reschedules itself, so fewer are ever due.
const NEEDS_PER_TURN: usize = 16;

impl Core {
    /// Carries out everything that is due at `now`.
    pub fn handle_timeout(&mut self, now: Now) {
        while let Some(&(at, slot)) = self.timers.first() {
            if at > now.instant {
                break;
            }
            self.timers.pop_first();
            if let Some(peer) = self.peers.get_mut(slot) {
                peer.armed = None;
            }
            self.serve(slot, now);
            self.arm(slot);
        }
    }

    /// Updates the earliest timers that packets have postponed since, to avoid needless wake-ups: a
    /// peer that sends every few seconds and is answered is never due. Call this before a sleep; a
    /// packet postpones at most one timer, so there are fewer updates than packets.
    pub fn postpone(&mut self) {
        while let Some(&(at, slot)) = self.timers.first() {
            let peer = self.peers.get_mut(slot);
            if peer.as_ref().and_then(|peer| peer.due()).is_some_and(|due| due <= at) {
                return;
            }
            self.timers.pop_first();
            if let Some(peer) = peer {
                peer.armed = None;
            }
            self.arm(slot);
        }
    }

    /// Starts a new handshake with every peer that had a session or a handshake, at all its
    /// addresses, after this machine was suspended or moved: peers may have ended their sessions,
    /// and local addresses may be gone. Data sent meanwhile still uses the old session.
    pub fn wake(&mut self, now: Now) {
        let concerned = |peer: &Peer| peer.schedule.has_session() || peer.schedule.is_trying();
        let slots: Vec<Slot> =
            self.peers.iter().filter(|(_, peer)| concerned(peer)).map(|(slot, _)| slot).collect();
        for slot in slots {
            self.freshen(slot, now);
            let Some(peer) = self.peers.get_mut(slot) else { continue };
            peer.restless(now.instant);
            if !self.initiate(slot, now) {
                self.give_up(slot, now);
            }
            self.arm(slot);
        }
    }

    /// Sets the peer's timer if the peer is due earlier. [`Core::postpone`] moves timers that are
    /// too early, since moving them on every packet would cost more.
    pub(super) fn arm(&mut self, slot: Slot) {
        let Some(peer) = self.peers.get_mut(slot) else { return };
        let Some(due) = peer.due() else { return };
        if peer.armed.is_some_and(|armed| armed <= due) {
            return;
        }
        if let Some(armed) = peer.armed.replace(due) {
            self.timers.remove(&(armed, slot));
        }
        self.timers.insert((due, slot));
    }

    pub(super) fn serve(&mut self, slot: Slot, now: Now) {
        for _ in 0..NEEDS_PER_TURN {
            let Some(need) = self.peers.get(slot).and_then(|peer| peer.need(now.instant)) else {
                return;
            };
            match need {
                Need::Forget => {
                    self.out.counters[MeshCount::ProvisionalExpired] += 1;
                    self.remove(slot, "timed out waiting for its credential");
                    return;
                }
                Need::Tunnel(need) => self.serve_tunnel(slot, now, need),
                Need::SeekOther => self.seek_other(slot, now),
                Need::Hello => {
                    self.freshen(slot, now);
                    self.send_hello(slot, now);
                }
                Need::Number => {
                    self.freshen(slot, now);
                    self.send_number(slot, now);
                }
            }
        }
    }

    fn serve_tunnel(&mut self, slot: Slot, now: Now, need: schedule::Need) {
        match need {
            schedule::Need::GiveUp => self.give_up(slot, now),
            schedule::Need::Initiate { silence } => {
                self.out.counters[MeshCount::HandshakesAfterSilence] += u64::from(silence);
                if !self.initiate(slot, now) {
                    self.give_up(slot, now);
                }
            }
            schedule::Need::Expire => self.expire(slot, now),
            schedule::Need::Keepalive => {
                self.freshen(slot, now);
                self.keepalive(slot, now);
            }
        }
    }

    /// Starts a handshake with a peer without a session, unless one runs.
    pub(super) fn want_session(&mut self, slot: Slot, now: Now) -> Result<(), MeshError> {
        let Some(peer) = self.peers.get(slot) else { return Ok(()) };
        if peer.schedule.has_session() || peer.schedule.is_trying() {
            return Ok(());
        }
        let node = peer.node;
        let started = self.initiate(slot, now);
        self.arm(slot);
        if started { Ok(()) } else { Err(MeshError::NoEndpoint(node)) }
    }

    /// Called before a packet: advances the tunnel's clock, and renews an aging session. Only
    /// packets do that, so an idle session ends.
    pub(super) fn refresh(&mut self, slot: Slot, now: Now) {
        if self.freshen(slot, now) {
            self.renew(slot, now);
        }
    }

    /// Advances the tunnel's clock if it is old.
    fn freshen(&mut self, slot: Slot, now: Now) -> bool {
        let stale = self.peers.get(slot).is_some_and(|peer| peer.tunnel.is_stale(now.instant));
        if stale {
            self.tick(slot, now, true);
        }
        stale
    }

    fn renew(&mut self, slot: Slot, now: Now) {
        if self.peers.get(slot).is_some_and(|peer| peer.schedule.wants_rekey(now.instant)) {
            self.initiate(slot, now);
        }
    }

    /// `speak` decides whether to send the tunnel's own packets.
    fn tick(&mut self, slot: Slot, now: Now, speak: bool) {
        let jitter = self.jitter();
        let ids = self.secret_ids(now);
        let chosen = self.peers.get(slot).map(|peer| self.choose(peer, &ids));
        let Some(peer) = self.peers.get_mut(slot) else { return };
        let mut packet = [0; MIN_OUTPUT];
        if let Some(length) = peer.tunnel.tick(now.instant, &mut packet).filter(|_| speak) {
            let bytes = &packet[..length];
            if bytes[0] == TYPE_INITIATION && chosen != Some(peer.tunnel.under()) {
                // The next handshake uses other terms; the peer state starts it, now or soon.
            } else if bytes[0] == TYPE_INITIATION {
                let routes = handshake_routes(peer);
                peer.schedule.initiated(now.instant, jitter);
                (peer.secret.tried, peer.secret.again) = (chosen.map(|under| under.secret), false);
                self.out.counters[MeshCount::InitiationsSent] += 1;
                send_to_all(&mut self.out, &routes, bytes);
            } else if let Some(route) = peer.endpoint {
                peer.sent(now.instant, 0);
                self.out.transmit(route, bytes.to_vec());
            }
        }
        self.check_session(slot, now);
    }

    /// Ends a session that has expired by this clock, whatever the tunnel's own clock shows. The
    /// tunnel would renew any session that was ever used, which is not needed.
    fn expire(&mut self, slot: Slot, now: Now) {
        self.tick(slot, now, false);
        if let Some(peer) = self.peers.get_mut(slot) {
            peer.tunnel.abandon();
        }
        self.check_session(slot, now);
    }

    /// Handles that the tunnel's session has ended.
    pub(super) fn check_session(&mut self, slot: Slot, now: Now) {
        let Some(peer) = self.peers.get_mut(slot) else { return };
        if peer.tunnel.has_session() || !peer.schedule.has_session() {
            return;
        }
        peer.session_lost();
        if peer.is_at_rest(now.instant) {
            peer.rest();
        }
        let (node, told, configured) = (peer.node, peer.admission.reported_up, peer.configured);
        peer.admission.reported_up = false;
        if told {
            self.out.tell(MeshEvent::SessionDown(node));
        }
        // A peer that is not configured is kept while it has a session, and then as long as a
        // provisional one.
        if !configured {
            peer.admission.provisional_until = Some(now.instant + self.config.provisional_life);
        }
    }

    /// Sends an initiation and schedules the next; false if no address is known.
    pub(super) fn initiate(&mut self, slot: Slot, now: Now) -> bool {
        let jitter = self.jitter();
        let before = self.out.counters[MeshCount::InitiationsSent];
        if self.freshen(slot, now) && self.out.counters[MeshCount::InitiationsSent] != before {
            return true;
        }
        let ids = self.secret_ids(now);
        let Some(peer) = self.peers.get(slot).filter(|peer| !self.is_blocked(&peer.node)) else {
            return false;
        };
        let (under, tried) = (self.choose(peer, &ids), peer.secret.tried);
        let is_repeated = peer.schedule.tries() > 0;
        let routes = handshake_routes(peer);
        if routes.is_empty() {
            return false;
        }
        let Some(packet) = self.initiation(slot, now, &ids, under) else { return false };
        let Some(peer) = self.peers.get_mut(slot) else { return false };
        peer.schedule.initiated(now.instant, jitter);
        (peer.secret.tried, peer.secret.again) = (Some(under.secret), false);
        if is_repeated && tried != Some(under.secret) {
            self.out.counters[MeshCount::InitiationsOtherSecret] += 1;
        }
        self.out.counters[MeshCount::InitiationsSent] += 1;
        send_to_all(&mut self.out, &routes, &packet);
        true
    }

    /// Makes an initiation under these terms.
    fn initiation(
        &mut self,
        slot: Slot,
        now: Now,
        ids: &[SecretId],
        under: Under,
    ) -> Option<Vec<u8>> {
        self.equip(slot, ids, under.own, now);
        let mut packet = vec![0; MIN_OUTPUT];
        let length = self.peers.get_mut(slot)?.tunnel.initiate(&under, &mut packet)?;
        packet.truncate(length);
        Some(packet)
    }

    /// Sends one initiation to a peer's old address, to learn whether it is still there.
    pub(super) fn seek(&mut self, slot: Slot, now: Now, route: Route) {
        let ids = self.secret_ids(now);
        let Some(peer) = self.peers.get(slot) else { return };
        let under = self.choose(peer, &ids);
        if let Some(packet) = self.initiation(slot, now, &ids, under) {
            self.out.counters[MeshCount::InitiationsSent] += 1;
            self.out.transmit(route, packet);
        }
    }

    /// The terms of the next initiation to a peer: always this node's newest key.
    fn choose(&self, peer: &Peer, ids: &[SecretId]) -> Under {
        Under { secret: self.choose_secret(peer, ids), own: self.local.node, peer: peer.node }
    }

    fn give_up(&mut self, slot: Slot, now: Now) {
        self.drop_queue(slot);
        self.tick(slot, now, false);
        if let Some(peer) = self.peers.get_mut(slot) {
            self.out.counters[MeshCount::HandshakesAbandoned] += u64::from(peer.schedule.give_up());
            if peer.is_at_rest(now.instant) {
                peer.rest();
            }
        }
    }

    fn keepalive(&mut self, slot: Slot, now: Now) {
        let Some(peer) = self.peers.get_mut(slot) else { return };
        peer.schedule.keepalive_done(now.instant);
        if peer.schedule.has_session() {
            self.send_packet(slot, now, &[]);
            self.renew(slot, now);
        } else {
            // Without an address there is nothing to keep alive; the next interval tries again.
            let _ = self.want_session(slot, now);
        }
    }

    /// Handles a session where there was none, or a new one that replaced it.
    pub(super) fn session_up(&mut self, slot: Slot, now: Now) {
        self.judge_known_credential(slot, now);
        self.note_home(slot, now);
        if let Some(peer) = self.peers.get_mut(slot) {
            peer.admission.showing.session_up(now.instant);
        }
        self.ask_number(slot, now);
        self.serve(slot, now);
        self.flush_queue(slot, now);
        self.say_here(slot, now);
        self.report_up(slot);
        self.out.notice(Notice::Ready);
    }

    /// Informs the user when the peer becomes usable.
    pub(super) fn report_up(&mut self, slot: Slot) {
        let Some(peer) = self.peers.get_mut(slot) else { return };
        if peer.admission.admitted && peer.schedule.has_session() && !peer.admission.reported_up {
            peer.admission.reported_up = true;
            self.out.tell(MeshEvent::SessionUp(peer.node));
        }
    }
}

/// A renewal first goes only to the peer's address; everything else, and a renewal without an
/// answer or to a peer that has moved, goes to every known address.
fn handshake_routes(peer: &Peer) -> Vec<Route> {
    match peer.endpoint {
        Some(route) if peer.schedule.is_plain_renewal() => vec![route],
        _ => peer.candidates(),
    }
}

fn send_to_all(out: &mut Output, routes: &[Route], bytes: &[u8]) {
    for route in routes {
        out.transmit(*route, bytes.to_vec());
    }
}
