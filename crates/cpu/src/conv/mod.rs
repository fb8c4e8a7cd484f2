//! Convolution as matrix products over gathered pixels.
//!
//! Forward, the gradient of the input, and linear layers are one product ([`Gather`]): rows are pixels of the result,
//! the depth runs over (tap, channel), B is the packed weights. The gradient of the weights ([`WeightGradient`]) has
//! rows (tap, channel) and its depth runs over pixels. Both are made in `prepare` and nowhere else: there another
//! algorithm for some layers would be chosen.

mod gather;
mod geometry;
mod weight_gradient;

#[cfg(test)]
mod tests;

pub(crate) use gather::{Gather, Start};
pub(crate) use geometry::ConvShape;
pub(crate) use weight_gradient::WeightGradient;
