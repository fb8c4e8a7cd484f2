//! Tensors between programs and files: by name and by shape, and whatever does not match is an error that names it.

use std::path::Path;

use enmasse_device::{DeviceError, Program};
use enmasse_graph::StateTensor;
use enmasse_weights::{Matching, match_tensors};

use crate::{CheckpointError, NamedTensor, TrainError};

/// Whether a tensor is of the optimiser's state and no weight.
pub fn is_optimizer(name: &str) -> bool {
    name.starts_with("optimizer.")
}

/// Every state tensor of a program, in PyTorch's order and shapes.
pub fn read_tensors(program: &dyn Program) -> Result<Vec<NamedTensor>, DeviceError> {
    let state = &program.plans().state;
    state
        .iter()
        .map(|tensor| {
            let values = program.store(&tensor.name)?.into_iter().map(|value| value as f32).collect();
            Ok(NamedTensor { name: tensor.name.clone(), shape: torch_shape(tensor), values })
        })
        .collect()
}

/// Sets every state tensor of a program from `tensors`, whose order does not matter. Parameters and buffers must match one to
/// one; optimiser state is set where the program has it, and must then be complete unless none is given at all.
/// `origin` names the file in errors.
pub fn write_tensors(program: &mut dyn Program, tensors: &[NamedTensor], origin: &str) -> Result<(), TrainError> {
    let state = program.plans().state.clone();
    let model = program.plans().evaluate.model.clone();
    let refuse = |problem: String| {
        Err(TrainError::Weights(format!("{origin} does not fit the model {model}: {problem}; is it of another model?")))
    };
    if let Some(unexpected) =
        tensors.iter().find(|given| !is_optimizer(&given.name) && !state.iter().any(|own| own.name == given.name))
    {
        return refuse(format!("the model has no tensor {}", unexpected.name));
    }
    let has_optimizer = tensors.iter().any(|given| is_optimizer(&given.name));
    for own in state.iter().filter(|own| has_optimizer || !is_optimizer(&own.name)) {
        let Some(given) = tensors.iter().find(|given| given.name == own.name) else {
            return refuse(format!("it has no tensor {}", own.name));
        };
        if given.shape != torch_shape(own) {
            return refuse(format!("{} is {:?} there and {:?} here", own.name, given.shape, torch_shape(own)));
        }
        let values: Vec<f64> = given.values.iter().map(|&value| f64::from(value)).collect();
        program.load(&own.name, &values)?;
    }
    Ok(())
}

/// Sets those parameters and running statistics of a program that a file of any format has by name and shape; what it has
/// not stays as it is. A file of which nothing fits is an error.
pub fn load_pretrained(program: &mut dyn Program, path: &Path) -> Result<Matching, TrainError> {
    let mut file = enmasse_weights::read(path).map_err(CheckpointError::from)?;
    file.tensors.retain(|tensor| !is_optimizer(&tensor.name));
    let state = program.plans().state.iter().filter(|own| !is_optimizer(&own.name));
    let model: Vec<_> = state.map(|own| (own.name.clone(), torch_shape(own))).collect();
    let matching = match_tensors(&model, &file);
    if matching.loaded.is_empty() {
        let name = &program.plans().evaluate.model;
        let first = |name: Option<&String>| name.map_or_else(|| "none".to_owned(), String::clone);
        return Err(TrainError::Weights(format!(
            "{} has no tensor that fits the model {name}: the first there is {}, the first here is {}; is it of another model?",
            path.display(),
            first(file.tensors.first().map(|tensor| &tensor.name)),
            first(model.first().map(|(name, _)| name)),
        )));
    }
    for &(own, given) in &matching.loaded {
        let values: Vec<f64> = file.tensors[given].values.iter().map(|&value| f64::from(value)).collect();
        program.load(&model[own].0, &values)?;
    }
    Ok(matching)
}

fn torch_shape(tensor: &StateTensor) -> Vec<usize> {
    tensor.layout.torch_shape(&tensor.shape).to_vec()
}
