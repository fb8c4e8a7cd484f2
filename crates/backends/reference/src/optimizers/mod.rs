//! The optimisers in f64, in files of the same names as graph's.

mod adamw;
mod custom;
mod lars;
mod sgd;

use enmasse_graph::{Optimizer, with_optimizer};

/// One update of elements of one group.
#[derive(Clone, Copy, Debug)]
pub struct Rule<'a> {
    /// The optimiser.
    pub optimizer: &'a Optimizer,
    /// Weight decay of the group.
    pub weight_decay: f64,
    /// Learning rate of this step for the group.
    pub learning_rate: f64,
    /// Whether LARS adapts the rate to the norms of these elements.
    pub adaptive: bool,
    /// Factor of the gradients by clipping and by the loss scale; 1 without both.
    pub clip: f64,
    /// Number of the update, from 1.
    pub step: u64,
}

impl Rule<'_> {
    /// Updates `w` in place, and `state`, which has one tensor per name of [`Optimizer::state_names`].
    pub fn update(&self, w: &mut [f64], gradient: &[f64], mut state: Vec<&mut [f64]>) {
        with_optimizer!(self.optimizer, own => own.apply(self, w, gradient, &mut state));
    }
}

/// An optimiser in f64. Every optimiser is one, or the crate does not compile.
trait OptimizerOnReference {
    /// As [`Rule::update`].
    fn apply(&self, rule: &Rule, w: &mut [f64], gradient: &[f64], state: &mut [&mut [f64]]);
}

#[cfg(test)]
mod tests;
