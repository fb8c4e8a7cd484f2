//! Connections of the simulation: messages take time, keep their order, and wait while the network is cut.

use std::collections::VecDeque;

use super::{AGENT, Connection, Event, LEADER, Payload, Simulation};
use crate::elastic::Time;
use crate::elastic::leader::LeaderEvent;
use crate::elastic::member::MemberEvent;

impl Simulation {
    pub(super) fn delay(&mut self) -> Time {
        let most = self.delay.as_millis() as u64;
        self.random.millis(0, most)
    }

    pub(super) fn hears(&self, a: usize, b: usize) -> bool {
        self.part[a] == self.part[b]
    }

    /// An agent's attempt to connect reaches the endpoint.
    pub(super) fn link(&mut self, node: usize) {
        let target = self.endpoint;
        let listens = self.nodes[target].alive && self.nodes[target].leader.is_some();
        if !listens || !self.hears(node, target) {
            return self.member(node, MemberEvent::NotLinked { why: "no listener".into() });
        }
        self.count += 1;
        let id = self.count;
        let ends = [(node, self.nodes[node].life), (target, self.nodes[target].life)];
        let queues = [VecDeque::new(), VecDeque::new()];
        self.connections.insert(id, Connection { ends, open: [true; 2], queues });
        self.nodes[node].link = Some(id);
        self.member(node, MemberEvent::Linked { port: 1 });
    }

    /// A leader asks the endpoint whether it still leads.
    pub(super) fn probe(&mut self, node: usize) {
        let target = self.endpoint;
        let life = self.nodes[node].life;
        if self.nodes[node].leader.is_none() {
            return;
        }
        let found = self.nodes[target].leader.is_some() && self.nodes[target].paused.0 <= self.now;
        if target != node && found && self.hears(node, target) {
            self.leader(node, LeaderEvent::Rival);
            self.nodes[node].leader = None;
            return;
        }
        self.schedule(self.now + Time::from_secs(1), Event::Probe(node, life));
    }

    pub(super) fn send(&mut self, id: u64, from: usize, payload: Payload) {
        let delay = self.delay();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.open[from] {
            let queue = &mut connection.queues[1 - from];
            let arrival = queue.back().map_or(Time::ZERO, |(last, _)| *last).max(self.now + delay);
            queue.push_back((arrival, Some(payload)));
            self.schedule(arrival, Event::Pump(id, 1 - from));
        }
    }

    pub(super) fn close(&mut self, id: u64, from: usize) {
        let delay = self.delay();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.open[from] = false;
        let queue = &mut connection.queues[1 - from];
        let arrival = queue.back().map_or(Time::ZERO, |(last, _)| *last).max(self.now + delay);
        queue.push_back((arrival, None));
        self.schedule(arrival, Event::Pump(id, 1 - from));
    }

    pub(super) fn pump(&mut self, id: u64, end: usize, is_current: bool) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let [(agent, _), (leader, _)] = connection.ends;
        if self.part[agent] != self.part[leader] {
            // Like TCP: retries as long as both ends keep the connection open.
            return self.schedule(self.now + Time::from_millis(300), Event::Pump(id, end));
        }
        let Some((arrival, _)) = connection.queues[end].front() else { return };
        if *arrival > self.now {
            return;
        }
        let Some((_, payload)) = connection.queues[end].pop_front() else { return };
        if !connection.open[end] || !is_current {
            return;
        }
        let ends = connection.ends;
        match payload {
            None => {
                connection.open[end] = false;
                match end {
                    AGENT => {
                        self.nodes[ends[AGENT].0].link = None;
                        self.member(ends[AGENT].0, MemberEvent::Lost);
                    }
                    _ => self.leader(ends[LEADER].0, LeaderEvent::Closed { peer: id }),
                }
            }
            Some(Payload::ToMember(message)) => self.member(ends[AGENT].0, MemberEvent::Message(message)),
            Some(Payload::ToLeader(message)) => {
                let address = format!("10.0.0.{}", ends[AGENT].0);
                self.leader(ends[LEADER].0, LeaderEvent::Message { peer: id, address, message });
            }
        }
        self.bury(ends[LEADER].0);
    }
}
