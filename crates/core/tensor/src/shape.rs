//! Dimensions of a tensor, outermost first.

use std::fmt;
use std::ops::Deref;

/// The dimensions of a tensor in memory order, outermost first. Activations are `[batch, height, width, channels]`.
///
/// ```
/// use enmasse_tensor::Shape;
/// let shape = Shape::from([2, 3, 4]);
/// assert_eq!((shape.elements(), shape.to_string().as_str()), (24, "[2,3,4]"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Shape(Vec<usize>);

impl Shape {
    /// Number of elements; 1 for a shape without dimensions, the largest number on overflow.
    pub fn elements(&self) -> usize {
        self.0.iter().fold(1, |product: usize, &dim| product.saturating_mul(dim))
    }

    /// The last dimension (the channels of an activation); 1 for a shape without dimensions.
    pub fn last(&self) -> usize {
        self.0.last().copied().unwrap_or(1)
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        Shape(dims)
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Shape(dims.to_vec())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, dim) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{dim}")?;
        }
        f.write_str("]")
    }
}
