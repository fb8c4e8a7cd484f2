//! From images to rows of features, in PyTorch's order: `kernels/layout.cu`. Activations have channels last, PyTorch flattens them
//! with channels first.

use enmasse_graph::ops::{Flatten, FlattenBackward};
use enmasse_tensor::DType;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::{BLOCKS, elementwise, kernel};
use crate::sequence::Call;
use crate::work::Argument::{Read, U32, Write};
use crate::work::Span;

impl OnCuda for Flatten {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([flatten(types(o), o.input_dimensions(0)?, o.input(0), o.output(0))]))
    }
}

impl OnCuda for FlattenBackward {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([flatten_backward(types(o), o.output_dimensions(0)?, o.input(0), o.output(0))]))
    }
}

/// Of the operand and of the result.
fn types(o: &Operands) -> [DType; 2] {
    [o.node.inputs[0], o.node.outputs[0]].map(|id| o.plan.value(id).dtype)
}

/// A feature map `[N,H,W,C]` to a matrix `[N, C*H*W]`.
fn flatten(types: [DType; 2], shape: [usize; 4], x: Span, y: Span) -> Call {
    let [samples, height, width, channels] = shape;
    transpose(types, [samples, height * width, channels], x, y)
}

/// A matrix `[N, C*H*W]` to a feature map `[N,H,W,C]`.
fn flatten_backward(types: [DType; 2], shape: [usize; 4], dy: Span, dx: Span) -> Call {
    let [samples, height, width, channels] = shape;
    transpose(types, [samples, channels, height * width], dy, dx)
}

/// Rows and columns of a tile; `TILE` in layout.cu.
const TILE: usize = 32;

/// `[samples, rows, columns]` to `[samples, columns, rows]`.
fn transpose([read, written]: [DType; 2], size: [usize; 3], from: Span, to: Span) -> Call {
    let [samples, rows, columns] = size;
    if rows == 1 || columns == 1 {
        // Both have the same order.
        return if read == written {
            Call::Copy { from, to }
        } else {
            elementwise::cast(read, from, written, to).into()
        };
    }
    let tiles = samples * rows.div_ceil(TILE) * columns.div_ceil(TILE);
    let operands = [Read(from), Write(to)];
    let numbers = size.map(|number| U32(number as u32));
    let name = format!("transpose_{read}_to_{written}");
    kernel(name, [tiles.clamp(1, BLOCKS) as u32, 1, 1], [&operands[..], &numbers].concat()).into()
}

#[cfg(test)]
#[path = "flatten_tests.rs"]
mod tests;
