//! Tensors by name, and names that are not weights: counters, and prefixes of wrappers.

use std::collections::HashSet;

use crate::WeightsError;
use crate::source::Source;

/// PyTorch's batch norm counts its updates next to its statistics. The count has no use here: it is added when a file
/// is written, and left out when one is read.
const COUNTER: &str = "num_batches_tracked";
/// The prefixes that `DataParallel`, `DistributedDataParallel` and `torch.compile` add to each name.
const WRAPPERS: [&str; 2] = ["module.", "_orig_mod."];
/// Number of elements that any file may have, however small it is.
const ELEMENTS: u64 = 1 << 20;
/// Longest accepted name.
const MAX_NAME: usize = 1024;

/// A tensor by its PyTorch name, its elements in PyTorch's order.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    /// Such as `layer1.0.conv1.weight`.
    pub name: String,
    /// Dimensions, outermost first; none for a scalar.
    pub shape: Vec<usize>,
    /// One value per element of the shape.
    pub values: Vec<f32>,
}

/// The counter of `bn1.running_mean` is `bn1.num_batches_tracked`.
pub(crate) fn counter_name(name: &str) -> Option<String> {
    let layer = name.strip_suffix("running_mean")?;
    (layer.is_empty() || layer.ends_with('.')).then(|| format!("{layer}{COUNTER}"))
}

pub(crate) fn is_counter(name: &str) -> bool {
    name.strip_suffix(COUNTER).is_some_and(|layer| layer.is_empty() || layer.ends_with('.'))
}

/// The tensors read so far, and how much memory further ones may take.
pub(crate) struct Collector<'a> {
    source: &'a Source,
    left: u64,
    tensors: Vec<NamedTensor>,
}

impl<'a> Collector<'a> {
    /// Allows as many elements as the file has bytes: for a file of f32, every element four times over.
    pub fn new(source: &'a Source) -> Self {
        Collector { source, left: source.len().max(ELEMENTS), tensors: Vec::new() }
    }

    /// Reserves memory for `elements` more, of a tensor of this name.
    pub fn take(&mut self, name: &str, elements: u64) -> Result<(), WeightsError> {
        self.left = self.left.checked_sub(elements).ok_or_else(|| {
            self.source.refuse(format!("its tensors, {name} among them, claim far more elements than it has bytes"))
        })?;
        Ok(())
    }

    pub fn push(&mut self, name: String, shape: Vec<usize>, values: Vec<f32>) {
        self.tensors.push(NamedTensor { name, shape, values });
    }

    /// The prefixes of wrappers, and the tensors without them.
    pub fn finish(mut self) -> Result<(String, Vec<NamedTensor>), WeightsError> {
        if self.tensors.is_empty() {
            return Err(self.source.refuse("holds no weights"));
        }
        let mut wrappers = String::new();
        while let Some(wrapper) =
            WRAPPERS.iter().find(|wrapper| self.tensors.iter().all(|tensor| tensor.name.starts_with(**wrapper)))
        {
            self.tensors.iter_mut().for_each(|tensor| drop(tensor.name.drain(..wrapper.len())));
            wrappers.push_str(wrapper);
        }
        let mut names = HashSet::new();
        for NamedTensor { name, .. } in &self.tensors {
            if name.len() > MAX_NAME || name.is_empty() || name.chars().any(char::is_control) {
                let shown: String = name.chars().take(60).collect();
                return Err(self.source.refuse(format!("{shown:?} is not a valid tensor name")));
            }
            if !names.insert(name) {
                return Err(self.source.refuse(format!("holds two tensors named {name}")));
            }
        }
        Ok((wrappers, self.tensors))
    }
}
