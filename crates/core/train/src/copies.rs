//! Whole copies on rank 0 of state tensors that its own program does not hold whole, since the model is cut over ranks.
//!
//! Rank 0 writes the files of a run. Before it does, all ranks call `Program::gather_state`, which leaves the copies there, in memory of
//! the machine, until the next step of training. What rank 0 reads from a file goes the other way: it sets copies, and broadcasts
//! them. So files do not depend on the cut.

use std::collections::HashMap;

use enmasse_comm::Group;
use enmasse_device::{DeviceError, Program, Read, Which, from_torch, to_torch};
use enmasse_graph::{Plans, StateTensor};

/// See the module's documentation.
pub(crate) struct Copies {
    /// Whether this rank is the one that keeps them.
    keeps: bool,
    /// What a tensor without a copy is, after its name.
    cut: &'static str,
    /// In stored order, by name.
    values: HashMap<String, Vec<f32>>,
}

impl Copies {
    /// None yet, on a rank of `group`. `cut` says what is wrong with a tensor that is asked for without a copy.
    pub fn new(group: &Group, cut: &'static str) -> Self {
        Copies { keeps: group.is_main(), cut, values: HashMap::new() }
    }

    /// Whether this rank keeps copies of what is set.
    pub fn are_kept(&self) -> bool {
        self.keeps
    }

    /// Keeps a copy, on any rank.
    pub fn insert(&mut self, name: &str, values: Vec<f32>) {
        self.values.insert(name.to_owned(), values);
    }

    /// Takes the memory of a copy, for new values.
    pub fn take(&mut self, name: &str) -> Vec<f32> {
        self.values.remove(name).unwrap_or_default()
    }

    /// Drops all of them: after a step of training they are no longer true.
    pub fn clear(&mut self) {
        self.values.clear();
    }

    /// A copy in the order of PyTorch.
    pub fn store(&self, tensor: &StateTensor) -> Result<Vec<f64>, DeviceError> {
        let stored = self.values.get(&tensor.name).ok_or_else(|| self.missing(tensor))?;
        Ok(to_torch(stored, &tensor.shape, tensor.layout))
    }

    /// Reads a copy, if this rank has one. Where copies are kept, to have none is an error.
    pub fn read(&self, number: usize, tensor: &StateTensor, read: &Read) -> Result<(), DeviceError> {
        match self.values.get(&tensor.name) {
            Some(values) => read(number, tensor, values),
            None if self.keeps => return Err(self.missing(tensor)),
            None => {}
        }
        Ok(())
    }

    fn missing(&self, tensor: &StateTensor) -> DeviceError {
        DeviceError::Unsupported(format!("{} {}, and has not been gathered", tensor.name, self.cut))
    }
}

/// Values in the order of PyTorch, in stored order.
pub(crate) fn stored(tensor: &StateTensor, values: &[f64]) -> Vec<f32> {
    let mut stored = vec![0.0; values.len()];
    from_torch(values, &tensor.shape, tensor.layout, |to, value| stored[to] = value as f32);
    stored
}

/// Reads what a rank's own program holds, as tensors of the whole model.
pub(crate) fn read_own(own: &mut dyn Program, whole: &Plans, which: &Which, read: &Read) -> Result<(), DeviceError> {
    let of_whole = whole.state.iter().enumerate().map(|(number, tensor)| (tensor.name.as_str(), (number, tensor)));
    let of_whole: HashMap<&str, (usize, &StateTensor)> = of_whole.collect();
    own.read_state(which, &|_, tensor, values| {
        if let Some((number, tensor)) = of_whole.get(tensor.name.as_str()) {
            read(*number, tensor, values);
        }
    })
}
