//! The product of two tensors, element by element. The second may have one factor for each channel, of all samples or of each
//! one: `kernels/channels.cu`.

use enmasse_graph::ValueId;
use enmasse_graph::ops::{Multiply, MultiplyReduce};
use enmasse_tensor::DType;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::CudaError;
use crate::kernels::elementwise::multiply;
use crate::kernels::rows::{Reduction, Rows};
use crate::kernels::{blocks, kernel, named};
use crate::work::Argument::{Read, U32, U64, Write};
use crate::work::{Kernel, Span};

impl OnCuda for Multiply {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let [a, b] = [o.node.inputs[0], o.node.inputs[1]];
        if o.plan.shape(a) == o.plan.shape(b) {
            return Ok(computed([multiply(o.activations(), o.input(0), o.input(1), o.output(0))]));
        }
        let size = o.rows(0)?;
        Ok(computed([by_channel(size, o.input(0), factors(o, size, b)?, o.output(0))]))
    }
}

impl OnCuda for MultiplyReduce {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let size = o.rows(0)?;
        Ok(computed([reduce(size, o.input(0), o.input(1), factors(o, size, o.node.outputs[0])?)]))
    }
}

/// The factors that a value holds.
fn factors(o: &Operands, size: Rows, id: ValueId) -> Result<Factors, CudaError> {
    let groups = o.plan.shape(id).elements() / size.channels.max(1);
    match groups > 0 && size.rows.is_multiple_of(groups) {
        true => Ok(Factors { span: o.span(id), dtype: o.plan.value(id).dtype, groups }),
        false => Err(o.unsupported()),
    }
}

/// The factors of `groups` equal parts of the rows, `[groups, channels]`.
#[derive(Clone, Copy)]
struct Factors {
    span: Span,
    dtype: DType,
    groups: usize,
}

/// `c = a * b`; `c` may lie over `a`.
fn by_channel(size: Rows, a: Span, b: Factors, c: Span) -> Kernel {
    let elements = size.rows * size.channels;
    let group = elements / b.groups.max(1);
    let sizes = [U64(elements as u64), U64(group as u64), U32(size.channels as u32)];
    let arguments = [&[Read(a), Read(b.span), Write(c)][..], &sizes].concat();
    kernel(format!("multiply_channels_{}_{}", size.dtype, b.dtype), blocks(elements), arguments)
}

/// The gradient of the factors: sums of `dy * a`.
fn reduce(size: Rows, dy: Span, a: Span, db: Factors) -> Kernel {
    let operands = [Read(dy), Read(a)];
    if db.groups == 1 && db.dtype == DType::F32 {
        return Reduction::new(size).kernel(named("multiply_reduce", size.dtype), &operands, &[Write(db.span)], 1);
    }
    let rows = size.rows / db.groups.max(1);
    let arguments = [&operands[..], &[Write(db.span), U64(rows as u64), U32(size.channels as u32)]].concat();
    let name = format!("multiply_reduce_groups_{}_{}", size.dtype, db.dtype);
    kernel(name, [size.channels.div_ceil(COLUMNS) as u32, db.groups as u32, 1], arguments)
}

/// Channels of a block that sums over the rows of a group; `COLUMNS` in channels.cu.
const COLUMNS: usize = 32;

#[cfg(test)]
#[path = "multiply_tests.rs"]
mod tests;
