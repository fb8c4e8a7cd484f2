//! A job in virtual time: agents, leaders, workers and the network between them, with faults, all derived from one
//! seed.
//!
//! [`Simulation::check_start`] checks the conditions that must hold whenever workers start. `schedules` has the
//! schedules and the conditions that must hold in the end; `network` has the connections.

mod network;
mod schedules;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use crate::elastic::Time;
use crate::elastic::leader::{Leader, LeaderAction, LeaderEvent, Rules};
use crate::elastic::member::{Member, MemberAction, MemberEvent};
use crate::elastic::message::{AgentInfo, Assigned, Decision, ToLeader, ToMember, WorkersEnd};

/// Random numbers from a seed (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub fn millis(&mut self, least: u64, most: u64) -> Time {
        Time::from_millis(least + self.next() % (most - least + 1))
    }
}

/// How a node's agent crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process dies, and the kernel closes its connections.
    Process,
    /// The machine dies without notice.
    Machine,
}

/// Workers of one attempt of one leader.
type World = (u64, u32);

#[derive(Clone, Debug)]
struct Workers {
    world: World,
    asked_to_stop: bool,
}

pub struct Node {
    pub alive: bool,
    pub exit: Option<Decision>,
    pub leader: Option<Leader>,
    member: Member,
    agent: u64,
    /// Counts agents of this node; events for an earlier one are dropped.
    life: u32,
    workers: Option<Workers>,
    /// Until then nothing on this node runs, except its workers if the flag is set.
    paused: (Time, bool),
    link: Option<u64>,
    last_attempt: Option<u32>,
    ticks: [Option<Time>; 2],
}

/// The two ends of a connection: the agent's and the leader's, each a node in one of its lives.
struct Connection {
    ends: [(usize, u32); 2],
    /// Whether each end still has it open.
    open: [bool; 2],
    /// Messages in transit to each end, in order; `None` is the connection's end.
    queues: [VecDeque<(Time, Option<Payload>)>; 2],
}

enum Payload {
    ToLeader(ToLeader),
    ToMember(ToMember),
}

enum Event {
    TickMember(usize, u32),
    TickLeader(usize, u32),
    Linked(usize, u32),
    /// A message may have reached this end of a connection.
    Pump(u64, usize),
    WorkersEnd(usize, u32, World, WorkersEnd),
    Probe(usize, u32),
}

struct Scheduled(Time, u64, Event);

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// See the module's documentation.
pub struct Simulation {
    pub now: Time,
    pub random: Random,
    pub nodes: Vec<Node>,
    /// The node to which the endpoint's name resolves.
    pub endpoint: usize,
    /// Nodes in different parts cannot reach each other.
    pub part: Vec<u8>,
    /// No leader starts while another one lives.
    pub one_leader: bool,
    /// Longest time of a message in transit.
    pub delay: Time,
    pub rules: Rules,
    /// All attempts ever begun: their members as (node, place).
    pub worlds: BTreeMap<World, Vec<(usize, Assigned)>>,
    connections: BTreeMap<u64, Connection>,
    queue: BinaryHeap<Reverse<Scheduled>>,
    count: u64,
}

/// Longest time for killing, in milliseconds.
const KILLING: u64 = 20;

const AGENT: usize = 0;
const LEADER: usize = 1;

impl Simulation {
    pub fn new(seed: u64, nodes: usize, rules: Rules) -> Self {
        let mut simulation = Simulation {
            now: Time::ZERO,
            random: Random(seed),
            nodes: Vec::new(),
            endpoint: 0,
            part: vec![0; nodes],
            one_leader: true,
            delay: Time::from_millis(20),
            rules,
            worlds: BTreeMap::new(),
            connections: BTreeMap::new(),
            queue: BinaryHeap::new(),
            count: 0,
        };
        for node in 0..nodes {
            let (member, agent) = simulation.new_member(node);
            let exit = None;
            let leader = None;
            let workers = None;
            let link = None;
            let last_attempt = None;
            let paused = (Time::ZERO, false);
            let ticks = [None; 2];
            simulation.nodes.push(Node {
                alive: false,
                exit,
                leader,
                member,
                agent,
                life: 0,
                workers,
                paused,
                link,
                last_attempt,
                ticks,
            });
        }
        simulation
    }

    fn new_member(&mut self, node: usize) -> (Member, u64) {
        let id = self.random.next();
        let local_world_size = node as u32 % 3 + 1;
        let agent = AgentInfo { id, host: format!("n{node}"), address: format!("10.0.0.{node}"), local_world_size };
        (Member::new(agent, self.rules.timing, self.now), id)
    }

    /// Starts an agent on a node without one.
    pub fn start(&mut self, node: usize) {
        let (member, agent) = self.new_member(node);
        let state = &mut self.nodes[node];
        assert!(!state.alive);
        (state.member, state.agent, state.alive, state.exit) = (member, agent, true, None);
        (state.last_attempt, state.paused, state.ticks) = (None, (Time::ZERO, false), [None; 2]);
        self.member(node, MemberEvent::Tick);
    }

    pub fn crash(&mut self, node: usize, how: Crash) {
        let state = &mut self.nodes[node];
        let life = state.life;
        (state.alive, state.leader, state.link) = (false, None, None);
        state.life += 1;
        if let Some(workers) = state.workers.take() {
            self.missed_by_peers(workers.world);
        }
        let ids: Vec<_> = self.connections.keys().copied().collect();
        for id in ids {
            for end in [AGENT, LEADER] {
                let Some(connection) = self.connections.get_mut(&id) else { continue };
                if connection.ends[end] == (node, life) && connection.open[end] {
                    match how {
                        Crash::Process => self.close(id, end),
                        Crash::Machine => connection.open[end] = false,
                    }
                }
            }
        }
    }

    /// Stops this node for the given time; its workers keep running if `workers_run` is set.
    pub fn pause(&mut self, node: usize, length: Time, workers_run: bool) {
        // Two short pauses in a row would make a long one.
        if self.now > self.nodes[node].paused.0 + Time::from_secs(2) {
            self.nodes[node].paused = (self.now + length, workers_run);
        }
    }

    pub fn ask_to_stop(&mut self, node: usize) {
        self.member(node, MemberEvent::StopRequest { signal: 15 });
        self.leader(node, LeaderEvent::Shutdown { signal: 15 });
    }

    /// The user wants a node to leave, and tells the leader.
    pub fn drain(&mut self, node: usize) {
        // No connection has this number, so the answer arrives nowhere.
        let address = "10.0.1.0".to_owned();
        let message = ToLeader::Drain { node: format!("n{node}") };
        self.leader(self.endpoint, LeaderEvent::Message { peer: u64::MAX, address, message });
    }

    /// The workers of a node end by themselves.
    pub fn end_workers(&mut self, node: usize, end: WorkersEnd) {
        if let Some(workers) = &self.nodes[node].workers {
            let event = Event::WorkersEnd(node, self.nodes[node].life, workers.world, end);
            self.schedule(self.now, event);
        }
    }

    /// Nodes with workers, and the world of those workers.
    pub fn running(&self) -> Vec<(usize, World)> {
        let world = |node: &Node| node.workers.as_ref().map(|workers| workers.world);
        self.nodes.iter().enumerate().filter_map(|(index, node)| Some((index, world(node)?))).collect()
    }

    /// Advances the time.
    pub fn run_until(&mut self, end: Time) {
        while let Some(Reverse(Scheduled(time, ..))) = self.queue.peek()
            && *time <= end
        {
            let Some(Reverse(Scheduled(time, _, event))) = self.queue.pop() else { break };
            self.now = time;
            self.happen(event);
        }
        self.now = end;
    }

    fn schedule(&mut self, time: Time, event: Event) {
        self.count += 1;
        self.queue.push(Reverse(Scheduled(time, self.count, event)));
    }

    fn happen(&mut self, event: Event) {
        let (node, life) = match &event {
            Event::TickMember(node, life) | Event::TickLeader(node, life) => (*node, *life),
            Event::Linked(node, life) | Event::Probe(node, life) => (*node, *life),
            Event::WorkersEnd(node, life, ..) => (*node, *life),
            Event::Pump(id, end) => match self.connections.get(id) {
                Some(connection) => connection.ends[*end],
                None => return,
            },
        };
        if self.nodes[node].life == life && self.nodes[node].paused.0 > self.now {
            return self.schedule(self.nodes[node].paused.0, event);
        }
        let is_current = self.nodes[node].life == life && self.nodes[node].alive;
        match event {
            Event::Pump(id, end) => self.pump(id, end, is_current),
            _ if !is_current => {}
            Event::TickMember(..) => {
                self.nodes[node].ticks[AGENT] = None;
                self.member(node, MemberEvent::Tick);
            }
            Event::TickLeader(..) => {
                self.nodes[node].ticks[LEADER] = None;
                self.leader(node, LeaderEvent::Tick);
            }
            Event::Linked(..) => self.link(node),
            Event::Probe(..) => self.probe(node),
            Event::WorkersEnd(_, _, world, end) => {
                if self.nodes[node].workers.as_ref().is_some_and(|workers| workers.world == world) {
                    self.nodes[node].workers = None;
                    if end != WorkersEnd::Done {
                        self.missed_by_peers(world);
                    }
                    self.member(node, MemberEvent::WorkersEnded { end, port: 1 });
                }
            }
        }
    }

    fn member(&mut self, node: usize, event: MemberEvent) {
        let state = &mut self.nodes[node];
        if !state.alive {
            return;
        }
        let actions = state.member.handle(self.now, event);
        for action in actions {
            self.act(node, action);
        }
        let deadline = self.nodes[node].member.deadline();
        let life = self.nodes[node].life;
        if let Some(deadline) = deadline
            && self.nodes[node].alive
            && self.nodes[node].ticks[AGENT].is_none_or(|tick| deadline < tick)
        {
            let time = deadline.max(self.now);
            self.nodes[node].ticks[AGENT] = Some(time);
            self.schedule(time, Event::TickMember(node, life));
        }
    }

    fn leader(&mut self, node: usize, event: LeaderEvent) {
        let Some(leader) = &mut self.nodes[node].leader else { return };
        let actions = leader.handle(self.now, event);
        let life = self.nodes[node].life;
        for action in actions {
            match action {
                LeaderAction::Send { peer, message } => self.send(peer, LEADER, Payload::ToMember(message)),
                LeaderAction::Close { peer } => self.close(peer, LEADER),
                LeaderAction::Say(_) => {}
            }
        }
        let deadline = self.nodes[node].leader.as_ref().and_then(|leader| leader.deadline(self.now));
        if let Some(deadline) = deadline
            && self.nodes[node].ticks[LEADER].is_none_or(|tick| deadline < tick)
        {
            self.nodes[node].ticks[LEADER] = Some(deadline);
            self.schedule(deadline, Event::TickLeader(node, life));
        }
    }

    fn act(&mut self, node: usize, action: MemberAction) {
        let life = self.nodes[node].life;
        match action {
            MemberAction::Wait { .. } => {}
            MemberAction::Connect => {
                let is_over = |leader: &Leader| leader.decision().is_some() && !leader.has_peers();
                if self.endpoint == node && self.nodes[node].leader.as_ref().is_none_or(is_over) {
                    let name = self.random.next();
                    let rules = Rules { agent: self.nodes[node].agent, ..self.rules.clone() };
                    self.nodes[node].leader = Some(Leader::new(name, rules, self.now));
                    self.schedule(self.now, Event::Probe(node, life));
                    self.leader(node, LeaderEvent::Tick);
                }
                let delay = self.delay();
                self.schedule(self.now + delay, Event::Linked(node, life));
            }
            MemberAction::Disconnect => {
                if let Some(link) = self.nodes[node].link.take() {
                    self.close(link, AGENT);
                }
            }
            MemberAction::Send(message) => {
                if let Some(link) = self.nodes[node].link {
                    self.send(link, AGENT, Payload::ToLeader(message));
                }
            }
            MemberAction::Start(assigned) => {
                let world = (assigned.leader, assigned.attempt);
                self.check_start(node, world, &assigned);
                self.worlds.entry(world).or_default().push((node, assigned));
                assert!(self.nodes[node].workers.is_none());
                self.nodes[node].workers = Some(Workers { world, asked_to_stop: false });
            }
            MemberAction::Stop { .. } | MemberAction::Kill { .. } => {
                let longest = if matches!(action, MemberAction::Kill { .. }) { KILLING } else { 8000 };
                let Some(workers) = &mut self.nodes[node].workers else { return };
                workers.asked_to_stop = true;
                let world = workers.world;
                let after = self.random.millis(1, longest);
                let end = WorkersEnd::Failed { rank: None, code: 143, report: "stopped".into() };
                self.schedule(self.now + after, Event::WorkersEnd(node, life, world, end));
            }
            MemberAction::Exit(decision) => {
                assert!(self.nodes[node].workers.is_none(), "an agent exits while its workers run");
                self.nodes[node].exit = Some(decision);
                let leads = self.nodes[node].leader.as_ref().is_some_and(Leader::has_peers);
                if !leads {
                    self.crash(node, Crash::Process);
                }
            }
        }
    }

    /// The other workers of a world eventually notice that some of them are gone.
    fn missed_by_peers(&mut self, world: World) {
        for node in 0..self.nodes.len() {
            let state = &self.nodes[node];
            if state.workers.as_ref().is_some_and(|workers| workers.world == world && !workers.asked_to_stop) {
                let life = state.life;
                let after = self.random.millis(1, 7000);
                let end = WorkersEnd::Failed { rank: Some(999), code: 1, report: "a peer is gone".into() };
                self.schedule(self.now + after, Event::WorkersEnd(node, life, world, end));
            }
        }
    }

    /// Checks the conditions that must hold whenever workers start.
    fn check_start(&mut self, node: usize, world: World, assigned: &Assigned) {
        let state = &mut self.nodes[node];
        assert!(
            state.last_attempt.is_none_or(|last| assigned.attempt > last),
            "an agent runs {world:?} after a later one"
        );
        state.last_attempt = Some(assigned.attempt);
        let count = assigned.node_count as usize;
        let nodes = self.nodes.len();
        assert!((self.rules.least..=self.rules.most).contains(&count), "{count} of {nodes} nodes");
        assert!(assigned.node_rank < assigned.node_count);
        let local_world_size = node as u32 % 3 + 1;
        let ranks = |assigned: &Assigned, size: u32| assigned.first_rank..assigned.first_rank + size;
        assert!(ranks(assigned, local_world_size).end <= assigned.world_size);
        for (other, theirs) in self.worlds.get(&world).into_iter().flatten() {
            let agree = |a: &Assigned| (a.node_count, a.world_size, a.master_host.clone(), a.master_port);
            assert_eq!(agree(theirs), agree(assigned), "two views of {world:?}");
            assert_ne!(theirs.node_rank, assigned.node_rank, "nodes {other} and {node} have one place in {world:?}");
            let ours = ranks(assigned, local_world_size);
            let theirs = ranks(theirs, *other as u32 % 3 + 1);
            assert!(ours.end <= theirs.start || theirs.end <= ours.start, "ranks overlap in {world:?}");
        }
        for (other, theirs) in self.running() {
            // Stopped workers do nothing, and their agent's first action afterwards is to kill them.
            let (until, workers_run) = self.nodes[other].paused;
            let stands_still = until + Time::from_millis(KILLING) > self.now && !workers_run;
            // Of a dead leader's attempts, only their members know.
            let follows = theirs.0 == world.0 || (self.one_leader && assigned.attempt > 0);
            let is_other_attempt = theirs != world && follows;
            assert!(!is_other_attempt || stands_still, "{world:?} begins while node {other} still runs {theirs:?}");
        }
    }

    /// An agent that has exited stays as long as it leads others.
    fn bury(&mut self, node: usize) {
        let state = &self.nodes[node];
        if state.alive && state.exit.is_some() && !state.leader.as_ref().is_some_and(Leader::has_peers) {
            self.crash(node, Crash::Process);
        }
    }
}
