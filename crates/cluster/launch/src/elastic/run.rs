//! An elastic job on one node, from the agent's start to its end.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};

use enmasse_comm::{Token, UserSecretError, host_name};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use signal_hook::consts::SIGINT;
use thiserror::Error;

use super::agent::{Agent, Notice, Order, Setting};
use super::leader::Rules;
use super::message::{AgentInfo, Assigned, Decision, WorkersEnd, bounded};
use super::{Elastic, Endpoint, Tell};
use crate::assignment::Assignment;
use crate::error::LaunchError;
use crate::job::Job;
use crate::logs::random_number;
use crate::outcome::Outcome;
use crate::signals::Signals;
use crate::workers::Workers;

/// The name of a job without a given name, as with torchrun.
pub(super) const NAMELESS: &str = "none";

/// Reasons why an elastic job cannot begin.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ElasticError {
    /// Agents of other machines could join without proving a secret.
    #[error(
        "{endpoint} is open to other machines: set ENMASSE_TOKEN to one secret text of 16 bytes or more on all nodes"
    )]
    TokenRequired {
        /// The rendezvous endpoint.
        endpoint: String,
    },
    /// The secret that is used without a token cannot be read or made.
    #[error(transparent)]
    UserSecret(#[from] UserSecretError),
    /// The launcher failed.
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

/// How an elastic job ended on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The code to exit with.
    pub code: u8,
    /// The text to print, if anything remains to be said.
    pub report: Option<String>,
}

/// Runs this node's part of an elastic job until the job ends. `tell` gets lines for the user.
///
/// # Errors
/// There is no token, and the endpoint is open to other machines, or the user's own secret cannot be read or made. Or
/// the kernel refuses what the launcher needs. A job that fails is no error, but an [`Ending`] with its code.
pub fn launch_elastic(
    job: &Job,
    elastic: &Elastic,
    tell: impl Fn(&str) + Send + Sync + 'static,
) -> Result<Ending, ElasticError> {
    let endpoint = Endpoint::new(elastic.endpoint.clone(), elastic.token.clone())?;
    let mut signals = Signals::watch(job)?;
    let tell: Tell = Arc::new(tell);
    let id = random_number().map_err(LaunchError::kernel("draw random numbers"))?;
    let rules = Rules {
        least: elastic.least,
        most: elastic.most,
        max_restarts: u32::try_from(job.max_restarts).unwrap_or(u32::MAX),
        timing: elastic.timing,
        endpoint_host: endpoint.host.clone(),
        agent: id,
    };
    let info = AgentInfo {
        id,
        host: host_name(),
        address: elastic.local_address.clone().unwrap_or_default(),
        local_world_size: u32::try_from(job.local_world_size).unwrap_or(u32::MAX),
    };
    let leader_server = Arc::new(Mutex::new(None));
    let setting = Setting {
        endpoint: endpoint.clone(),
        job: job.run_id.clone().unwrap_or_else(|| NAMELESS.to_owned()),
        info,
        rules,
        tell: tell.clone(),
        leader_server: leader_server.clone(),
    };

    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let wake = Arc::new(wake.map_err(LaunchError::kernel("make an event counter"))?);
    let ((notices, inbox), (orders, desk)) = (channel(), channel());
    signals.first_request = Some({
        let notices = notices.clone();
        // An agent that has exited has nothing left to stop.
        Box::new(move |signal| drop(notices.send(Notice::StopRequest(signal))))
    });
    let agent = Agent::new(setting, notices.clone(), orders, wake.clone());
    std::thread::Builder::new()
        .name("enmasse-agent".into())
        .spawn(move || agent.run(&inbox))
        .map_err(LaunchError::kernel("start a thread"))?;

    let mut node = Node { job, token: &endpoint.token, tell, told: None };
    let decision = loop {
        match next_order(&desk, &wake, &mut signals)? {
            Next::Order(Order::Start { assigned, recall, reserved }) => {
                // From here on the port is free for the store.
                drop(reserved);
                let end = node.attempt(&assigned, &mut signals, recall.as_fd());
                let _ = notices.send(Notice::WorkersEnded(end));
            }
            Next::Order(Order::Exit(decision)) => break decision,
            Next::Signal(signal) => signals.request(signal),
        }
    };
    if let Some(leader_server) = leader_server.lock().unwrap_or_else(PoisonError::into_inner).take() {
        leader_server.linger(elastic.timing.stop);
    }
    Ok(ending(decision, node.told.as_ref(), elastic.timing.join.as_secs(), &endpoint))
}

enum Next {
    Order(Order),
    Signal(i32),
}

/// Sleeps until there is an order while no workers run.
fn next_order(desk: &Receiver<Order>, wake: &OwnedFd, signals: &mut Signals) -> Result<Next, LaunchError> {
    loop {
        // All orders are processed, whatever the count.
        let _ = rustix::io::read(wake, &mut [0; 8]);
        match desk.try_recv() {
            Ok(order) => return Ok(Next::Order(order)),
            Err(std::sync::mpsc::TryRecvError::Empty) => {}
            Err(std::sync::mpsc::TryRecvError::Disconnected) => {
                return Ok(Next::Order(Order::Exit(Decision::NoLeader { why: "the agent's thread ended".into() })));
            }
        }
        if let Some(signal) = signals.pending() {
            return Ok(Next::Signal(signal));
        }
        let streams = signals.streams.iter().map(|signal| PollFd::new(&signal.stream, PollFlags::IN));
        let mut ready: Vec<_> = streams.chain([PollFd::new(wake, PollFlags::IN)]).collect();
        match poll(&mut ready, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(source) => return Err(LaunchError::kernel("wait for events")(source)),
        }
    }
}

/// State that the attempts of this node share.
struct Node<'a> {
    job: &'a Job,
    token: &'a Token,
    tell: Tell,
    /// The last failure reported to this node's user.
    told: Option<String>,
}

impl Node<'_> {
    /// Runs the workers of one attempt.
    fn attempt(
        &mut self,
        assigned: &Assigned,
        signals: &mut Signals,
        recall: std::os::fd::BorrowedFd<'_>,
    ) -> WorkersEnd {
        let assignment = Assignment {
            node_rank: assigned.node_rank as usize,
            node_count: assigned.node_count as usize,
            first_rank: assigned.first_rank as usize,
            world_size: assigned.world_size as usize,
            local_world_size: self.job.local_world_size,
            master: (assigned.master_host.clone(), assigned.master_port),
            attempt: assigned.attempt as usize,
            max_restarts: self.job.max_restarts,
            // Nodes that do not know each other share a leader.
            run_id: self.job.run_id.clone().unwrap_or_else(|| format!("enmasse-{:016x}", assigned.leader)),
        };
        // Workers that a lost node has left behind are strangers to the next attempt.
        let context = [&assigned.leader.to_le_bytes()[..], &assigned.attempt.to_le_bytes()].concat();
        let job = Job { token: Some(self.token.derive(&context)), ..self.job.clone() };
        let outcome = Workers::spawn(&job, &assignment).and_then(|workers| workers.supervise(signals, Some(recall)));
        let stopped = |code| WorkersEnd::Failed { rank: None, code, report: "stopped".into() };
        match outcome {
            Ok(Outcome::Done) => WorkersEnd::Done,
            Ok(outcome @ (Outcome::Interrupted { .. } | Outcome::Recalled)) => stopped(outcome.exit_code()),
            Ok(Outcome::Failed(failure)) => {
                let rank = failure.rank.and_then(|rank| u32::try_from(rank).ok());
                let report = failure.to_string();
                self.failed(rank, Outcome::Failed(failure).exit_code(), report)
            }
            Err(error) => self.failed(None, 1, error.to_string()),
        }
    }

    /// Reports a failure here at once, and to the leader, which may report it elsewhere.
    fn failed(&mut self, rank: Option<u32>, code: u8, report: String) -> WorkersEnd {
        (self.tell)(&format!("error: {report}"));
        let report = bounded(report);
        self.told = Some(report.clone());
        WorkersEnd::Failed { rank, code, report }
    }
}

fn ending(decision: Decision, told: Option<&String>, seconds: u64, endpoint: &Endpoint) -> Ending {
    let (code, report) = match decision {
        Decision::Done => (0, None),
        Decision::Drained => (0, Some("drained: this node has left the job".into())),
        Decision::Failed { code, report, .. } if Some(&report) == told => (code, None),
        Decision::Failed { host, code, report } => (code, Some(format!("error: node {host}: {report}"))),
        Decision::TooFew { here, least } => {
            (1, Some(format!("error: only {here} of at least {least} nodes joined at {endpoint} within {seconds} s")))
        }
        Decision::Interrupted { signal: SIGINT } => (130, Some("interrupted: the workers are stopped".into())),
        Decision::Interrupted { signal } => {
            let outcome = Outcome::Interrupted { signal, overdue: None };
            (outcome.exit_code(), outcome.report())
        }
        Decision::NoLeader { why } => {
            (1, Some(format!("error: no node leads at {endpoint} within {seconds} s: {why}")))
        }
    };
    Ending { code, report }
}
