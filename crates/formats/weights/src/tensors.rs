//! Tensors that a file is made of. A writer takes their values in pieces, so a model is never in memory twice.

use std::collections::HashSet;
use std::io;

use crate::NamedTensor;
use crate::named::{counter_name, is_counter};

/// Takes values, a piece at a time.
pub type Pieces<'a> = dyn FnMut(&[f32]) -> io::Result<()> + Send + 'a;

/// Takes bytes, a piece at a time.
pub type Bytes<'a> = dyn FnMut(&[u8]) -> io::Result<()> + Send + 'a;

/// The tensors of a file to be written, in its order.
pub trait Tensors {
    /// Number of tensors.
    fn count(&self) -> usize;

    /// The PyTorch name of a tensor.
    fn name(&self, index: usize) -> &str;

    /// Its dimensions, outermost first; none for a scalar.
    fn shape(&self, index: usize) -> &[usize];

    /// Number of its values.
    fn elements(&self, index: usize) -> usize;

    /// Passes its values to `to`, in PyTorch's order and piece by piece. Another call passes the same values.
    ///
    /// # Errors
    /// The first error of `to`, which gets no more then, or that of reading the values.
    fn for_pieces(&self, index: usize, to: &mut Pieces) -> io::Result<()>;

    /// [`Tensors::for_pieces`] as little-endian bytes.
    ///
    /// # Errors
    /// Those of [`Tensors::for_pieces`].
    fn for_bytes(&self, index: usize, to: &mut Bytes) -> io::Result<()> {
        self.for_pieces(index, &mut |values| {
            let mut bytes = [0; 4096];
            for chunk in values.chunks(bytes.len() / 4) {
                for (place, value) in bytes.chunks_exact_mut(4).zip(chunk) {
                    place.copy_from_slice(&value.to_le_bytes());
                }
                to(&bytes[..chunk.len() * 4])?;
            }
            Ok(())
        })
    }
}

impl<T: AsRef<[NamedTensor]> + ?Sized> Tensors for T {
    fn count(&self) -> usize {
        self.as_ref().len()
    }

    fn name(&self, index: usize) -> &str {
        &self.as_ref()[index].name
    }

    fn shape(&self, index: usize) -> &[usize] {
        &self.as_ref()[index].shape
    }

    fn elements(&self, index: usize) -> usize {
        self.as_ref()[index].values.len()
    }

    fn for_pieces(&self, index: usize, to: &mut Pieces) -> io::Result<()> {
        to(&self.as_ref()[index].values)
    }
}

/// The counters that PyTorch expects next to these tensors.
pub fn counter_names<T: Tensors + ?Sized>(tensors: &T) -> Vec<String> {
    (0..tensors.count()).filter_map(|index| counter_name(tensors.name(index))).collect()
}

/// Checks that tensors can be written: as many values as the shape has elements, unique names, and no counters, which
/// the writer adds.
///
/// # Errors
/// The first fault, in words.
pub fn check_tensors<T: Tensors + ?Sized>(tensors: &T) -> Result<(), String> {
    let mut names = HashSet::new();
    for index in 0..tensors.count() {
        let name = tensors.name(index);
        let shape = tensors.shape(index);
        let elements = tensors.elements(index);
        if shape.iter().product::<usize>() != elements {
            return Err(format!("tensor {name} of shape {shape:?} cannot have {elements} values"));
        }
        if !names.insert(name) || name == "__metadata__" || is_counter(name) {
            return Err(format!("the tensor name {name} is a duplicate or reserved"));
        }
    }
    Ok(())
}
