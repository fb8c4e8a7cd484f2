//! Convolution as matmuls over gathered pixels, or between Winograd's transforms. Groups of few
//! channels, whose matmuls are too small, are loops over pixels.
//!
//! Forward, the gradient of the input, and linear layers are one matmul ([`Gather`]): rows are
//! pixels of the result, the depth runs over (tap, channel), and B is the packed weights. The
//! gradient of the weights ([`WeightGradient`]) has rows (tap, channel), and its depth runs over
//! pixels. [`winograd`] does all three for 3x3 taps of stride 1 with a quarter of the
//! multiplications. [`grouped`] takes the groups that lie within a vector, which includes depthwise
//! convolutions. In evaluation, and before the trained layers, those next to a depthwise layer are
//! computed with it, a strip of rows at a time ([`Strips`]).
//!
//! Only `prepare` decides which algorithm a layer gets. `plan print` names the choice of each
//! layer, and `bench step --profile` its time.

mod blend;
mod epilogue;
mod gather;
mod geometry;
pub(crate) mod grouped;
mod source;
mod strips;
mod weight_gradient;
pub(crate) mod winograd;

#[cfg(test)]
mod tests;

pub(crate) use epilogue::Epilogue;
pub(crate) use gather::{Gather, Start, has_whole_pieces, pairs};
pub(crate) use geometry::ConvShape;
pub(crate) use grouped::{Grouped, GroupedGradient};
pub(crate) use source::{Load, Normalized, Normalizer, Source, SourceNorm, Stored, with_load};
pub(crate) use strips::{Link, Strips};
pub(crate) use weight_gradient::WeightGradient;
pub(crate) use winograd::{Winograd, WinogradGradient};
