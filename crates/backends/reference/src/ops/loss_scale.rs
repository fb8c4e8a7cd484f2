//! Loss scaling: the factor of gradients, the check of a step, and the change of the scale after it.

use enmasse_device::DeviceError;
use enmasse_graph::ops::{Scale, Unscale, UpdateScale};

use super::{Call, OnReference, StepContext, unsupported};

/// Every element times a factor.
pub fn scale(x: &[f64], factor: f64) -> Vec<f64> {
    x.iter().map(|x| x * factor).collect()
}

each_shard!(Scale, |_, _, [x, factor]| vec![scale(x, factor[0])]);

/// The factor that undoes the scale, or 0 for a step that is skipped; then the scale.
pub fn unscale(values: &[f64], scale: f64) -> Vec<f64> {
    factor_and_scale(count_bad(values), scale)
}

fn factor_and_scale(bad: f64, scale: f64) -> Vec<f64> {
    let factor = 1.0 / scale;
    vec![if bad == 0.0 && factor.is_finite() { factor } else { 0.0 }, scale]
}

/// How many values are not finite.
fn count_bad(values: &[f64]) -> f64 {
    values.iter().filter(|value| !value.is_finite()).count() as f64
}

impl OnReference for Unscale {
    fn run(&self, step: &mut StepContext) -> Result<(), DeviceError> {
        let Some((&scale, values)) = step.node.inputs.split_last() else { return Err(unsupported(step.node)) };
        let shard = &step.shards[0];
        let mut bad = [0.0];
        for &id in values.iter().filter(|&&id| step.plan.holds(id)) {
            bad[0] += count_bad(shard.read(step.plan, id)?);
        }
        let scale = shard.read(step.plan, scale)?[0];
        step.add_up(&mut bad)?;
        step.scatter(&[factor_and_scale(bad[0], scale)])
    }
}

/// The scale, the good steps in a row, and the skipped steps after a step.
pub fn update_scale(
    factor: f64,
    [scale, good_steps, skipped_steps]: [f64; 3],
    [growth, backoff]: [f32; 2],
    interval: u32,
) -> [f64; 3] {
    if factor == 0.0 {
        return [scale * f64::from(backoff), 0.0, skipped_steps + 1.0];
    }
    if good_steps + 1.0 < f64::from(interval) {
        return [scale, good_steps + 1.0, skipped_steps];
    }
    // Devices keep the scale in f32.
    let grown = scale * f64::from(growth);
    [if grown <= f64::from(f32::MAX) { grown } else { scale }, 0.0, skipped_steps]
}

each_shard!(UpdateScale, |op, _, [unscale, scale, good_steps, skipped_steps]| {
    let state = [scale[0], good_steps[0], skipped_steps[0]];
    update_scale(unscale[0], state, [op.growth, op.backoff], op.interval).map(|value| vec![value]).into()
});

/// The factor of the gradients, and the number of the update from 1, of a step; `None` if it is skipped. If the loss is scaled,
/// the result of [`Unscale`] and the number of skipped steps are the last operands.
pub(super) fn applied(call: &Call, scaled: bool) -> Option<(f64, u64)> {
    let number = call.step.inputs.optimizer_step;
    match call.rest {
        [.., [factor, ..], [skipped_steps]] if scaled => {
            (*factor != 0.0).then(|| (*factor, number.saturating_sub(*skipped_steps as u64)))
        }
        _ => Some((1.0, number)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_skipped_by_a_value_or_a_scale() {
        assert_eq!(unscale(&[1.0, -3.0], 4.0), [0.25, 4.0]);
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(unscale(&[1.0, bad, 2.0], 4.0), [0.0, 4.0]);
        }
        assert_eq!(unscale(&[0.0], 0.0), [0.0, 0.0]);
    }

    /// The sequence of PyTorch's `GradScaler(init_scale=4, growth_interval=3)`, whose gradients were infinite in the steps
    /// marked so: scale and growth tracker after each step, by PyTorch 2.13.
    #[test]
    fn the_scales_of_pytorch() {
        let steps = [
            (true, 4.0, 1.0),
            (true, 4.0, 2.0),
            (true, 8.0, 0.0),
            (true, 8.0, 1.0),
            (false, 4.0, 0.0),
            (false, 2.0, 0.0),
            (true, 2.0, 1.0),
            (true, 2.0, 2.0),
            (false, 1.0, 0.0),
            (true, 1.0, 1.0),
            (true, 1.0, 2.0),
            (true, 2.0, 0.0),
        ];
        let mut state = [4.0, 0.0, 0.0];
        let mut skipped = 0.0;
        for (number, (is_good, scale, tracker)) in steps.into_iter().enumerate() {
            let [factor, _] = unscale(&[if is_good { 1.0 } else { f64::INFINITY }], state[0])[..] else { panic!() };
            state = update_scale(factor, state, [2.0, 0.5], 3);
            skipped += if is_good { 0.0 } else { 1.0 };
            assert_eq!(state, [scale, tracker, skipped], "step {number}");
        }
        // The scale does not grow to infinity.
        let largest = 2f64.powi(127);
        assert_eq!(update_scale(1.0 / largest, [largest, 2.0, 0.0], [2.0, 0.5], 3), [largest, 0.0, 0.0]);
    }
}
