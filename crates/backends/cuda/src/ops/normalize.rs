//! From bytes of images to numbers: `kernels/image.cu`.

use enmasse_graph::ops::Normalize;
use enmasse_tensor::DType;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::{kernel, named, pass};
use crate::work::Argument::{F32, Read, U64, Write};
use crate::work::{Kernel, Span};

/// What the channels of images of 16 bits are a multiple of, where convolutions read them. The engines of cuDNN that use tensor cores
/// take so many together, and most copy images of 3 channels in each step.
pub(crate) const IMAGE_CHANNELS: usize = 8;

impl OnCuda for Normalize {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let dtype = o.activations();
        let [.., channels] = o.output_dimensions(0)?;
        let is_padded = channels == IMAGE_CHANNELS && dtype != DType::F32;
        if channels != self.mean.len() && !is_padded {
            return Err(o.unsupported());
        }
        Ok(computed([normalize(dtype, o.input(0), o.output(0), channels, &self.mean, &self.std)]))
    }
}

/// `(images / 255 - mean) / std` for each channel of `[pixels, 3]` bytes, and zeros up to so many channels. With one mean and std only
/// the first channel counts.
fn normalize(dtype: DType, images: Span, y: Span, channels: usize, mean: &[f32], std: &[f32]) -> Kernel {
    let elements = y.bytes / dtype.size();
    // The same line through two points.
    let of = |i: usize| match (mean.get(i), std.get(i)) {
        (Some(&mean), Some(&std)) => {
            let (mean, std) = (f64::from(mean), f64::from(std));
            [1.0 / (255.0 * std), -mean / std].map(|factor| F32(factor as f32))
        }
        _ => [F32(0.0); 2],
    };
    let [[scale0, shift0], [scale1, shift1], [scale2, shift2]] = [0, 1, 2].map(of);
    let name = match channels {
        1 => "normalize_grey",
        IMAGE_CHANNELS => "normalize_padded",
        _ => "normalize",
    };
    let factors = [scale0, scale1, scale2, shift0, shift1, shift2];
    let arguments = [&[Read(images), Write(y), U64(elements as u64)][..], &factors].concat();
    kernel(named(name, dtype), pass(elements, dtype), arguments)
}

#[cfg(test)]
#[path = "normalize_tests.rs"]
mod tests;
