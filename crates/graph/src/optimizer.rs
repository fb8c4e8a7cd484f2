//! The optimiser of a plan: its rule, the ranges of the arenas that it updates, and the operands that it reads and changes.

use std::fmt;

use crate::{ParameterGroup, ValueId};

/// The rule of an optimiser. Learning rate and step number are inputs of each step; weight decay belongs to the
/// [`ParameterGroup`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// PyTorch's `SGD` with dampening 0: `g += weight_decay * w; m = momentum * m + g; w -= lr * (g + momentum * m if nesterov else m)`.
    /// Without momentum there is no state and `w -= lr * g`.
    Sgd {
        /// Momentum factor.
        momentum: f32,
        /// Nesterov's look-ahead.
        nesterov: bool,
    },
    /// PyTorch's `AdamW`: `w *= 1 - lr * weight_decay`, then Adam with bias correction by the step number, which starts at 1.
    AdamW {
        /// Decay of the first and second moments.
        betas: [f32; 2],
        /// Added to the root of the second moment.
        epsilon: f32,
    },
}

impl Optimizer {
    /// Names of the state tensors kept per parameter, as PyTorch calls them.
    pub fn state_names(&self) -> &'static [&'static str] {
        match self {
            Optimizer::Sgd { momentum, .. } if *momentum == 0.0 => &[],
            Optimizer::Sgd { .. } => &["momentum_buffer"],
            Optimizer::AdamW { .. } => &["exp_avg", "exp_avg_sq"],
        }
    }
}

impl fmt::Display for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Optimizer::Sgd { momentum, nesterov } => {
                write!(f, "sgd momentum {momentum}{}", if *nesterov { " nesterov" } else { "" })
            }
            Optimizer::AdamW { betas, epsilon } => write!(f, "adamw betas {betas:?} epsilon {epsilon}"),
        }
    }
}

/// Neighbouring f32 elements of the arenas that belong to one group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateRange {
    /// First element.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
    /// How they are updated.
    pub group: ParameterGroup,
}

impl UpdateRange {
    /// Behind the last element.
    pub fn end(&self) -> usize {
        self.start + self.len
    }
}

/// One update of parameters, which lie at the same offsets in the parameter, gradient and optimiser arenas.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// The rule.
    pub optimizer: Optimizer,
    /// What is updated: ascending, without overlap, within the operands.
    pub ranges: Vec<UpdateRange>,
}

/// The operands of an [`Update`], which are parallel to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateOperands<'a> {
    /// Gradients.
    pub gradients: &'a [ValueId],
    /// The parameters, which are changed in place.
    pub parameters: &'a [ValueId],
    /// The state of each, for every name of [`Optimizer::state_names`], which is changed in place.
    pub state: Vec<&'a [ValueId]>,
}

impl Update {
    /// Takes the operands apart; `None` where there are too many or too few for the optimiser's state.
    pub fn operands<'a>(&self, inputs: &'a [ValueId]) -> Option<UpdateOperands<'a>> {
        let kinds = 2 + self.optimizer.state_names().len();
        if inputs.is_empty() || !inputs.len().is_multiple_of(kinds) {
            return None;
        }
        let mut parts = inputs.chunks_exact(inputs.len() / kinds);
        Some(UpdateOperands { gradients: parts.next()?, parameters: parts.next()?, state: parts.collect() })
    }
}

impl fmt::Display for Update {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.optimizer)?;
        for range in &self.ranges {
            write!(f, "; {}..{} {}", range.start, range.end(), range.group)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_come_in_equal_parts() {
        let check = |optimizer: Optimizer, count: usize, expected: Option<(usize, usize)>| {
            let inputs: Vec<ValueId> = (0..count).map(ValueId).collect();
            let update = Update { optimizer, ranges: Vec::new() };
            let found = update.operands(&inputs).map(|found| {
                assert_eq!(found.gradients.len(), found.parameters.len());
                assert_eq!([found.gradients, found.parameters, &found.state.concat()].concat(), inputs);
                (found.gradients.len(), found.state.len())
            });
            assert_eq!(found, expected, "{optimizer} {count}");
        };
        let sgd = |momentum| Optimizer::Sgd { momentum, nesterov: false };
        check(sgd(0.0), 6, Some((3, 0)));
        check(sgd(0.9), 6, Some((2, 1)));
        check(sgd(0.9), 8, None);
        let adamw = Optimizer::AdamW { betas: [0.9, 0.999], epsilon: 1e-8 };
        check(adamw, 8, Some((2, 2)));
        check(adamw, 6, None);
        check(adamw, 0, None);
    }
}
