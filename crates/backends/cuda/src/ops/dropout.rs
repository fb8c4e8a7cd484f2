//! Dropout and drop path, whose random numbers depend on the sample, not on its place in a batch: `kernels/dropout.cu`.

use enmasse_graph::ops::Dropout;
use enmasse_tensor::DType;
use enmasse_tensor::random::key;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::operands::STEP;
use crate::kernels::{blocks, kernel, named};
use crate::work::Argument::{F32, Read, U32, U64, Write};
use crate::work::{Kernel, Span};

impl OnCuda for Dropout {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let key = key(self.seed, &format!("dropout {}", self.layer));
        Ok(computed([dropout(o.activations(), key, self, o.input(0), o.input(1), o.output(0))]))
    }
}

/// Each element, or sample, times `1 / (1 - probability)` or 0, by the random stream of `key`, the step's epoch and the
/// sample's index; `y` may lie over `x`. `indices` are i64, one for each sample.
fn dropout(dtype: DType, key: [u32; 2], layer: &Dropout, x: Span, indices: Span, y: Span) -> Kernel {
    let samples = indices.bytes / DType::I64.size();
    let elements = y.bytes / dtype.size() / samples.max(1);
    let groups = elements.div_ceil(4) * samples;
    let factor = (1.0 / (1.0 - f64::from(layer.probability))) as f32;
    let operands = [Read(x), Read(indices), STEP, Write(y), U64(elements as u64), U64(groups as u64)];
    let numbers = [U32(key[0]), U32(key[1]), F32(layer.probability), F32(factor), U32(u32::from(layer.per_sample))];
    kernel(named("dropout", dtype), blocks(groups), [&operands[..], &numbers].concat())
}

#[cfg(test)]
#[path = "dropout_tests.rs"]
mod tests;
