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

    /// The error after the deadline, with the ranks that have not come as far as this one.
    fn missing(&self, missing: Vec<usize>) -> JoinError {
        let Rendezvous { world_size, address, join_timeout, .. } = self.rendezvous;
        JoinError::Missing {
            missing,
            world_size: *world_size,
            address: address.clone(),
            seconds: join_timeout.as_secs_f64(),
            refused: self.refusals.and_then(Refusals::so_far).into_iter().collect(),
        }
    }

    /// The error for what the store answered.
    fn error(&self, error: StoreError) -> JoinError {
        match error {
            StoreError::Late(missing) => self.missing(missing),
            ended => self.lost(&ended.to_string()),
        }
    }

    /// The error after the store ended. It ended with the group, so the control connection delivers the cause.
    fn lost(&self, why: &str) -> JoinError {
        if self.failure.fails_within(GRACE)
            && let Some(cause) = self.failure.cause()
        {
            return JoinError::Cause(cause);
        }
        self.nonsense(why)
    }
}

impl Board for Meeting<'_> {
    fn exchange(&self, subject: &str, value: &str) -> Result<Vec<String>, JoinError> {
        let ranks = self.rendezvous.world_size;
        self.store.exchange(subject, value.as_bytes(), ranks, self.left()).map_err(|error| self.error(error))
    }

    fn go_on_waiting(&self) -> Result<(), JoinError> {
        if self.failure.is_stopping() {
            return Err(self.lost("the group has failed"));
        }
        if !self.left().is_zero() {
            return Ok(());
        }
        Err(self.store.missing("ready").map_or_else(|error| self.error(error), |missing| self.missing(missing)))
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
