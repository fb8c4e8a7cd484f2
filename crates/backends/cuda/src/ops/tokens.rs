//! Tokens that all samples share, and some of the tokens of each sample: `kernels/tokens.cu`.

use enmasse_graph::ops::{AddTokens, PrependTokens, SelectTokens, SelectTokensBackward, SumTokens};
use enmasse_tensor::DType;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::{blocks, kernel, named};
use crate::work::Argument::{self, Read, U64, Write};
use crate::work::{Kernel, Span};

impl OnCuda for AddTokens {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([of(o).add(o.input(0), o.input(1), o.output(0))]))
    }
}

impl OnCuda for PrependTokens {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([of(o).prepend(o.input(0), o.input(1), o.output(0))]))
    }
}

impl OnCuda for SumTokens {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([of(o).sum(o.input(0), o.output(0))]))
    }
}

impl OnCuda for SelectTokens {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([of(o).select(self.first * channels(o), o.input(0), o.output(0))]))
    }
}

impl OnCuda for SelectTokensBackward {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([of(o).select_backward(self.first * channels(o), o.input(0), o.output(0))]))
    }
}

fn of(o: &Operands) -> Samples {
    Samples { batch: o.plan.shape(o.node.inputs[0])[0], dtype: o.activations() }
}

fn channels(o: &Operands) -> usize {
    o.plan.shape(o.node.inputs[0]).last()
}

/// Values of which each sample has an equal piece.
#[derive(Clone, Copy)]
struct Samples {
    batch: usize,
    dtype: DType,
}

impl Samples {
    fn elements(self, of: Span) -> usize {
        of.bytes / self.dtype.size()
    }

    fn piece(self, of: Span) -> usize {
        self.elements(of) / self.batch.max(1)
    }

    /// A kernel with a thread for each of `elements`.
    fn kernel(self, name: &str, elements: usize, operands: &[Argument], numbers: &[usize]) -> Kernel {
        let numbers: Vec<Argument> = [elements].iter().chain(numbers).map(|&number| U64(number as u64)).collect();
        kernel(named(name, self.dtype), blocks(elements), [operands, &numbers].concat())
    }

    /// `x` plus the same tokens for each sample; `y` may lie over `x`.
    fn add(self, x: Span, tokens: Span, y: Span) -> Kernel {
        self.kernel("add_tokens", self.elements(y), &[Read(x), Read(tokens), Write(y)], &[self.piece(y)])
    }

    /// The same tokens before those of each sample.
    fn prepend(self, x: Span, tokens: Span, y: Span) -> Kernel {
        let numbers = [self.piece(y), self.piece(y) - self.piece(x)];
        self.kernel("prepend_tokens", self.elements(y), &[Read(x), Read(tokens), Write(y)], &numbers)
    }

    /// The sum over samples of the first elements of each.
    fn sum(self, dy: Span, sums: Span) -> Kernel {
        let count = sums.bytes / DType::F32.size();
        self.kernel("sum_tokens", count, &[Read(dy), Write(sums)], &[self.batch, self.piece(dy)])
    }

    /// Some elements of each sample, from the one at index `first`.
    fn select(self, first: usize, x: Span, y: Span) -> Kernel {
        let numbers = [self.piece(y), self.piece(x), first];
        self.kernel("select_tokens", self.elements(y), &[Read(x), Write(y)], &numbers)
    }

    /// The gradient of [`Samples::select`].
    fn select_backward(self, first: usize, dy: Span, dx: Span) -> Kernel {
        let numbers = [self.piece(dx), self.piece(dy), first];
        self.kernel("select_tokens_backward", self.elements(dx), &[Read(dy), Write(dx)], &numbers)
    }
}

#[cfg(test)]
#[path = "tokens_tests.rs"]
mod tests;
