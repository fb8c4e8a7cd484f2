//! The norm of all gradients.

use enmasse_device::DeviceError;
use enmasse_graph::ops::GradientNorm;

use super::loss_scale::scale;
use super::{OnReference, StepContext, unsupported};

/// The sum of squares.
pub fn squares(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum()
}

/// Its root.
pub fn norm(values: &[f64]) -> f64 {
    squares(values).sqrt()
}

impl OnReference for GradientNorm {
    /// The squares of each tensor are added up first, so that it does not matter which rank has them.
    fn run(&self, step: &mut StepContext) -> Result<(), DeviceError> {
        let shard = &step.shards[0];
        let inputs = &step.node.inputs;
        let (gradients, factor) = match inputs.split_last() {
            Some((&scale, gradients)) if self.scaled => (gradients, 1.0 / shard.read(step.plan, scale)?[0]),
            Some(_) => (&inputs[..], 1.0),
            None => return Err(unsupported(step.node)),
        };
        let of_tensor = |&id| match step.plan.holds(id) {
            true => Ok(squares(&scale(shard.read(step.plan, id)?, factor))),
            false => Ok(0.0),
        };
        let mut sums = gradients.iter().map(of_tensor).collect::<Result<Vec<f64>, DeviceError>>()?;
        step.add_up(&mut sums)?;
        step.scatter(&[vec![sums.iter().sum::<f64>().sqrt()]])
    }
}
