//! A plan as a sequence of CUDA work: pure data, in the order of one stream.
//!
//! [`Sequence`] is made by `lower`, checked by `check`, printed for people, and bound to addresses by `program`.

use std::fmt;
use std::ops::Range;

use enmasse_graph::{Phase, ValueId};

use crate::cublas_lt::{Product, ProductProblem};
use crate::cudnn::{Direction, Problem};
use crate::work::{Constants, Kernel, Span};

/// One call of the driver or of a library.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    /// A kernel of ours.
    Kernel(Kernel),
    /// A convolution by cuDNN. One of x, w and y is its result.
    Convolution(Convolution),
    /// A product of matrices by cuBLASLt. One of x, w and y is its result.
    Product(MatrixProduct),
    /// A copy on the card.
    Copy { from: Span, to: Span },
    /// A copy to byte `to` of the host's memory for the results of a step.
    Read { from: Span, to: usize },
}

/// A convolution with its operands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Convolution {
    pub problem: Problem,
    /// The engine's name.
    pub engine: String,
    pub x: Span,
    pub w: Span,
    pub y: Span,
    pub bias: Option<Span>,
    /// Memory for the engine alone.
    pub workspace: Span,
}

impl Convolution {
    /// What it reads, and what it writes.
    pub fn accesses(&self) -> (Vec<Span>, Span) {
        let Convolution { x, w, y, bias, .. } = *self;
        match self.problem.direction {
            Direction::Forward { .. } => ([x, w].into_iter().chain(bias).collect(), y),
            Direction::BackwardData { accumulate: false } => (vec![y, w], x),
            Direction::BackwardData { accumulate: true } => (vec![y, w, x], x),
            Direction::BackwardWeights => (vec![x, y], w),
        }
    }
}

/// A product of a linear layer's matrices with its operands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MatrixProduct {
    pub problem: ProductProblem,
    /// The algorithm's name.
    pub algorithm: String,
    pub x: Span,
    pub w: Span,
    pub y: Span,
    pub bias: Option<Span>,
    /// Memory for the algorithm alone.
    pub workspace: Span,
}

impl MatrixProduct {
    /// What it reads, and what it writes.
    pub fn accesses(&self) -> (Vec<Span>, Span) {
        let MatrixProduct { x, w, y, bias, .. } = *self;
        match self.problem.product {
            Product::Forward { .. } => ([x, w].into_iter().chain(bias).collect(), y),
            Product::BackwardData => (vec![y, w], x),
            Product::BackwardWeights => (vec![x, y], w),
        }
    }
}

/// Work for an instruction of the plan.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Work {
    /// The instruction's index in the plan.
    pub instruction: usize,
    pub call: Call,
}

/// The work of a part of the step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub phase: Phase,
    /// Its pieces of [`Sequence::work`].
    pub work: Range<usize>,
}

/// A number that a step leaves on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number {
    pub value: ValueId,
    /// The hosted shard, by its index; 0 for values that all shards share.
    pub hosted: usize,
    /// Its first byte among the results.
    pub at: usize,
}

/// All work of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sequence {
    pub work: Vec<Work>,
    /// In the order in which a whole step runs them.
    pub parts: Vec<Part>,
    /// Bytes of scratch that any piece of work needs.
    pub scratch: usize,
    pub constants: Constants,
    /// The numbers among the results. A `Failure` comes before them.
    pub numbers: Vec<Number>,
    /// Bytes of the results.
    pub results: usize,
}

impl Sequence {
    /// The work as text, one piece a line after the number of its instruction; the first line counts the pieces.
    pub fn lines(&self) -> Vec<String> {
        let count = |is: fn(&Call) -> bool| self.work.iter().filter(|work| is(&work.call)).count();
        let kernels = count(|call| matches!(call, Call::Kernel(_)));
        let convolutions = count(|call| matches!(call, Call::Convolution(_)));
        let products = count(|call| matches!(call, Call::Product(_)));
        let copies = self.work.len() - kernels - convolutions - products;
        let sum = format!(
            "one graph in one stream: {kernels} kernels, {convolutions} convolutions, {products} products, {copies} copies; a \
             second stream copies the batch, and an event lets the graph wait for it"
        );
        let pieces = self.work.iter().map(|work| format!("{:<4} {}", work.instruction, work.call));
        std::iter::once(sum).chain(pieces).collect()
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Kernel(kernel) => write!(f, "{kernel}"),
            Call::Convolution(call) => write_call(f, &call.problem, &call.engine, call.accesses(), call.workspace),
            Call::Product(call) => write_call(f, &call.problem, &call.algorithm, call.accesses(), call.workspace),
            Call::Copy { from, to } => write!(f, "copy ({from}) -> {to}"),
            Call::Read { from, to } => write!(f, "read ({from}) -> host+{to}"),
        }
    }
}

fn write_call(
    f: &mut fmt::Formatter<'_>,
    problem: &dyn fmt::Display,
    engine: &str,
    (reads, result): (Vec<Span>, Span),
    workspace: Span,
) -> fmt::Result {
    let reads: Vec<String> = reads.iter().map(Span::to_string).collect();
    write!(f, "{problem} by {engine} ({}) -> {result}", reads.join(", "))?;
    if workspace.bytes > 0 { write!(f, " using {workspace}") } else { Ok(()) }
}
