//! An optimiser's step, on one parameter tensor at a time.

use enmasse_device::DeviceError;
use enmasse_graph::ops::Operation;
use enmasse_graph::{Update, UpdateOperands};
use enmasse_tensor::DType;

use super::loss_scale::applied;
use super::{Call, unsupported};
use crate::optimizers::Rule;

/// The factor by which PyTorch's `clip_grad_norm_` multiplies gradients with this norm; NaN if the norm is NaN.
pub fn clip_factor(limit: f32, norm: f64) -> f64 {
    let factor = f64::from(limit) / (norm + 1e-6);
    if factor > 1.0 { 1.0 } else { factor }
}

/// The parameters after a step, and then their state.
fn updated(update: &Update, call: &Call) -> Result<Vec<Vec<f64>>, DeviceError> {
    let step = call.step;
    let changes = update.changes(call.rest.len());
    let UpdateOperands { parameters, norm, .. } =
        update.operands(&step.node.inputs).ok_or_else(|| unsupported(step.node))?;
    let mut changed: Vec<Vec<f64>> = call.rest[changes].iter().map(|values| values.to_vec()).collect();
    let Some((unscale, number)) = applied(call, update.scaled) else { return Ok(changed) };
    let clip = match (update.clip_norm, norm) {
        (Some(limit), Some(norm)) => clip_factor(limit, call.shard.read(step.plan, norm)?[0]),
        _ => 1.0,
    };
    for (index, (&parameter, gradient)) in parameters.iter().zip(call.rest).enumerate() {
        let first = step.plan.slot(parameter).offset / DType::F32.size();
        let mut tensors: Vec<_> = changed.iter_mut().skip(index).step_by(parameters.len()).collect();
        let [w, state @ ..] = &mut tensors[..] else { continue };
        for range in &update.ranges {
            let start = range.start.max(first) - first;
            let end = range.end().min(first + w.len()).saturating_sub(first);
            if start < end {
                let rule = Rule {
                    optimizer: &update.optimizer,
                    weight_decay: range.group.weight_decay.into(),
                    learning_rate: f64::from(step.inputs.learning_rate) * f64::from(range.group.learning_rate_scale),
                    adaptive: range.adaptive,
                    clip: clip * unscale,
                    step: number,
                };
                let state = state.iter_mut().map(|values| &mut values[start..end]).collect();
                rule.update(&mut w[start..end], &gradient[start..end], state);
            }
        }
    }
    Ok(changed)
}

each_shard!(Update, |update, call, []| updated(update, call)?);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clipping_by_hand() {
        let check = |limit: f32, norm: f64, expected: f64| {
            let found = clip_factor(limit, norm);
            assert!(found == expected || found.is_nan() && expected.is_nan(), "{limit} {norm}: {found}");
        };
        check(2.0, 0.0, 1.0);
        check(2.0, 1.5, 1.0);
        check(2.0, 8.0, 2.0 / (8.0 + 1e-6));
        check(2.0, f64::INFINITY, 0.0);
        check(2.0, f64::NAN, f64::NAN);
    }
}
