//! Stochastic gradient descent with a rate for each parameter, from the norms of its weights and its gradient.

use super::sgd::{MOMENTUM, momentum_buffer};
use super::{Hyperparameter, Rule};
use crate::range::{above, at_least, below};

optimizer! {
    /// SGD in which `g + weight_decay * w` of an adaptive range is multiplied by
    /// `trust_coefficient * |w| / (|g| + weight_decay * |w| + epsilon)` if both norms are above 0.
    ///
    /// The default coefficient is the paper's.
    ///
    /// Source: Y. You, I. Gitman, B. Ginsburg, "Large batch training of convolutional networks", 2017.
    Lars = "lars" {
        /// Momentum factor.
        momentum: f32 = MOMENTUM as f32, below(0, 1);
        /// The size of a step relative to the weights' norm, at a learning rate of 1.
        trust_coefficient: f32 = 0.001, above(0);
        /// Added to the divisor.
        epsilon: f32 = 1e-8, at_least(0);
    }
}

impl Rule for Lars {
    fn state_names(&self) -> &'static [&'static str] {
        momentum_buffer(self.momentum)
    }

    fn adapts(&self) -> bool {
        true
    }
}
