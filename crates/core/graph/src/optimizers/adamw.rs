//! Adam with decoupled weight decay.

use super::{Hyperparameter, Rule};
use crate::range::{at_least, below};

optimizer! {
    /// PyTorch's `AdamW`: `w *= 1 - lr * weight_decay`, then Adam with bias correction by the step number, which starts at 1.
    /// The defaults are PyTorch's.
    AdamW = "adamw" {
        /// Decay of the first and second moments.
        betas: [f32; 2] = [0.9, 0.999], below(0, 1);
        /// Added to the root of the second moment.
        epsilon: f32 = 1e-8, at_least(0);
    }
}

impl Rule for AdamW {
    fn state_names(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq"]
    }
}
