//! From bytes of images to numbers: `kernels/image.cu`.

use enmasse_graph::ops::Normalize;
use enmasse_tensor::DType;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::{kernel, named, pass};
use crate::work::Argument::{F32, Read, U64, Write};
use crate::work::{Kernel, Span};

impl OnCuda for Normalize {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([normalize(o.activations(), o.input(0), o.output(0), &self.mean, &self.std)]))
    }
}

/// `(images / 255 - mean) / std` for each channel of `[pixels, 3]` bytes. With one mean and std the result is
/// `[pixels, 1]`, from the first channel.
fn normalize(dtype: DType, images: Span, y: Span, mean: &[f32], std: &[f32]) -> Kernel {
    let elements = y.bytes / dtype.size();
    // The same line through two points; a single channel's factors stand for all.
    let of = |i: usize| {
        let i = i.min(mean.len() - 1);
        let (mean, std) = (f64::from(mean[i]), f64::from(std[i]));
        [1.0 / (255.0 * std), -mean / std].map(|factor| F32(factor as f32))
    };
    let [[scale0, shift0], [scale1, shift1], [scale2, shift2]] = [0, 1, 2].map(of);
    let name = if mean.len() == 1 { "normalize_grey" } else { "normalize" };
    let factors = [scale0, scale1, scale2, shift0, shift1, shift2];
    let arguments = [&[Read(images), Write(y), U64(elements as u64)][..], &factors].concat();
    kernel(named(name, dtype), pass(elements, dtype), arguments)
}

#[cfg(test)]
#[path = "normalize_tests.rs"]
mod tests;
