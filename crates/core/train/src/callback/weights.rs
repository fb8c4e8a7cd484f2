//! The tensors of the model in a callback's hands.

use enmasse_device::Program;
use enmasse_graph::Arena;

use crate::agreement::{fingerprint, held_by_all};
use crate::weights::{fill, read_chosen};
use crate::{NamedTensor, TrainError};

/// The tensors of a model between two steps, by PyTorch's names and in PyTorch's order: parameters, running statistics, averages
/// (`ema.` and a name) and the state of the optimiser (`optimizer.` and more). Evaluation uses averages if the run keeps any.
pub struct Weights<'c> {
    program: &'c mut dyn Program,
    /// The names of what was set, with a fingerprint of its values.
    written: &'c mut Vec<(String, u64)>,
}

impl<'c> Weights<'c> {
    pub(crate) fn new(program: &'c mut dyn Program, written: &'c mut Vec<(String, u64)>) -> Self {
        Weights { program, written }
    }

    /// The names of all tensors.
    pub fn names(&self) -> Vec<String> {
        let held = held_by_all(self.program);
        let state = self.program.plans().state.iter().filter(|tensor| held(tensor));
        state.map(|tensor| tensor.name.clone()).collect()
    }

    /// The names of the parameters among them.
    pub fn parameters(&self) -> Vec<String> {
        let parameters = self.program.plans().state.iter().filter(|tensor| tensor.slot.arena == Arena::Parameters);
        parameters.map(|tensor| tensor.name.clone()).collect()
    }

    /// A tensor. It is the same on all ranks.
    ///
    /// # Errors
    /// The model has no tensor with this name, or the device fails.
    pub fn read(&mut self, name: &str) -> Result<NamedTensor, TrainError> {
        let held = held_by_all(self.program);
        let found = read_chosen(self.program, &|tensor| tensor.name == name && held(tensor))?.pop();
        found.ok_or_else(|| TrainError::Weights(format!("the model has no tensor {name}")))
    }

    /// Sets a tensor. The checkpoint that follows has it. Every rank must set the same tensors, in the same order, to the same values:
    /// ranks compare what they have set before the next step and before the checkpoint, and a difference is an error that names it.
    ///
    /// # Errors
    /// The model has no tensor with this name, it has another number of elements, or the device fails.
    pub fn set(&mut self, name: &str, values: &[f32]) -> Result<(), TrainError> {
        let expected = self.read(name)?.values.len();
        if values.len() != expected {
            return Err(TrainError::Weights(format!("{name} has {expected} elements, not {}", values.len())));
        }
        fill(self.program, &|tensor| (tensor.name == name).then_some(values))?;
        self.written.push((name.to_owned(), fingerprint(values)));
        Ok(())
    }
}
