//! Optimisers that a program outside this repository defines.

use std::fmt;
use std::sync::Arc;

use super::Rule;
use crate::{GraphError, LOSS_SCALE_PREFIX, RESIDUAL_PREFIX};

/// An optimiser of a program's own: its state, and the rule by which a CPU changes each weight.
///
/// Devices that cannot run it refuse a plan with a sentence that names it.
pub trait CustomOptimizer: fmt::Debug + Send + Sync {
    /// The name in plans and error messages.
    fn name(&self) -> &'static str;

    /// The hyper-parameters as they follow the name in a plan. Ranks compare them, so they must say all that the rule depends on.
    fn hyperparameters(&self) -> String {
        String::new()
    }

    /// The names of the state tensors that each parameter has, zero at first. Checkpoints have `optimizer.NAME.PARAMETER`.
    fn state_names(&self) -> &'static [&'static str] {
        &[]
    }

    /// Updates some elements of one group of parameters, in place, and their state, which has a slice for each name. All slices
    /// have the same length. What happens to an element must not depend on the others: a parameter comes in pieces, on several
    /// threads.
    ///
    /// Gradients are clipped, and without the scale of the loss. Weights and state are stored in f32, which rounds them once.
    fn update(&self, step: &UpdateStep, weights: &mut [f64], gradients: &[f64], state: &mut [&mut [f64]]);
}

/// What the rule of an optimiser needs to know of a step, besides its tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateStep {
    /// The learning rate, times the group's factor.
    pub learning_rate: f64,
    /// The group's weight decay.
    pub weight_decay: f64,
    /// The number of the update, from 1. Steps that loss scaling skips do not count.
    pub number: u64,
}

/// A [`CustomOptimizer`] in a plan.
#[derive(Clone, Debug)]
pub struct Custom(Arc<dyn CustomOptimizer>);

impl Custom {
    /// The most state tensors that a parameter can have.
    pub const MAX_STATE: usize = 4;

    /// Makes it the optimiser of a plan.
    pub fn new(optimizer: impl CustomOptimizer + 'static) -> Self {
        Custom(Arc::new(optimizer))
    }

    /// See [`CustomOptimizer::update`].
    pub fn update(&self, step: &UpdateStep, weights: &mut [f64], gradients: &[f64], state: &mut [&mut [f64]]) {
        self.0.update(step, weights, gradients, state);
    }

    /// Refuses state that no checkpoint could name.
    pub(crate) fn check(&self) -> Result<(), GraphError> {
        let (name, names) = (self.0.name(), self.0.state_names());
        let refuse = |why: String| Err(GraphError::Option(format!("the optimiser {name} {why}")));
        if names.len() > Self::MAX_STATE {
            return refuse(format!(
                "keeps {} tensors for each parameter; at most {} fit",
                names.len(),
                Self::MAX_STATE
            ));
        }
        let is_wrong = |&(at, state): &(usize, &&str)| {
            let prefix = format!("optimizer.{state}.");
            let is_taken = [LOSS_SCALE_PREFIX, RESIDUAL_PREFIX].contains(&&*prefix) || names[..at].contains(state);
            state.is_empty() || state.contains('.') || is_taken
        };
        match names.iter().enumerate().find(is_wrong) {
            Some((_, state)) => refuse(format!("cannot name its state {state:?}: take one word for each tensor")),
            None => Ok(()),
        }
    }
}

/// Optimisers with the same name and hyper-parameters are the same.
impl PartialEq for Custom {
    fn eq(&self, other: &Custom) -> bool {
        self.to_string() == other.to_string()
    }
}

impl fmt::Display for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())?;
        match self.0.hyperparameters() {
            hyperparameters if hyperparameters.is_empty() => Ok(()),
            hyperparameters => write!(f, " {hyperparameters}"),
        }
    }
}

impl Rule for Custom {
    fn state_names(&self) -> &'static [&'static str] {
        self.0.state_names()
    }
}
