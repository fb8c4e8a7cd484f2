//! The leader: admits agents, starts attempts, and stops them when something changes. See the parent module.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::message::{AgentInfo, Assigned, Decision, DrainReply, Join, ToLeader, ToMember, WorkersEnd};
use super::{Time, Timing};

/// Limit of workers on a node.
const MAX_LOCAL_RANKS: u32 = 1 << 12;

/// Limit of names in a message.
const MAX_NAMES: usize = 100;

/// The user's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Fewest nodes of an attempt.
    pub least: usize,
    /// Most nodes of an attempt; further nodes wait until one of those is gone.
    pub most: usize,
    /// Restart limit for failed workers. Joining and leaving nodes do not count.
    pub max_restarts: u32,
    /// Durations.
    pub timing: Timing,
    /// The host of the rendezvous endpoint: the address under which others reach agents on the leader's own machine.
    pub endpoint_host: String,
    /// The agent that leads.
    pub agent: u64,
}

/// Events for a leader. Connections have numbers, which are not used again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaderEvent {
    /// An agent, whose address is given as text, sent a message.
    Message { peer: u64, address: String, message: ToLeader },
    /// A connection broke or was closed by the other end.
    Closed { peer: u64 },
    /// Another leader answers at the endpoint. This one gives up, and its agents find the other.
    Rival,
    /// The user stops this leader's agent by a signal, and with it the job.
    Shutdown { signal: i32 },
    /// A deadline may have passed.
    Tick,
}

/// Actions for the driver, to be performed in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaderAction {
    /// Send a message to an agent.
    Send { peer: u64, message: ToMember },
    /// Close a connection, which yields no further events.
    Close { peer: u64 },
    /// Print a line for the user.
    Say(String),
}

/// The state of an agent's workers, as far as the leader knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// The agent has no workers.
    Idle,
    Running,
    /// The workers succeeded.
    Done,
    /// The workers failed, or were told to stop. The agent must answer before the deadline.
    Stopping {
        until: Time,
    },
}

#[derive(Debug)]
struct Peer {
    /// With the address at which the others reach its node.
    agent: AgentInfo,
    port: u16,
    next_attempt: u32,
    /// When its last answered heartbeat arrived.
    heard: Time,
    standing: Standing,
    leaving: bool,
    /// Global ranks in the current attempt.
    ranks: Range<u32>,
}

#[derive(Debug)]
enum Phase {
    Gathering { since: Time, enough_since: Option<Time> },
    Running { newcomers_since: Option<Time> },
    Stopping,
    Over(Decision),
}

/// A failure of workers; `own` if the blamed rank runs on the reporting node.
#[derive(Debug)]
struct Failed {
    own: bool,
    decision: Decision,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Leader {
    name: u64,
    rules: Rules,
    started: Time,
    phase: Phase,
    peers: BTreeMap<u64, Peer>,
    /// Agents in the order of the last attempt's ranks.
    order: Vec<u64>,
    /// The latest visit of every agent that ever joined, as counted by the agents themselves.
    visits: BTreeMap<u64, u32>,
    /// Agents that were lost with workers, and when those workers are certainly gone.
    fences: BTreeMap<u64, Time>,
    next_attempt: u32,
    has_run: bool,
    /// Whether nodes joined or left during the current attempt, so that failures of workers do not count.
    changed: bool,
    failed: Option<Failed>,
    restarts: u32,
    /// Those who wait for agents to leave, each with such an agent.
    drains: Vec<(u64, u64)>,
    actions: Vec<LeaderAction>,
}

impl Leader {
    /// A leader with a random name, which no other leader has.
    pub fn new(name: u64, rules: Rules, now: Time) -> Self {
        Leader {
            name,
            rules,
            started: now,
            phase: Phase::Gathering { since: now, enough_since: None },
            peers: BTreeMap::new(),
            order: Vec::new(),
            visits: BTreeMap::new(),
            fences: BTreeMap::new(),
            next_attempt: 0,
            has_run: false,
            changed: false,
            failed: None,
            restarts: 0,
            drains: Vec::new(),
            actions: Vec::new(),
        }
    }

    /// Handles an event at `now`, which never decreases.
    pub fn handle(&mut self, now: Time, event: LeaderEvent) -> Vec<LeaderAction> {
        match event {
            LeaderEvent::Message { peer, address, message } => self.hear(now, peer, address, message),
            LeaderEvent::Closed { peer } => {
                self.drains.retain(|(asker, _)| *asker != peer);
                self.lose(now, peer, "was lost");
            }
            LeaderEvent::Rival => {
                self.say("another leader answers at the rendezvous endpoint; this one gives up".into());
                let peers: Vec<u64> = std::mem::take(&mut self.peers).into_keys().collect();
                self.actions.extend(peers.into_iter().map(|peer| LeaderAction::Close { peer }));
                self.phase = Phase::Over(Decision::NoLeader { why: "another leader has taken over".into() });
            }
            LeaderEvent::Shutdown { signal } => self.finish(Decision::Interrupted { signal }),
            LeaderEvent::Tick => {}
        }
        self.proceed(now);
        std::mem::take(&mut self.actions)
    }

    /// When to send [`LeaderEvent::Tick`] if nothing else happens.
    pub fn deadline(&self, now: Time) -> Option<Time> {
        let Timing { last_call, join, .. } = self.rules.timing;
        let fence = self.rules.timing.fence();
        let mut times: Vec<Time> = self.peers.values().map(|peer| peer.heard + fence).collect();
        for peer in self.peers.values() {
            if let Standing::Stopping { until } = peer.standing {
                times.push(until);
            }
        }
        match self.phase {
            Phase::Gathering { since, enough_since } => {
                times.extend(self.fences.values());
                times.push(match enough_since {
                    Some(enough) => enough + last_call,
                    None => since + join,
                });
                times.push(self.started + fence);
            }
            Phase::Running { newcomers_since } => times.extend(newcomers_since.map(|since| since + last_call)),
            Phase::Stopping | Phase::Over(_) => {}
        }
        times.into_iter().filter(|&time| time > now).min()
    }

    /// How the job ended, if it has.
    pub fn decision(&self) -> Option<&Decision> {
        if let Phase::Over(decision) = &self.phase { Some(decision) } else { None }
    }

    /// Whether any agents are still connected.
    pub fn has_peers(&self) -> bool {
        !self.peers.is_empty()
    }

    fn hear(&mut self, now: Time, id: u64, seen_at: String, message: ToLeader) {
        let current = self.next_attempt.checked_sub(1);
        let limit = now + self.rules.timing.stop;
        let Some(peer) = self.peers.get_mut(&id) else {
            return match message {
                ToLeader::Join(join) => self.join(now, id, seen_at, join),
                ToLeader::Drain { node } => self.drain(id, &node),
                _ => {}
            };
        };
        match message {
            ToLeader::Join(_) | ToLeader::Drain { .. } => self.close(id),
            ToLeader::Beat { number } => {
                peer.heard = now;
                self.send(id, ToMember::Echo { number });
            }
            ToLeader::Ended { attempt, end } if Some(attempt) == current => match end {
                WorkersEnd::Done if peer.standing == Standing::Running => peer.standing = Standing::Done,
                WorkersEnd::Done => {}
                WorkersEnd::Failed { rank, code, report } => {
                    let own = rank.is_some_and(|rank| peer.ranks.contains(&rank));
                    let decision = Decision::Failed { host: peer.agent.host.clone(), code, report };
                    let is_better = self.failed.as_ref().is_none_or(|known| own && !known.own);
                    if is_better && peer.standing != Standing::Idle {
                        self.failed = Some(Failed { own, decision });
                    }
                    if peer.standing == Standing::Running {
                        // Until the agent reports that it is ready for the next attempt.
                        peer.standing = Standing::Stopping { until: limit };
                        self.send(id, ToMember::Stop { attempt, why: "its own workers failed".into() });
                        self.stop(now, "workers failed");
                    }
                }
            },
            ToLeader::Stopped { attempt, port } if Some(attempt) == current => {
                if matches!(peer.standing, Standing::Stopping { .. }) {
                    peer.standing = Standing::Idle;
                    peer.port = port;
                }
                if peer.leaving {
                    self.close(id);
                }
            }
            // From an attempt that is over.
            ToLeader::Ended { .. } | ToLeader::Stopped { .. } => {}
            ToLeader::Leave if peer.standing == Standing::Idle => self.close(id),
            ToLeader::Leave => {
                let host = peer.agent.host.clone();
                let is_running = peer.standing == Standing::Running;
                peer.leaving = true;
                peer.standing = Standing::Stopping { until: limit };
                self.change(now, &format!("node {host} leaves"), is_running);
            }
        }
    }

    /// Asks the agents of a node to leave. The program that asked for it is told when they are gone.
    fn drain(&mut self, asker: u64, node: &str) {
        if let Phase::Over(decision) = &self.phase {
            let decision = decision.clone();
            return self.send(asker, ToMember::Over(decision));
        }
        let named = self.peers.iter().filter(|(_, peer)| peer.agent.host == node);
        let named: Vec<(u64, u64)> = named.map(|(&id, peer)| (id, peer.agent.id)).collect();
        let reply = if named.is_empty() {
            let nodes: BTreeSet<String> = self.peers.values().map(|peer| peer.agent.host.clone()).collect();
            DrainReply::Unknown { nodes: nodes.into_iter().take(MAX_NAMES).collect() }
        } else if named.iter().any(|&(_, agent)| agent == self.rules.agent) {
            DrainReply::Leads
        } else {
            DrainReply::Leaving { seconds: self.rules.timing.stop.as_secs() }
        };
        if let DrainReply::Leaving { .. } = reply {
            self.say(format!("node {node} is drained"));
            for (id, _) in named {
                self.drains.push((asker, id));
                self.send(id, ToMember::Leave);
            }
        }
        self.send(asker, ToMember::Drain(reply));
    }

    /// Tells those who wait for an agent that it has left.
    fn drained(&mut self, id: u64) {
        let askers: Vec<u64> = self.drains.iter().filter(|(_, peer)| *peer == id).map(|(asker, _)| *asker).collect();
        self.drains.retain(|(_, peer)| *peer != id);
        for asker in askers {
            if self.drains.iter().all(|(other, _)| *other != asker) {
                self.send(asker, ToMember::Drain(DrainReply::Left));
            }
        }
    }

    fn join(&mut self, now: Time, id: u64, seen_at: String, join: Join) {
        let Join { mut agent, visit, port, next_attempt } = join;
        let is_late = self.visits.get(&agent.id).is_some_and(|&latest| latest >= visit);
        // An agent that has run the last number there is can run no further attempt.
        let is_sensible = (1..=MAX_LOCAL_RANKS).contains(&agent.local_world_size) && next_attempt < u32::MAX;
        if is_late || !is_sensible {
            // A late message on a connection that its agent has given up says nothing about the agent now.
            return self.close(id);
        }
        if let Phase::Over(decision) = &self.phase {
            let decision = decision.clone();
            return self.send(id, ToMember::Over(decision));
        }
        self.visits.insert(agent.id, visit);
        // The agent is back, and none of its workers runs.
        let former = self.peers.iter().find(|(_, peer)| peer.agent.id == agent.id).map(|(&former, _)| former);
        if let Some(former) = former {
            self.lose(now, former, "came back");
            self.actions.push(LeaderAction::Close { peer: former });
        }
        self.fences.remove(&agent.id);
        if agent.address.is_empty() {
            let is_here = is_loopback(&seen_at);
            agent.address = if is_here { self.rules.endpoint_host.clone() } else { seen_at };
        }
        let standing = Standing::Idle;
        self.peers.insert(id, Peer { agent, port, next_attempt, heard: now, standing, leaving: false, ranks: 0..0 });
    }

    /// Removes a connection that is gone.
    fn lose(&mut self, now: Time, id: u64, how: &str) {
        let Some(peer) = self.peers.remove(&id) else { return };
        self.drained(id);
        if peer.standing != Standing::Idle {
            self.fences.insert(peer.agent.id, peer.heard + self.rules.timing.fence());
            self.change(now, &format!("node {} {how}", peer.agent.host), true);
        }
    }

    /// Records that nodes joined or left: the attempt cannot go on, and later failures of its workers are consequences.
    fn change(&mut self, now: Time, why: &str, is_news: bool) {
        if let Phase::Running { .. } | Phase::Stopping = self.phase {
            self.changed = true;
            if is_news {
                self.say(why.to_owned());
            }
            self.stop(now, why);
        }
    }

    /// Stops all workers of the attempt.
    fn stop(&mut self, now: Time, why: &str) {
        let Phase::Running { .. } = self.phase else { return };
        self.phase = Phase::Stopping;
        let attempt = self.next_attempt.saturating_sub(1);
        let until = now + self.rules.timing.stop;
        for (&id, peer) in &mut self.peers {
            if let Standing::Running | Standing::Done = peer.standing {
                peer.standing = Standing::Stopping { until };
                let message = ToMember::Stop { attempt, why: why.to_owned() };
                self.actions.push(LeaderAction::Send { peer: id, message });
            }
        }
    }

    /// Performs the actions that are due.
    fn proceed(&mut self, now: Time) {
        let fence = self.rules.timing.fence();
        let due = |peer: &Peer| match peer.standing {
            _ if now >= peer.heard + fence => Some("has fallen silent"),
            Standing::Stopping { until } if now >= until => Some("does not stop its workers"),
            _ => None,
        };
        let lost: Vec<_> = self.peers.iter().filter_map(|(&id, peer)| Some((id, due(peer)?))).collect();
        for (id, how) in lost {
            self.actions.push(LeaderAction::Close { peer: id });
            self.lose(now, id, how);
        }
        if matches!(self.phase, Phase::Stopping) && self.peers.values().all(|peer| peer.standing == Standing::Idle) {
            self.conclude(now);
        }
        match self.phase {
            Phase::Gathering { since, enough_since } => self.gather(now, since, enough_since),
            Phase::Running { newcomers_since } => self.look_after(now, newcomers_since),
            Phase::Stopping | Phase::Over(_) => {}
        }
    }

    /// Called when no connected agent has workers left: starts again, unless they have failed too often.
    fn conclude(&mut self, now: Time) {
        if let Some(failed) = self.failed.take()
            && !self.changed
        {
            if self.restarts == self.rules.max_restarts {
                return self.finish(failed.decision);
            }
            self.restarts += 1;
            if let Decision::Failed { host, report, .. } = failed.decision {
                let (restarts, most) = (self.restarts, self.rules.max_restarts);
                self.say(format!("node {host}: {report}\nrestart {restarts} of {most}"));
            }
        }
        self.phase = Phase::Gathering { since: now, enough_since: None };
    }

    fn gather(&mut self, now: Time, since: Time, enough_since: Option<Time>) {
        let Timing { last_call, join, .. } = self.rules.timing;
        self.fences.retain(|_, &mut until| until > now);
        let here = self.peers.len();
        if here < self.rules.least {
            self.phase = Phase::Gathering { since, enough_since: None };
            if now >= since + join {
                self.finish(Decision::TooFew { here: here as u32, least: self.rules.least as u32 });
            }
            return;
        }
        let enough = enough_since.unwrap_or(now);
        self.phase = Phase::Gathering { since, enough_since: Some(enough) };
        // Workers of a former leader may live until their leases end. By then its agents have joined, or are gone.
        let follows_another = !self.has_run && self.peers.values().any(|peer| peer.next_attempt > 0);
        let is_quiet = self.fences.is_empty() && (!follows_another || now >= self.started + self.rules.timing.fence());
        let is_called = here >= self.rules.most || self.has_run || follows_another || now >= enough + last_call;
        if is_quiet && is_called {
            self.run();
        }
    }

    /// Assigns the ranks: nodes of the previous attempt keep their order, and new nodes follow in the order of joining.
    fn run(&mut self) {
        let place = |agent: u64| self.order.iter().position(|&known| known == agent).unwrap_or(usize::MAX);
        let mut chosen: Vec<u64> = self.peers.keys().copied().collect();
        chosen.sort_by_key(|id| self.peers.get(id).map(|peer| place(peer.agent.id)));
        chosen.truncate(self.rules.most);

        let wanted = self.peers.values().map(|peer| peer.next_attempt).max().unwrap_or(0);
        let attempt = self.next_attempt.max(wanted);
        let Some(next_attempt) = attempt.checked_add(1) else {
            let host = self.rules.endpoint_host.clone();
            let report = "the numbers of attempts are used up".into();
            return self.finish(Decision::Failed { host, code: 1, report });
        };
        let master = chosen.first().and_then(|id| self.peers.get(id));
        let Some((master_host, master_port)) = master.map(|peer| (peer.agent.address.clone(), peer.port)) else {
            return;
        };
        let members = || chosen.iter().filter_map(|id| self.peers.get(id));
        let node_count = chosen.len() as u32;
        let world_size = members().map(|peer| peer.agent.local_world_size).sum();
        self.order = members().map(|peer| peer.agent.id).collect();
        let mut first_rank = 0;
        for (node_rank, id) in chosen.iter().enumerate() {
            let Some(peer) = self.peers.get_mut(id) else { continue };
            peer.standing = Standing::Running;
            peer.ranks = first_rank..first_rank + peer.agent.local_world_size;
            let assigned = Assigned {
                attempt,
                leader: self.name,
                node_rank: node_rank as u32,
                node_count,
                first_rank,
                world_size,
                master_host: master_host.clone(),
                master_port,
            };
            first_rank = peer.ranks.end;
            self.actions.push(LeaderAction::Send { peer: *id, message: ToMember::Run(assigned) });
        }
        for peer in self.peers.values_mut() {
            peer.next_attempt = next_attempt;
        }
        self.next_attempt = next_attempt;
        self.has_run = true;
        self.changed = false;
        self.failed = None;
        self.phase = Phase::Running { newcomers_since: None };
        let plural = |count| if count == 1 { "" } else { "s" };
        let (nodes, ranks) = (plural(node_count), plural(world_size));
        self.say(format!("attempt {attempt}: {node_count} node{nodes}, {world_size} rank{ranks}"));
    }

    /// Ends the job when all workers are done, and restarts for new nodes.
    fn look_after(&mut self, now: Time, newcomers_since: Option<Time>) {
        let count = |standing| self.peers.values().filter(|peer| peer.standing == standing).count();
        let idle = count(Standing::Idle);
        let running = count(Standing::Running);
        let done = count(Standing::Done);
        if running == 0 && done > 0 {
            return self.finish(Decision::Done);
        }
        // An agent that joins after some workers are done is too late.
        let welcome = idle > 0 && running < self.rules.most && done == 0;
        let since = newcomers_since.unwrap_or(now);
        self.phase = Phase::Running { newcomers_since: welcome.then_some(since) };
        let is_called = running + idle >= self.rules.most || now >= since + self.rules.timing.last_call;
        if welcome && is_called {
            self.change(now, if idle == 1 { "a node has joined" } else { "nodes have joined" }, true);
        }
    }

    fn finish(&mut self, decision: Decision) {
        if let Phase::Over(_) = self.phase {
            return;
        }
        let askers = self.drains.iter().map(|(asker, _)| asker);
        for &id in self.peers.keys().chain(askers) {
            self.actions.push(LeaderAction::Send { peer: id, message: ToMember::Over(decision.clone()) });
        }
        self.phase = Phase::Over(decision);
    }

    fn send(&mut self, peer: u64, message: ToMember) {
        self.actions.push(LeaderAction::Send { peer, message });
    }

    fn close(&mut self, peer: u64) {
        self.peers.remove(&peer);
        self.drained(peer);
        self.actions.push(LeaderAction::Close { peer });
    }

    fn say(&mut self, text: String) {
        self.actions.push(LeaderAction::Say(text));
    }
}

fn is_loopback(address: &str) -> bool {
    address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}
