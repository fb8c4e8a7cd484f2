//! The agent of one node: stays in contact with the leader, and has workers started and stopped. See the parent module.

use std::collections::VecDeque;

use super::message::{AgentInfo, Assigned, Decision, Join, ToLeader, ToMember, WorkersEnd};
use super::{Time, Timing};

/// Pause between two attempts to reach a leader.
const RETRY: Time = Time::from_millis(200);

/// Events for an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberEvent {
    /// The requested connection is open. The port is one on which rank 0 could open its store.
    Linked { port: u16 },
    /// The connection failed.
    NotLinked { why: String },
    /// The connection broke, or was closed by the other end.
    Lost,
    /// The leader sent a message.
    Message(ToMember),
    /// No worker is left, whether the workers ended by themselves or were stopped. The port is one for the next attempt.
    WorkersEnded { end: WorkersEnd, port: u16 },
    /// The user stops this agent by a signal.
    StopRequest { signal: i32 },
    /// A deadline may have passed.
    Tick,
}

/// Actions for the driver, to be performed in this order. Reasons are for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberAction {
    /// Connect to the leader at the endpoint, or become it.
    Connect,
    /// Tell the user that no leader answers. The member goes on trying for the time that is left.
    Wait { why: String, left: Time },
    /// Close the connection, which yields no further events.
    Disconnect,
    /// Send a message to the leader.
    Send(ToLeader),
    /// Start this node's workers.
    Start(Assigned),
    /// Ask the workers to end.
    Stop { why: String },
    /// Kill the workers.
    Kill { why: String },
    /// Exit: no workers are left.
    Exit(Decision),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Without workers and without a leader, until the deadline; `retry` is the time of the next attempt. The user is
    /// told once.
    Seeking { deadline: Time, retry: Option<Time>, why: String, told: bool },
    /// Connected to a leader, without workers.
    Idle,
    /// Workers run.
    Running { attempt: u32 },
    /// The workers ended by themselves.
    Ended { attempt: u32 },
    /// The workers were asked to stop. If `exit` is set, the agent exits afterwards with this decision.
    Stopping { attempt: u32, exit: Option<Decision> },
    /// The agent has exited.
    Over,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Member {
    agent: AgentInfo,
    timing: Timing,
    state: State,
    visits: u32,
    linked: bool,
    port: u16,
    next_attempt: u32,
    /// Unanswered heartbeats: their numbers, and when they were sent.
    beats: VecDeque<(u32, Time)>,
    next_beat: u32,
    beat_due: Time,
    /// When the leader may assume that this agent's workers are gone.
    lease: Time,
    has_killed: bool,
    actions: Vec<MemberAction>,
}

impl Member {
    /// An agent without workers. It looks for its leader at the first [`MemberEvent::Tick`].
    pub fn new(agent: AgentInfo, timing: Timing, now: Time) -> Self {
        let mut member = Member {
            agent,
            timing,
            state: State::Over,
            visits: 0,
            linked: false,
            port: 0,
            next_attempt: 0,
            beats: VecDeque::new(),
            next_beat: 0,
            beat_due: now,
            lease: now,
            has_killed: false,
            actions: Vec::new(),
        };
        member.seek(now, "no attempt was made");
        member
    }

    /// Handles an event at `now`, which never decreases.
    pub fn handle(&mut self, now: Time, event: MemberEvent) -> Vec<MemberAction> {
        // First of all: a message may have arrived in time, but been noticed too late on this machine.
        self.check_lease(now);
        match event {
            MemberEvent::Linked { port } => self.linked(now, port),
            MemberEvent::NotLinked { why } => {
                if let State::Seeking { deadline, retry, why: last, told } = &mut self.state {
                    if !std::mem::replace(told, true) {
                        self.actions.push(MemberAction::Wait { why: why.clone(), left: deadline.saturating_sub(now) });
                    }
                    *retry = Some(now + RETRY);
                    *last = why;
                }
            }
            MemberEvent::Lost => self.lost(now, "the connection to the leader broke"),
            MemberEvent::Message(message) if self.linked => self.hear(now, message),
            MemberEvent::Message(_) => {}
            MemberEvent::WorkersEnded { end, port } => self.workers_ended(now, end, port),
            MemberEvent::StopRequest { signal } => self.leave(Decision::Interrupted { signal }, "it was asked to stop"),
            MemberEvent::Tick => {}
        }
        self.proceed(now);
        std::mem::take(&mut self.actions)
    }

    /// When to send [`MemberEvent::Tick`] if nothing else happens.
    pub fn deadline(&self) -> Option<Time> {
        let beat = (self.linked && self.state != State::Over).then_some(self.beat_due);
        let state = match &self.state {
            State::Seeking { deadline, retry, .. } => Some(retry.map_or(*deadline, |retry| retry.min(*deadline))),
            State::Running { .. } | State::Stopping { .. } if !self.has_killed => Some(self.lease),
            State::Idle | State::Ended { .. } => Some(self.lease),
            _ => None,
        };
        beat.into_iter().chain(state).min()
    }

    fn linked(&mut self, now: Time, port: u16) {
        let State::Seeking { .. } = self.state else {
            // The connection was given up in the meantime.
            return self.actions.push(MemberAction::Disconnect);
        };
        self.visits += 1;
        self.port = port;
        self.linked = true;
        self.state = State::Idle;
        self.lease = now + self.timing.lease;
        self.beat_due = now;
        self.beats.clear();
        let agent = self.agent.clone();
        let visit = self.visits;
        let next_attempt = self.next_attempt;
        self.send(ToLeader::Join(Join { agent, visit, port, next_attempt }));
    }

    /// Handles the loss of the leader. Workers may end in order as long as the lease lasts, since their world may be
    /// intact.
    fn lost(&mut self, now: Time, why: &str) {
        self.linked = false;
        match self.state.clone() {
            State::Running { attempt } => {
                self.state = State::Stopping { attempt, exit: None };
                self.actions.push(MemberAction::Stop { why: why.to_owned() });
            }
            State::Idle | State::Ended { .. } => self.seek(now, why),
            State::Seeking { deadline, told, .. } => {
                self.state = State::Seeking { deadline, retry: Some(now + RETRY), why: why.to_owned(), told };
            }
            State::Stopping { .. } | State::Over => {}
        }
    }

    fn seek(&mut self, now: Time, why: &str) {
        let deadline = now + self.timing.join;
        let why = why.to_owned();
        self.state = State::Seeking { deadline, retry: Some(now), why, told: false };
    }

    fn hear(&mut self, now: Time, message: ToMember) {
        match message {
            ToMember::Echo { number } => {
                while let Some((sent, when)) = self.beats.pop_front() {
                    if sent == number {
                        // The leader counts from its receipt of the heartbeat, which was later.
                        self.lease = self.lease.max(when + self.timing.lease);
                        break;
                    }
                }
            }
            ToMember::Run(assigned) => {
                let attempt = assigned.attempt;
                if self.state != State::Idle || attempt < self.next_attempt || self.next_attempt == u32::MAX {
                    // The leader could not order this if it knew the agent's messages.
                    self.actions.push(MemberAction::Disconnect);
                    return self.lost(now, "the leader ordered an attempt that is over");
                }
                self.next_attempt = attempt.saturating_add(1);
                self.has_killed = false;
                self.state = State::Running { attempt };
                self.actions.push(MemberAction::Start(assigned));
            }
            ToMember::Stop { attempt, why } => match self.state {
                State::Running { attempt: current } if current == attempt => {
                    self.state = State::Stopping { attempt, exit: None };
                    self.actions.push(MemberAction::Stop { why });
                }
                State::Ended { attempt: current } if current == attempt => {
                    self.state = State::Idle;
                    self.send(ToLeader::Stopped { attempt, port: self.port });
                }
                _ => {}
            },
            ToMember::Leave => self.leave(Decision::Drained, "this node is drained"),
            // For the program that has asked.
            ToMember::Drain(_) => {}
            ToMember::Over(decision) => match self.state.clone() {
                State::Running { attempt } => {
                    self.state = State::Stopping { attempt, exit: Some(decision) };
                    self.actions.push(MemberAction::Stop { why: "the job is over".into() });
                }
                State::Stopping { attempt, exit } => {
                    self.state = State::Stopping { attempt, exit: exit.or(Some(decision)) };
                }
                _ => self.exit(decision),
            },
        }
    }

    fn workers_ended(&mut self, now: Time, end: WorkersEnd, port: u16) {
        self.port = port;
        match self.state.clone() {
            State::Running { attempt } => {
                self.state = State::Ended { attempt };
                self.send(ToLeader::Ended { attempt, end });
            }
            State::Stopping { attempt, exit } => {
                if self.linked {
                    if let WorkersEnd::Failed { rank: Some(_), .. } = end {
                        // They had failed before they were asked to stop, which may be why the others were stopped.
                        self.send(ToLeader::Ended { attempt, end });
                    }
                    self.send(ToLeader::Stopped { attempt, port });
                }
                match exit {
                    Some(decision) => self.exit(decision),
                    None if self.linked => self.state = State::Idle,
                    None => self.seek(now, "the leader was lost"),
                }
            }
            _ => {}
        }
    }

    /// Handles the user's request to stop this agent.
    fn leave(&mut self, decision: Decision, why: &str) {
        if self.linked && !matches!(self.state, State::Stopping { exit: Some(_), .. } | State::Over) {
            self.send(ToLeader::Leave);
        }
        match self.state.clone() {
            State::Running { attempt } => {
                self.state = State::Stopping { attempt, exit: Some(decision) };
                self.actions.push(MemberAction::Stop { why: why.to_owned() });
            }
            State::Stopping { attempt, exit: None } => {
                self.state = State::Stopping { attempt, exit: Some(decision) };
            }
            State::Ended { attempt } => {
                if self.linked {
                    self.send(ToLeader::Stopped { attempt, port: self.port });
                }
                self.exit(decision);
            }
            State::Seeking { .. } | State::Idle => self.exit(decision),
            State::Stopping { .. } | State::Over => {}
        }
    }

    fn send(&mut self, message: ToLeader) {
        self.actions.push(MemberAction::Send(message));
    }

    fn exit(&mut self, decision: Decision) {
        if self.linked {
            self.actions.push(MemberAction::Disconnect);
        }
        self.linked = false;
        self.state = State::Over;
        self.actions.push(MemberAction::Exit(decision));
    }

    fn kill(&mut self, why: &str) {
        if !self.has_killed {
            self.has_killed = true;
            self.actions.push(MemberAction::Kill { why: why.to_owned() });
        }
    }

    /// When the lease ends, the leader may replace this agent's workers.
    fn check_lease(&mut self, now: Time) {
        if now < self.lease {
            return;
        }
        if self.linked {
            self.actions.push(MemberAction::Disconnect);
            self.lost(now, "the leader has fallen silent");
        }
        if let State::Running { .. } | State::Stopping { .. } = self.state {
            self.kill("the leader did not answer in time");
        }
    }

    /// Performs the actions that are due.
    fn proceed(&mut self, now: Time) {
        if self.linked && self.state != State::Over && now >= self.beat_due {
            self.beat_due = now + self.timing.beat();
            let number = self.next_beat;
            self.next_beat = self.next_beat.wrapping_add(1);
            self.beats.push_back((number, now));
            self.send(ToLeader::Beat { number });
        }
        if let State::Seeking { deadline, retry, why, .. } = &mut self.state {
            if now >= *deadline {
                let why = std::mem::take(why);
                self.exit(Decision::NoLeader { why });
            } else if retry.is_some_and(|retry| now >= retry) {
                *retry = None;
                self.actions.push(MemberAction::Connect);
            }
        }
    }
}
