//! A plan as a sequence of CUDA work: pure data, in an order in which one stream could run it.
//! Collectives of NCCL are in a second stream, and events order the two. By way of the host each
//! exchange is a call, which ends a CUDA graph.
//!
//! [`Sequence`] is made by `lower`, checked by `check`, printed for people, and bound to addresses
//! by `program`.

use std::fmt;
use std::ops::Range;

use enmasse_graph::{Phase, ValueId};
use enmasse_tensor::DType;

use crate::cublas_lt::{Matmul, MatmulProblem};
use crate::cudnn::{Direction, Problem};
use crate::work::{Argument, Constants, Kernel, Span};

/// One call of the driver or of a library.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    /// A kernel of ours.
    Kernel(Kernel),
    /// A convolution by cuDNN. One of x, w and y is its result.
    Convolution(LibraryCall<Problem>),
    /// A matmul by cuBLASLt. One of x, w and y is its result.
    Matmul(LibraryCall<MatmulProblem>),
    /// A copy on the GPU.
    Copy { from: Span, to: Span },
    /// A copy to byte `to` of the host's memory for the results of a step.
    Read { from: Span, to: usize },
    /// Numbers that all ranks exchange before the work that follows.
    Exchange(Exchange),
    /// Begins to sum a bucket over all ranks, while the work that follows goes on.
    Start(usize, Exchange),
    /// Waits for the sum of a bucket.
    Finish(usize, Span),
    /// A collective of NCCL.
    Collective(Collective),
    /// An event, by its number, which is passed once the stream has run the work before it.
    Record(usize),
    /// Lets the work that follows in the stream wait for an event.
    Await(usize),
}

impl Call {
    /// Whether the host takes part in it, so that it ends a graph.
    pub fn is_of_ranks(&self) -> bool {
        matches!(self, Call::Exchange(_) | Call::Start(..) | Call::Finish(..))
    }

    /// The memory that it touches.
    pub fn accesses(&self) -> Accesses {
        let (reads, writes) = match self {
            Call::Kernel(Kernel { arguments, .. }) => {
                let reads = arguments.iter().filter_map(Argument::read).collect();
                return Accesses { reads, writes: arguments.iter().filter_map(Argument::written).collect() };
            }
            Call::Convolution(convolution) => return convolution.accesses(),
            Call::Matmul(matmul) => return matmul.accesses(),
            Call::Copy { from, to } => (vec![*from], vec![*to]),
            Call::Read { from, .. } => (vec![*from], Vec::new()),
            Call::Exchange(exchange) => (exchange.from.clone(), vec![exchange.to]),
            Call::Start(_, exchange) => (exchange.from.clone(), Vec::new()),
            Call::Finish(_, to) => (Vec::new(), vec![*to]),
            Call::Collective(Collective::AllReduce { at, .. } | Collective::Reduce { at }) => (vec![*at], vec![*at]),
            Call::Collective(Collective::Broadcast { at, sends: true }) => (vec![*at], Vec::new()),
            Call::Collective(Collective::Broadcast { at, sends: false }) => (Vec::new(), vec![*at]),
            Call::Collective(Collective::AllGather { from, to, .. }) => (vec![*from], vec![*to]),
            Call::Record(_) | Call::Await(_) => (Vec::new(), Vec::new()),
        };
        Accesses { reads, writes }
    }
}

/// The memory that a call touches.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Accesses {
    /// What it reads before it has written it.
    pub reads: Vec<Span>,
    /// What it has written when it ends.
    pub writes: Vec<Span>,
}

impl Accesses {
    pub fn all(&self) -> impl Iterator<Item = Span> {
        self.reads.iter().chain(&self.writes).copied()
    }
}

impl From<Kernel> for Call {
    fn from(kernel: Kernel) -> Call {
        Call::Kernel(kernel)
    }
}

/// The streams of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    Compute,
    /// Collectives, which the other stream need not wait for at once.
    Collectives,
}

/// A collective of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collective {
    /// The sum of f32 or bf16 numbers over all ranks, in place.
    AllReduce { at: Span, dtype: DType },
    /// The sum of f32 numbers over all ranks, in place of those of the first one. Those of the others stay.
    Reduce { at: Span },
    /// The f32 numbers of the first rank, in place of those of the others. `sends` on the first one.
    Broadcast { at: Span, sends: bool },
    /// The f32 numbers of each rank, in the order of ranks. A rank may leave the last ones of its own undefined, so that `from` is shorter
    /// than its part of `to`.
    AllGather { from: Span, to: Span, ranks: usize },
}

/// f32 numbers of this rank, which pass through the host's memory, and what all ranks make of them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Exchange {
    pub joins: Joins,
    /// This rank's numbers, one piece after another in the host's memory.
    pub from: Vec<Span>,
    /// What the rank gets, or the first rank instead.
    pub to: Span,
    /// The first byte in the host's memory for exchanges. What this rank sends comes first, what it receives after it.
    pub staging: usize,
}

/// What ranks do with their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joins {
    /// The sum over shards. Each rank has the partial sums of [`enmasse_comm::ShardMap::partials`], in pieces of equal length.
    Sum,
    /// The same for the first rank alone.
    Reduce,
    /// The numbers of the first rank, for the others. It receives none itself, and they send none.
    Broadcast,
    /// The numbers of each rank one after another, with this many bytes for each rank, of which it may leave the last ones
    /// undefined.
    Gather { each: usize },
}

/// A convolution by cuDNN, or a product of a linear layer's matrices by cuBLASLt, with its operands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LibraryCall<P> {
    pub problem: P,
    /// The name of the engine, or of the algorithm.
    pub engine: String,
    pub x: Span,
    pub w: Span,
    pub y: Span,
    pub bias: Option<Span>,
    /// Memory for the engine alone.
    pub workspace: Span,
}

impl LibraryCall<Problem> {
    fn accesses(&self) -> Accesses {
        let LibraryCall { x, w, y, bias, .. } = *self;
        let (reads, result) = match self.problem.direction {
            Direction::Forward(_) => ([x, w].into_iter().chain(bias).collect(), y),
            Direction::BackwardData { accumulate: false } => (vec![y, w], x),
            Direction::BackwardData { accumulate: true } => (vec![y, w, x], x),
            Direction::BackwardWeights => (vec![x, y], w),
        };
        Accesses { reads, writes: vec![result] }
    }
}

impl LibraryCall<MatmulProblem> {
    fn accesses(&self) -> Accesses {
        let LibraryCall { x, w, y, bias, .. } = *self;
        let (reads, result) = match self.problem.matmul {
            Matmul::Forward { .. } => ([x, w].into_iter().chain(bias).collect(), y),
            Matmul::BackwardData => (vec![y, w], x),
            Matmul::BackwardWeights => (vec![x, y], w),
        };
        Accesses { reads, writes: vec![result] }
    }
}

/// Work for an instruction of the plan.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Work {
    /// The instruction's index in the plan.
    pub instruction: usize,
    pub lane: StreamKind,
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
    /// The local shard, by its index; 0 for values that all shards share.
    pub local: usize,
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
    /// Bytes of [`Memory::Counters`](crate::work::Memory::Counters).
    pub counters: usize,
    /// Bytes of narrow gradients.
    pub narrow: usize,
    pub constants: Constants,
    /// The numbers among the results. A `Failure` comes before them.
    pub numbers: Vec<Number>,
    /// Bytes of the results.
    pub results: usize,
    /// Bytes of the host's memory for exchanges.
    pub staging: usize,
    /// Bytes of [`Memory::Collectives`](crate::work::Memory::Collectives).
    pub collectives: usize,
    /// The number of events that order the streams.
    pub events: usize,
}

impl Sequence {
    /// The work as text, one piece a line after the number of its instruction; the first line counts the pieces.
    pub fn lines(&self) -> Vec<String> {
        let count = |is: fn(&Call) -> bool| self.work.iter().filter(|work| is(&work.call)).count();
        let kernels = count(|call| matches!(call, Call::Kernel(_)));
        let convolutions = count(|call| matches!(call, Call::Convolution(_)));
        let matmuls = count(|call| matches!(call, Call::Matmul(_)));
        let exchanges = count(Call::is_of_ranks);
        let collectives = count(|call| matches!(call, Call::Collective(_)));
        let events = count(|call| matches!(call, Call::Record(_) | Call::Await(_)));
        let copies = self.work.len() - kernels - convolutions - matmuls - exchanges - collectives - events;
        let is_of_ranks: Vec<bool> = self.work.iter().map(|work| work.call.is_of_ranks()).collect();
        let work_ranges = work_ranges(&is_of_ranks, 0..self.work.len());
        let graphs = match work_ranges.iter().filter(|work_range| !work_range.is_of_ranks).count() {
            1 => "one graph".to_owned(),
            graphs => format!("{graphs} graphs"),
        };
        let between = match exchanges {
            0 => String::new(),
            _ => format!(", with {exchanges} exchanges of ranks between them"),
        };
        let beside = match collectives {
            0 => String::new(),
            _ => format!("; a stream beside it has {collectives} collectives of NCCL, and events order the two"),
        };
        let sum = format!(
            "{graphs} in one stream{between}: {kernels} kernels, {convolutions} convolutions, {matmuls} matmuls, {copies} \
             copies{beside}; another stream copies the batch, and an event lets the step wait for it"
        );
        let lane = |lane: StreamKind| if lane == StreamKind::Collectives { "beside: " } else { "" };
        let piece = |work: &Work| format!("{:<4} {}{}", work.instruction, lane(work.lane), work.call);
        let pieces = self.work.iter().map(piece);
        std::iter::once(sum).chain(pieces).collect()
    }
}

/// Adjacent work of which either all or none is of several ranks, in which case it is one piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkRange {
    pub work: Range<usize>,
    pub is_of_ranks: bool,
}

/// Divides a range of work into ranges.
pub(crate) fn work_ranges(is_of_ranks: &[bool], work: Range<usize>) -> Vec<WorkRange> {
    let mut work_ranges: Vec<WorkRange> = Vec::new();
    for at in work {
        match work_ranges.last_mut() {
            Some(last) if !last.is_of_ranks && !is_of_ranks[at] => last.work.end = at + 1,
            _ => work_ranges.push(WorkRange { work: at..at + 1, is_of_ranks: is_of_ranks[at] }),
        }
    }
    work_ranges
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Kernel(kernel) => write!(f, "{kernel}"),
            Call::Convolution(call) => write_call(f, call, call.accesses()),
            Call::Matmul(call) => write_call(f, call, call.accesses()),
            Call::Copy { from, to } => write!(f, "copy ({from}) -> {to}"),
            Call::Read { from, to } => write!(f, "read ({from}) -> host+{to}"),
            Call::Exchange(exchange) => write!(f, "{exchange}"),
            Call::Start(bucket, exchange) => write!(f, "start bucket {bucket}: {exchange}"),
            Call::Finish(bucket, to) => write!(f, "wait for bucket {bucket} -> {to}"),
            Call::Collective(Collective::AllReduce { at, dtype }) => write!(f, "ncclAllReduce {dtype} ({at}) -> {at}"),
            Call::Collective(Collective::Reduce { at }) => write!(f, "ncclReduce ({at}) -> {at} of rank 0"),
            Call::Collective(Collective::Broadcast { at, .. }) => write!(f, "ncclBroadcast ({at} of rank 0) -> {at}"),
            Call::Collective(Collective::AllGather { from, to, .. }) => write!(f, "ncclAllGather ({from}) -> {to}"),
            Call::Record(event) => write!(f, "record event {event}"),
            Call::Await(event) => write!(f, "wait for event {event}"),
        }
    }
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.joins {
            Joins::Sum => "sum",
            Joins::Reduce => "sum for rank 0",
            Joins::Broadcast => "copy of rank 0",
            Joins::Gather { .. } => "gather",
        };
        write!(f, "{name} over ranks by way of staging+{} ({}) -> {}", self.staging, list(&self.from), self.to)
    }
}

fn write_call(
    f: &mut fmt::Formatter<'_>,
    LibraryCall { problem, engine, workspace, .. }: &LibraryCall<impl fmt::Display>,
    accesses: Accesses,
) -> fmt::Result {
    let [reads, results] = [accesses.reads, accesses.writes].map(|spans| list(&spans));
    write!(f, "{problem} by {engine} ({reads}) -> {results}")?;
    if workspace.bytes > 0 { write!(f, " using {workspace}") } else { Ok(()) }
}

fn list(spans: &[Span]) -> String {
    spans.iter().map(Span::to_string).collect::<Vec<_>>().join(", ")
}
