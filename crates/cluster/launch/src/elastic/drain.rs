//! A request from outside a job that one of its nodes leave: `enmasse drain`.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use enmasse_comm::{Channel, Token};
use thiserror::Error;

use super::agent::reach;
use super::message::{Decision, DrainReply, ToLeader, ToMember, receive, send};
use super::run::NAMELESS;
use super::{ElasticError, Endpoint};

/// How long the leader's first answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The names in an error.
const SHOWN: usize = 20;

/// Why a node does not leave its job.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DrainError {
    /// The request could not prove that it may be made.
    #[error(transparent)]
    Secret(#[from] ElasticError),
    /// Nobody leads a job there.
    #[error("no job is led at {0}")]
    Unreachable(String),
    /// The job has no such node.
    #[error("{node} is no node of the job: its nodes are {}", listed(nodes))]
    Unknown {
        /// The name that was given.
        node: String,
        /// The names of the job's nodes.
        nodes: Vec<String>,
    },
    /// The nodes meet there.
    #[error("{0} leads the job: the others meet there, and cannot go on without it")]
    Leads(String),
    /// The job ended meanwhile.
    #[error("the job is over: {0}")]
    Over(String),
    /// The connection to the leader broke.
    #[error("the connection to {0} broke before the node had left")]
    Lost(String),
    /// The node did not leave in time.
    #[error("{node} has not left within {} s", limit.as_secs())]
    Late {
        /// The node.
        node: String,
        /// How long it had.
        limit: Duration,
    },
}

fn listed(nodes: &[String]) -> String {
    let more = if nodes.len() > SHOWN { ", ..." } else { "" };
    format!("{}{more}", nodes.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", "))
}

/// Asks a node, by the name of its host, to leave the job whose nodes meet at this endpoint: its ranks finish their step, the run is
/// saved, and the others go on. Returns once it has left. A token is required unless the endpoint is a loopback address.
///
/// # Errors
/// No job meets at the endpoint, it is another job or has another token, or it has no node of this name that can leave.
pub fn drain(
    endpoint: (String, u16),
    token: Option<Token>,
    job: Option<&str>,
    node: &str,
    mut tell: impl FnMut(&str),
) -> Result<(), DrainError> {
    let endpoint = Endpoint::new(endpoint, token)?;
    let link = Arc::new(reach(&endpoint, job.unwrap_or(NAMELESS)).map_err(DrainError::Unreachable)?);
    let (answers, inbox) = channel();
    let reader = std::thread::Builder::new().name("enmasse-drain".into()).spawn({
        let link = link.clone();
        move || while receive(&link).is_some_and(|answer: ToMember| answers.send(answer).is_ok()) {}
    });
    let lost = || DrainError::Lost(endpoint.to_string());
    reader.map_err(|_| lost())?;
    let _closed = Closes(&link);
    send(&link, &ToLeader::Drain { node: node.to_owned() });
    let mut limit = ANSWER_LIMIT;
    loop {
        match inbox.recv_timeout(limit) {
            Ok(ToMember::Drain(DrainReply::Leaving { seconds })) => {
                tell(&format!("{node} finishes its step and leaves"));
                // The leader gives it up after that.
                limit = Duration::from_secs(seconds).saturating_add(ANSWER_LIMIT);
            }
            Ok(ToMember::Drain(DrainReply::Left)) => return Ok(()),
            Ok(ToMember::Drain(DrainReply::Unknown { nodes })) => {
                return Err(DrainError::Unknown { node: node.to_owned(), nodes });
            }
            Ok(ToMember::Drain(DrainReply::Leads)) => return Err(DrainError::Leads(node.to_owned())),
            Ok(ToMember::Over(decision)) => return Err(DrainError::Over(ended(&decision))),
            // For agents.
            Ok(ToMember::Echo { .. } | ToMember::Run(_) | ToMember::Stop { .. } | ToMember::Leave) => {}
            Err(RecvTimeoutError::Timeout) => return Err(DrainError::Late { node: node.to_owned(), limit }),
            Err(RecvTimeoutError::Disconnected) => return Err(lost()),
        }
    }
}

/// How a job ended, in a word.
fn ended(decision: &Decision) -> String {
    match decision {
        Decision::Done | Decision::Drained => "all its workers are done".to_owned(),
        Decision::Failed { host, .. } => format!("its workers failed on {host}"),
        Decision::TooFew { here, least } => format!("{here} of at least {least} nodes joined"),
        Decision::Interrupted { .. } => "it was stopped".to_owned(),
        Decision::NoLeader { why } => why.clone(),
    }
}

/// Closes a channel, and so ends the thread that reads from it.
struct Closes<'a>(&'a Channel);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}
