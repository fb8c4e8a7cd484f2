//! Stochastic gradient descent.

use super::{Hyperparameter, Rule};
use crate::range::{ANY, below};

/// The share of the old direction that momentum keeps.
pub const MOMENTUM: f64 = 0.9;

optimizer! {
    /// PyTorch's `SGD` with dampening 0:
    /// `g += weight_decay * w; m = momentum * m + g; w -= lr * (g + momentum * m if nesterov else m)`.
    /// Without momentum there is no state, and `w -= lr * g`.
    Sgd = "sgd" {
        /// Momentum factor.
        momentum: f32 = MOMENTUM as f32, below(0, 1);
        /// Whether to use Nesterov's look-ahead.
        nesterov: bool = false, ANY;
    }
}

impl Rule for Sgd {
    fn state_names(&self) -> &'static [&'static str] {
        momentum_buffer(self.momentum)
    }
}

/// The state of a descent with momentum; without it there is none.
pub(super) fn momentum_buffer(momentum: f32) -> &'static [&'static str] {
    if momentum == 0.0 { &[] } else { &["momentum_buffer"] }
}
