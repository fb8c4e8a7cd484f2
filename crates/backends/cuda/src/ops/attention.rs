//! Attention in several heads, and its gradient: `kernels/attention.cu`.

use enmasse_graph::ValueId;
use enmasse_graph::ops::{Attention, AttentionBackward};
use enmasse_tensor::DType;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::CudaError;
use crate::kernels::operands::SCRATCH;
use crate::kernels::{BLOCKS, kernel, named};
use crate::work::Argument::{self, F32, Read, U32, U64, Write};
use crate::work::{Kernel, Span};

impl OnCuda for Attention {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let size = size(o, o.node.inputs[0], self.heads)?;
        Ok(computed([forward(size, o.activations(), o.input(0), o.output(0), o.output(1))]))
    }
}

impl OnCuda for AttentionBackward {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let size = size(o, o.node.inputs[1], self.heads)?;
        let [dy, qkv, y, log_sum_exp] = [0, 1, 2, 3].map(|i| o.input(i));
        Ok(computed(backward(size, o.activations(), &Gradient { dy, qkv, y, log_sum_exp }, o.output(0))))
    }
}

/// The most channels of a head; `HEAD` in attention.cu.
const MAX_HEAD: usize = 128;

/// Queries or keys of a tile; `TILE` in attention.cu.
const TILE: usize = 16;

/// The sizes of an attention.
#[derive(Clone, Copy, Debug)]
struct Size {
    batch: usize,
    tokens: usize,
    heads: usize,
    /// Channels of a head.
    head: usize,
}

impl Size {
    fn tiles(self) -> usize {
        self.batch * self.heads * self.tokens.div_ceil(TILE)
    }

    fn arguments(self) -> [Argument; 5] {
        let [tokens, heads, head] = [self.tokens, self.heads, self.head].map(|number| U32(number as u32));
        [U64(self.tiles() as u64), tokens, heads, head, F32(1.0 / (self.head as f32).sqrt())]
    }

    /// A kernel whose blocks take one tile at a time.
    fn kernel(self, name: &str, dtype: DType, operands: &[Argument]) -> Kernel {
        let grid = [self.tiles().clamp(1, BLOCKS) as u32, 1, 1];
        kernel(named(name, dtype), grid, [operands, &self.arguments()].concat())
    }
}

fn size(o: &Operands, qkv: ValueId, heads: usize) -> Result<Size, CudaError> {
    match o.plan.shape(qkv)[..] {
        [batch, tokens, packed] if packed / 3 / heads <= MAX_HEAD => {
            Ok(Size { batch, tokens, heads, head: packed / 3 / heads })
        }
        _ => Err(o.unsupported()),
    }
}

fn forward(size: Size, dtype: DType, qkv: Span, y: Span, log_sum_exp: Span) -> Kernel {
    size.kernel("attention", dtype, &[Read(qkv), Write(y), Write(log_sum_exp)])
}

/// The operands of an attention's gradient.
struct Gradient {
    dy: Span,
    qkv: Span,
    y: Span,
    /// One for each sample, head and token.
    log_sum_exp: Span,
}

/// The gradient of queries, and then that of keys and values.
fn backward(size: Size, dtype: DType, gradient: &Gradient, dqkv: Span) -> Vec<Kernel> {
    let &Gradient { dy, qkv, y, log_sum_exp } = gradient;
    let means = Span { place: SCRATCH, bytes: log_sum_exp.bytes };
    let of_queries = [Read(dy), Read(qkv), Read(y), Read(log_sum_exp), Write(dqkv), Write(means)];
    let of_keys = [Read(dy), Read(qkv), Read(log_sum_exp), Read(means), Argument::Change(dqkv)];
    vec![
        size.kernel("attention_backward_queries", dtype, &of_queries),
        size.kernel("attention_backward_keys", dtype, &of_keys),
    ]
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;
