//! Storages, and tensors as views of them, with offset and strides, since several tensors may share one storage.

use std::collections::HashMap;

use crate::WeightsError;
use crate::element::{ByteOrder, ElementType};
use crate::named::Collector;
use crate::source::Source;

/// A tensor as a view of a storage.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TensorView {
    pub storage: String,
    pub element: ElementType,
    /// Number of storage elements before the tensor's first.
    pub offset: u64,
    pub shape: Vec<usize>,
    /// Number of storage elements from one to the next, along each dimension.
    pub stride: Vec<u64>,
}

/// The place of each storage in the file.
pub(super) struct Storages {
    pub order: ByteOrder,
    /// Offset and length in bytes, by key.
    pub places: HashMap<String, (u64, u64)>,
}

impl TensorView {
    /// The number of elements of the tensor, and of storage elements from its first to its last.
    fn extent(&self) -> Option<(usize, u64)> {
        let count = self.shape.iter().try_fold(1usize, |product, &len| product.checked_mul(len))?;
        if count == 0 {
            return Some((0, 0));
        }
        let last = self
            .shape
            .iter()
            .zip(&self.stride)
            .try_fold(0u64, |sum, (&len, &stride)| sum.checked_add((len as u64 - 1).checked_mul(stride)?))?;
        Some((count, last.checked_add(1)?))
    }

    /// Whether the elements are contiguous, with the last dimension fastest. Strides of dimensions with one element do
    /// not matter.
    fn is_dense(&self) -> bool {
        let mut expected = 1;
        self.shape.iter().zip(&self.stride).rev().all(|(&len, &stride)| {
            let fits = len == 1 || stride == expected;
            expected *= len as u64;
            fits
        })
    }
}

impl Storages {
    /// The elements of a view, in its own order.
    pub fn values(
        &self,
        source: &Source,
        name: &str,
        view: &TensorView,
        collector: &mut Collector,
    ) -> Result<Vec<f32>, WeightsError> {
        let beyond = || source.damaged(&format!("tensor {name:?} lies beyond its storage"));
        let (count, extent) = view.extent().ok_or_else(beyond)?;
        if count == 0 {
            return Ok(Vec::new());
        }
        let missing = || source.damaged(&format!("the storage of tensor {name:?} is missing"));
        let &(start, len) = self.places.get(&view.storage).ok_or_else(missing)?;
        let size = view.element.size() as u64;
        if view.offset.checked_add(extent).is_none_or(|end| end > len / size) {
            return Err(beyond());
        }
        let offset = start + view.offset * size;
        let mut values = Vec::new();
        if view.is_dense() {
            collector.take(name, count as u64)?;
            source.decode(offset, view.element, self.order, count, &mut values)?;
            return Ok(values);
        }
        // The whole span of the view is read, then its elements are taken in order; both need memory.
        collector.take(name, (count as u64).saturating_add(extent))?;
        let mut spanned = Vec::new();
        source.decode(offset, view.element, self.order, extent as usize, &mut spanned)?;
        source.reserve(&mut values, count)?;
        let mut index = vec![0; view.shape.len()];
        for _ in 0..count {
            let at: u64 = index.iter().zip(&view.stride).map(|(&index, stride)| index as u64 * stride).sum();
            values.push(spanned[at as usize]);
            for (index, &len) in index.iter_mut().zip(&view.shape).rev() {
                *index += 1;
                if *index < len {
                    break;
                }
                *index = 0;
            }
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A storage of 0, 1, … 11 after two unrelated bytes.
    fn values(offset: u64, shape: &[usize], stride: &[u64]) -> Result<Vec<f32>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let bytes = (0..12u16).flat_map(|value| value.to_be_bytes());
        std::fs::write(&path, [0xFF, 0xFF].into_iter().chain(bytes).collect::<Vec<_>>()).unwrap();
        let source = Source::open(&path).unwrap();
        let storages = Storages { order: ByteOrder::Big, places: HashMap::from([("0".to_owned(), (2, 24))]) };
        let (shape, stride) = (shape.to_vec(), stride.to_vec());
        let view = TensorView { storage: "0".to_owned(), element: ElementType::I16, offset, shape, stride };
        let found = storages.values(&source, "w", &view, &mut Collector::new(&source));
        found.map_err(|error| error.to_string().replace(&format!("{}: ", path.display()), ""))
    }

    #[test]
    fn views_of_a_storage() {
        let check = |offset, shape: &[usize], stride: &[u64], expected: &[f32]| {
            assert_eq!(values(offset, shape, stride), Ok(expected.to_vec()), "{offset} {shape:?} {stride:?}");
        };
        check(0, &[12], &[1], &(0..12).map(|value| value as f32).collect::<Vec<_>>());
        check(5, &[], &[], &[5.0]);
        check(2, &[2, 2], &[2, 1], &[2.0, 3.0, 4.0, 5.0]);
        check(0, &[3, 2], &[1, 3], &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        check(1, &[2, 1, 3], &[6, 99, 2], &[1.0, 3.0, 5.0, 7.0, 9.0, 11.0]);
        check(7, &[2, 2], &[0, 0], &[7.0; 4]);
        check(11, &[1, 1], &[1 << 60, 7], &[11.0]);
        check(0, &[0, 5], &[5, 1], &[]);
        check(99, &[3, 0], &[1, 1], &[]);
    }

    #[test]
    fn views_outside_their_storage() {
        let beyond = "is damaged: tensor \"w\" lies beyond its storage; fetch or save it again";
        let many = "its tensors, w among them, claim far more elements than it has bytes";
        let check = |offset, shape: &[usize], stride: &[u64], expected: &str| {
            assert_eq!(values(offset, shape, stride), Err(expected.to_owned()), "{offset} {shape:?} {stride:?}");
        };
        check(12, &[], &[], beyond);
        check(1, &[12], &[1], beyond);
        check(0, &[2], &[12], beyond);
        check(u64::MAX, &[2], &[1], beyond);
        check(0, &[usize::MAX, 3], &[1, 1], beyond);
        check(0, &[usize::MAX], &[u64::MAX], beyond);
        check(0, &[1 << 40], &[0], many);
        check(0, &[1 << 10, 1 << 10], &[0, 0], many);
    }
}
