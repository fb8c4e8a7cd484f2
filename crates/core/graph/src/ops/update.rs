//! An optimiser's step.

use std::fmt;
use std::ops::Range;

use super::Operation;
use crate::{Optimizer, ParameterGroup, ValueId};

/// One update of parameters. They have the same offsets in the parameter, gradient and optimiser arenas; in the plan of a rank that has
/// a part of the state ([`crate::Partition`]) those of the optimiser follow from [`crate::Plan::updated_parts`].
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// The rule.
    pub optimizer: Optimizer,
    /// The updated ranges: ascending, without overlap, within the operands.
    pub ranges: Vec<UpdateRange>,
    /// If set, gradients are first multiplied by `min(1, clip_norm / (norm + 1e-6))`, as by PyTorch's `clip_grad_norm_`. The
    /// norm is an operand after those of the parameters.
    pub clip_norm: Option<f32>,
    /// Whether the loss is scaled. Then gradients are first multiplied by the factor of [`super::Unscale`], and nothing
    /// changes if that is 0. The step number counts only steps that changed something. The last operands are the result of
    /// [`super::Unscale`] and the number of steps skipped so far.
    pub scaled: bool,
}

impl Operation for Update {
    const NAME: &'static str = "update";
    const SIGNATURE: &'static str =
        "(gradients.., parameters.., state.. of each name, norm? [1], unscale? [2], skipped_steps? [1]) -> ()";
    const PYTORCH: Option<&'static str> = Some("torch.optim.Optimizer.step");

    fn attributes(&self) -> String {
        self.to_string()
    }

    /// Parameters and state, which follow the gradients.
    fn changes(&self, inputs: usize) -> Range<usize> {
        let kinds = 2 + self.optimizer.state_names().len();
        let parameters = inputs.saturating_sub(self.others()) / kinds;
        parameters..parameters * kinds
    }
}

/// A contiguous range of f32 elements of the arenas that belong to one group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateRange {
    /// First element.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
    /// The settings of their group.
    pub group: ParameterGroup,
    /// Whether the range is one parameter, to whose norms the optimiser adapts its rate.
    pub adaptive: bool,
}

impl UpdateRange {
    /// The index after the last element.
    pub fn end(&self) -> usize {
        self.start + self.len
    }
}

/// The operands of an [`Update`]; the lists are parallel to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateOperands<'a> {
    /// Gradients.
    pub gradients: &'a [ValueId],
    /// Parameters, which are changed in place.
    pub parameters: &'a [ValueId],
    /// For every name of [`Optimizer::state_names`], the state of each parameter, which is changed in place.
    pub state: Vec<&'a [ValueId]>,
    /// The norm of all gradients, if they are clipped.
    pub norm: Option<ValueId>,
    /// What loss scaling says of the step, if the loss is scaled.
    pub scaling: Option<Scaling<ValueId>>,
}

/// What loss scaling says of a step to what changes state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaling<T> {
    /// The result of [`super::Unscale`].
    pub unscale: T,
    /// The number of steps skipped before this one.
    pub skipped_steps: T,
}

impl Update {
    /// The number of operands after the lists.
    pub(crate) const fn others(&self) -> usize {
        self.clip_norm.is_some() as usize + if self.scaled { 2 } else { 0 }
    }

    /// Splits the operands by kind; `None` if their number does not match the optimiser's state.
    pub fn operands<'a>(&self, inputs: &'a [ValueId]) -> Option<UpdateOperands<'a>> {
        let kinds = 2 + self.optimizer.state_names().len();
        let (lists, others) = inputs.split_at_checked(inputs.len().checked_sub(self.others())?)?;
        let (norm, scaling) = match (self.clip_norm, others) {
            (None, []) => (None, None),
            (Some(_), &[norm]) => (Some(norm), None),
            (None, &[unscale, skipped_steps]) => (None, Some(Scaling { unscale, skipped_steps })),
            (Some(_), &[norm, unscale, skipped_steps]) => (Some(norm), Some(Scaling { unscale, skipped_steps })),
            _ => return None,
        };
        if lists.is_empty() || !lists.len().is_multiple_of(kinds) {
            return None;
        }
        let mut parts = lists.chunks_exact(lists.len() / kinds);
        let (gradients, parameters) = (parts.next()?, parts.next()?);
        Some(UpdateOperands { gradients, parameters, state: parts.collect(), norm, scaling })
    }
}

impl fmt::Display for Update {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.optimizer)?;
        if let Some(norm) = self.clip_norm {
            write!(f, " clip_norm {norm}")?;
        }
        if self.scaled {
            f.write_str(" scaled")?;
        }
        for range in &self.ranges {
            let adaptive = if range.adaptive { " adaptive" } else { "" };
            write!(f, "; {}..{} {}{adaptive}", range.start, range.end(), range.group)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizers::{AdamW, Sgd};

    #[test]
    fn operands_come_in_equal_parts() {
        let check_scaled = |optimizer: Optimizer, clip_norm: Option<f32>, scaled, count: usize, expected| {
            let inputs: Vec<ValueId> = (0..count).map(ValueId).collect();
            let update = Update { optimizer, ranges: Vec::new(), clip_norm, scaled };
            let found = update.operands(&inputs).map(|found| {
                assert_eq!(found.gradients.len(), found.parameters.len());
                assert_eq!(found.norm.is_some(), clip_norm.is_some());
                let lists = [found.gradients, found.parameters, &found.state.concat()].concat();
                let scaling = found.scaling.map(|scaling| [scaling.unscale, scaling.skipped_steps]);
                assert_eq!(scaling.is_some(), scaled);
                let others = found.norm.into_iter().chain(scaling.into_iter().flatten());
                assert!(lists.into_iter().chain(others).eq(inputs.iter().copied()));
                (found.gradients.len(), found.state.len())
            });
            assert_eq!(found, expected, "{update} {count}");
        };
        let check = |optimizer, clip_norm, count, expected| check_scaled(optimizer, clip_norm, false, count, expected);
        let sgd = |momentum| Optimizer::from(Sgd { momentum, nesterov: false });
        check_scaled(sgd(0.0), None, true, 8, Some((3, 0)));
        check_scaled(sgd(0.9), Some(1.0), true, 9, Some((2, 1)));
        check_scaled(sgd(0.9), Some(1.0), true, 8, None);
        check_scaled(sgd(0.0), None, true, 1, None);
        check(sgd(0.0), None, 6, Some((3, 0)));
        check(sgd(0.9), None, 6, Some((2, 1)));
        check(sgd(0.9), None, 8, None);
        check(sgd(0.9), Some(1.0), 7, Some((2, 1)));
        check(sgd(0.9), Some(1.0), 6, None);
        let adamw = Optimizer::from(AdamW::default());
        check(adamw.clone(), None, 8, Some((2, 2)));
        check(adamw.clone(), None, 6, None);
        check(adamw.clone(), None, 0, None);
        check(adamw.clone(), Some(1.0), 0, None);
    }
}
