//! From images to rows of features, in PyTorch's order: `kernels/layout.cu`. Activations have channels last, PyTorch flattens them
//! with channels first.

use enmasse_graph::ops::{Flatten, FlattenBackward};
use enmasse_tensor::DType;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::{BLOCKS, elementwise, kernel, named};
use crate::work::Argument::{Read, U32, Write};
use crate::work::{Kernel, Span};

impl OnCuda for Flatten {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([flatten(o.activations(), o.input_dimensions(0)?, o.input(0), o.output(0))]))
    }
}

impl OnCuda for FlattenBackward {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([flatten_backward(o.activations(), o.output_dimensions(0)?, o.input(0), o.output(0))]))
    }
}

/// A feature map `[N,H,W,C]` of this type to a matrix `[N, C*H*W]` of f32.
fn flatten(dtype: DType, shape: [usize; 4], x: Span, y: Span) -> Kernel {
    let [samples, height, width, channels] = shape;
    transpose("flatten", dtype, [samples, height * width, channels], x, y)
        .unwrap_or_else(|| elementwise::cast(dtype, x, DType::F32, y))
}

/// A matrix `[N, C*H*W]` of f32 to a feature map `[N,H,W,C]` of this type.
fn flatten_backward(dtype: DType, shape: [usize; 4], dy: Span, dx: Span) -> Kernel {
    let [samples, height, width, channels] = shape;
    transpose("flatten_backward", dtype, [samples, channels, height * width], dy, dx)
        .unwrap_or_else(|| elementwise::cast(DType::F32, dy, dtype, dx))
}

/// Rows and columns of a tile; `TILE` in layout.cu.
const TILE: usize = 32;

/// `[samples, rows, columns]` to `[samples, columns, rows]`. `None` if both have the same order.
fn transpose(name: &str, dtype: DType, size: [usize; 3], from: Span, to: Span) -> Option<Kernel> {
    let [samples, rows, columns] = size;
    if rows == 1 || columns == 1 {
        return None;
    }
    let tiles = samples * rows.div_ceil(TILE) * columns.div_ceil(TILE);
    let operands = [Read(from), Write(to)];
    let numbers = size.map(|number| U32(number as u32));
    Some(kernel(named(name, dtype), [tiles.clamp(1, BLOCKS) as u32, 1, 1], [&operands[..], &numbers].concat()))
}

#[cfg(test)]
#[path = "flatten_tests.rs"]
mod tests;
