//! Moves tensors between programs and files, by name and shape. A mismatch is an error that names the tensor.

mod evaluated;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::OnceLock;

use enmasse_device::{DeviceError, Program, Which};
use enmasse_graph::{AVERAGE_PREFIX, Arena, LOSS_SCALE_PREFIX, RESIDUAL_PREFIX, StateTensor};
use enmasse_wording::shell_word;

use crate::parts::elsewhere;
use crate::{NamedTensor, RunPaths, TrainError};
pub use evaluated::{EvaluatedWeights, is_optimizer};

/// The parameter that a tensor of the optimiser's state, such as `optimizer.exp_avg.fc.weight`, belongs to.
fn optimized(name: &str) -> Option<&str> {
    name.strip_prefix("optimizer.")?.split_once('.').map(|(_, parameter)| parameter)
}

/// Whether all values are finite.
pub(crate) fn is_finite(values: &[f32]) -> bool {
    // Without an early end, this is one pass of vector instructions.
    values.iter().fold(0, |bad, value| bad | u32::from(!value.is_finite())) == 0
}

/// The first state tensor of a program with a value that is not finite.
pub(crate) fn first_non_finite(program: &mut dyn Program) -> Result<Option<String>, DeviceError> {
    let found = map_state(program, &|_| true, &|tensor, values| (!is_finite(values)).then(|| tensor.name.clone()))?;
    Ok(found.into_iter().flatten().next())
}

/// Applies `read` to each chosen state tensor, in the order of [`enmasse_graph::Plans::state`].
pub fn map_state<T: Send + Sync>(
    program: &mut dyn Program,
    which: &Which,
    read: &(dyn Fn(&StateTensor, &[f32]) -> T + Sync),
) -> Result<Vec<T>, DeviceError> {
    let results: Vec<OnceLock<T>> = program.plans().state.iter().map(|_| OnceLock::new()).collect();
    program.read_state(which, &|number, tensor, values| {
        results[number].get_or_init(|| read(tensor, values));
    })?;
    Ok(results.into_iter().filter_map(OnceLock::into_inner).collect())
}

/// Every state tensor of a program, in PyTorch's order and shapes.
///
/// # Errors
/// The device or the group fails.
pub fn read_tensors(program: &mut dyn Program) -> Result<Vec<NamedTensor>, DeviceError> {
    read_chosen(program, &|_| true)
}

/// The chosen state tensors of a program, in PyTorch's order and shapes.
pub(crate) fn read_chosen(program: &mut dyn Program, which: &Which) -> Result<Vec<NamedTensor>, DeviceError> {
    map_state(program, which, &|tensor, stored| {
        let mut values = vec![0.0; stored.len()];
        tensor.layout.for_each(&tensor.shape, |from, to| values[to] = stored[from]);
        NamedTensor { name: tensor.name.clone(), shape: torch_shape(tensor), values }
    })
}

/// Sets every state tensor of a program, but a teacher's and what compressing gradients has lost, from the tensors with these names and shapes, in any order; `read` returns the
/// values of one by its index. Parameters and buffers must match one to one. Optimiser state is set if the program has it,
/// and must then be complete unless none is given at all. The state of loss scaling may be missing, if the run had another
/// precision: it then keeps its initial values. `origin` names the file in errors.
pub fn write_tensors<'a>(
    program: &mut dyn Program,
    tensors: &[(&str, &[usize])],
    read: &dyn Fn(usize) -> Result<Cow<'a, [f32]>, TrainError>,
    origin: &str,
) -> Result<(), TrainError> {
    let mut state = program.plans().state.clone();
    state.retain(|own| !matches!(own.slot.arena, Arena::Teacher | Arena::Residuals));
    // What other ranks have is only checked here.
    let others: Vec<StateTensor> = elsewhere(program.plans()).cloned().collect();
    state.extend(others);
    let model = program.plans().evaluate.model.clone();
    let refuse = |problem: String| {
        Err(TrainError::Weights(format!("{origin} does not fit the model {model}: {problem}; is it of another model?")))
    };
    if let Some(unexpected) =
        tensors.iter().find(|(name, _)| !is_optimizer(name) && !state.iter().any(|own| own.name == *name))
    {
        return refuse(format!("the model has no tensor {}", unexpected.0));
    }
    let mut found = Vec::new();
    let is_loss_scale = |name: &str| name.starts_with(LOSS_SCALE_PREFIX);
    let is_of_optimizer = |name: &str| is_optimizer(name) && !is_loss_scale(name) && !name.starts_with(RESIDUAL_PREFIX);
    let has_optimizer = tensors.iter().any(|(name, _)| is_of_optimizer(name));
    for own in state.iter().filter(|own| has_optimizer || !is_optimizer(&own.name) || is_loss_scale(&own.name)) {
        let Some(given) = tensors.iter().position(|(name, _)| *name == own.name) else {
            if is_loss_scale(&own.name) {
                continue;
            }
            return match optimized(&own.name) {
                // Only a run that is resumed has an optimiser.
                Some(parameter) => Err(TrainError::Resume(format!(
                    "{origin} has no optimiser state for {parameter}, because `optimizer`, `freeze` or `freeze_layers` has \
                     changed: resume it as it was, or begin a new run from its weights with `weights = {}`",
                    shell_word(RunPaths::new(origin).last_checkpoint())
                ))),
                None => refuse(format!("it has no tensor {}", own.name)),
            };
        };
        let shape = tensors[given].1;
        if shape != torch_shape(own) {
            return refuse(format!("{} is {shape:?} there and {:?} here", own.name, torch_shape(own)));
        }
        found.push((own, given));
    }
    // One at a time: a large model is not in memory twice.
    for (own, given) in found {
        if program.plans().find(&own.name).is_none() {
            continue;
        }
        let values = read(given)?;
        fill(program, &|tensor| (tensor.name == own.name).then_some(&*values))?;
    }
    Ok(())
}

/// Sets the named state tensors to values in PyTorch's order, one for each element. An average that is not named starts
/// with the value of the tensor that it averages.
pub(crate) fn load_all(program: &mut dyn Program, found: &HashMap<&str, &[f32]>) -> Result<(), DeviceError> {
    fill(program, &|tensor| {
        let of = || tensor.name.strip_prefix(AVERAGE_PREFIX).filter(|_| tensor.slot.arena == Arena::Average);
        found.get(tensor.name.as_str()).or_else(|| found.get(of()?)).copied()
    })
}

/// Sets the state tensors for which there are values, in PyTorch's order.
pub(crate) fn fill<'a>(
    program: &mut dyn Program,
    given: &(dyn Fn(&StateTensor) -> Option<&'a [f32]> + Sync),
) -> Result<(), DeviceError> {
    program.fill_state(&|tensor| given(tensor).is_some(), &|tensor, first, values| {
        let Some(given) = given(tensor) else { return };
        tensor.layout.for_each_run(&tensor.shape, first..first + values.len(), |stored, torch, stride| {
            let run = &mut values[stored.start - first..stored.end - first];
            run.iter_mut().enumerate().for_each(|(j, value)| *value = given[torch + j * stride]);
        });
    })
}

/// The shape of a state tensor in files.
pub(crate) fn torch_shape(tensor: &StateTensor) -> Vec<usize> {
    tensor.layout.torch_shape(&tensor.shape).to_vec()
}
