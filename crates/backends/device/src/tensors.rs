//! Finds the tensors of a program by name, and converts between stored order and PyTorch's.

use enmasse_graph::{Layout, Plan, Plans, Role, StateTensor, ValueId};
use enmasse_tensor::Shape;

use crate::DeviceError;

/// A tensor that a program knows by name.
#[derive(Clone, Copy, Debug)]
pub enum ProgramTensor<'a> {
    /// A tensor that outlives the step.
    State(&'a StateTensor),
    /// The gradient of a parameter, summed over shards, or the norm of all gradients.
    Gradient {
        /// The training plan.
        plan: &'a Plan,
        /// The gradient, or the norm.
        value: ValueId,
        /// How the parameter's order of elements relates to PyTorch's.
        layout: Layout,
    },
    /// A result of the latest step, one for each shard that the program hosts: `logits`, `loss`, `correct` or one of [`Plan::kept`].
    Result {
        /// The plan of that step.
        plan: &'a Plan,
        /// The result.
        value: ValueId,
    },
}

/// Finds the tensor called `name`; `latest` is the plan of the latest step.
pub fn find_tensor<'a>(plans: &'a Plans, latest: Option<&'a Plan>, name: &str) -> Option<ProgramTensor<'a>> {
    if let Some(state) = plans.find(name) {
        return Some(ProgramTensor::State(state));
    }
    if name.starts_with("gradient.") {
        let plan = plans.train.as_ref()?;
        let (at, parameter) = plan.values.iter().enumerate().find_map(|(at, value)| match value.role {
            Role::Gradient { parameter } if value.name == name => Some((at, parameter)),
            _ => None,
        })?;
        let layout = plans.find(&plan.value(parameter).name)?.layout;
        return Some(ProgramTensor::Gradient { plan, value: ValueId(at), layout });
    }
    if name == "gradient_norm" {
        let plan = plans.train.as_ref()?;
        return Some(ProgramTensor::Gradient { plan, value: plan.gradient_norm()?, layout: Layout::Plain });
    }
    let plan = latest?;
    let value = match name {
        "logits" => plan.logits,
        "loss" => plan.loss,
        "correct" => plan.correct?,
        _ => *plan.kept.get(name.strip_prefix(Plan::KEPT)?.parse::<usize>().ok()?)?,
    };
    Some(ProgramTensor::Result { plan, value })
}

/// Finds the state tensor called `name`, which is to be set to this many values.
///
/// # Errors
/// [`DeviceError::Name`] if there is none, [`DeviceError::Size`] if it has another number of elements.
pub fn find_state<'a>(plans: &'a Plans, name: &str, found: usize) -> Result<&'a StateTensor, DeviceError> {
    let tensor = plans.find(name).ok_or_else(|| DeviceError::Name(name.into()))?;
    let expected = tensor.shape.elements();
    if found == expected { Ok(tensor) } else { Err(DeviceError::Size { name: name.into(), expected, found }) }
}

/// Converts stored elements to PyTorch's order.
pub fn to_torch<T: Copy + Into<f64>>(stored: &[T], shape: &Shape, layout: Layout) -> Vec<f64> {
    let mut values = vec![0.0; stored.len()];
    layout.for_each(shape, |from, to| values[to] = stored[from].into());
    values
}

/// Passes each of the `values`, which are in PyTorch's order, to `set` with its stored index.
pub fn from_torch(values: &[f64], shape: &Shape, layout: Layout, mut set: impl FnMut(usize, f64)) {
    layout.for_each(shape, |to, from| set(to, values[from]));
}

/// Checks that a program with the state of `held` can continue with `plans`, as in [`crate::Program::rejoin`].
///
/// # Errors
/// They hold other tensors of state.
pub fn check_same_state(held: &Plans, plans: &Plans) -> Result<(), DeviceError> {
    if held.state == plans.state {
        return Ok(());
    }
    let reason = "a program can only continue with plans of the same model and optimiser";
    Err(DeviceError::Unsupported(reason.into()))
}
