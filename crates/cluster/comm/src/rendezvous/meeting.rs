//! The exchange of values between a job's ranks through the store at rank 0.

use std::time::{Duration, Instant};

use super::form::Board;
use super::{JoinError, Rendezvous, Store, StoreError};
use crate::cause::{Cause, CauseKind};
use crate::failure::Failure;
use crate::net::acceptor::Refusals;

/// How long a rank that lost the store waits for the cause on its control connection.
const GRACE: Duration = Duration::from_secs(1);

/// A rank's conversation through the store.
pub(super) struct Meeting<'a> {
    pub rendezvous: &'a Rendezvous,
    pub store: &'a Store,
    pub failure: &'a Failure,
    pub deadline: Instant,
    /// Those at rank 0's port; `None` on other ranks.
    pub refusals: Option<&'a Refusals>,
}

impl Meeting<'_> {
    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// One rank's value of a subject.
    fn hear(&self, subject: &str, rank: usize) -> Result<String, JoinError> {
        match self.store.wait(&format!("{subject}/{rank}"), self.left()) {
            Ok(value) => Ok(String::from_utf8_lossy(&value).into_owned()),
            Err(StoreError::Late(_)) => Err(self.missing(subject)),
            Err(error) => Err(self.lost(error)),
        }
    }

    /// The error after the deadline, with the ranks that have not published the subject.
    fn missing(&self, subject: &str) -> JoinError {
        let Rendezvous { world_size, address, join_timeout, .. } = self.rendezvous;
        let told = |rank: &usize| self.store.wait(&format!("{subject}/{rank}"), Duration::ZERO).is_ok();
        JoinError::Missing {
            missing: (0..*world_size).filter(|rank| !told(rank)).collect(),
            world_size: *world_size,
            address: address.clone(),
            seconds: join_timeout.as_secs_f64(),
            refused: self.refusals.and_then(Refusals::so_far).into_iter().collect(),
        }
    }

    /// The error after the store ended. It ended with the group, so the control connection delivers the cause.
    fn lost(&self, error: StoreError) -> JoinError {
        if self.failure.fails_within(GRACE)
            && let Some(cause) = self.failure.cause()
        {
            return JoinError::Cause(cause);
        }
        self.nonsense(&error.to_string())
    }
}

impl Board for Meeting<'_> {
    fn exchange(&self, subject: &str, value: &str) -> Result<Vec<String>, JoinError> {
        let key = format!("{subject}/{}", self.rendezvous.rank);
        self.store.set(&key, value.as_bytes()).map_err(|error| self.lost(error))?;
        (0..self.rendezvous.world_size).map(|rank| self.hear(subject, rank)).collect()
    }

    fn go_on_waiting(&self) -> Result<(), JoinError> {
        if self.failure.is_stopping() {
            return Err(self.lost(StoreError::Late("address".into())));
        }
        if self.left().is_zero() { Err(self.missing("ready")) } else { Ok(()) }
    }

    fn nonsense(&self, why: &str) -> JoinError {
        JoinError::Store { address: self.rendezvous.address.clone(), why: why.to_owned() }
    }

    fn fail(&self, error: JoinError) -> JoinError {
        let limit = error.limit();
        let is_limit = limit.is_some();
        let cause = Cause::new(CauseKind::Error, limit.unwrap_or_else(|| error.to_string()));
        self.failure.raise(match error {
            JoinError::Missing { .. } => cause,
            _ => cause.of_rank_here(self.rendezvous.rank),
        });
        match self.failure.cause() {
            // The group's first cause is a better answer than this rank's own observation.
            Some(first) if is_limit || first.message != error.to_string() => JoinError::Cause(first),
            _ => error,
        }
    }
}
