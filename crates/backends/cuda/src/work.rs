//! Pieces of CUDA work as plain data: kernels with their operands as places in memory, before anything has an address.
//!
//! A kernel takes one argument, a struct in the layout of C. [`Kernel::pack`] makes its bytes once places have addresses.
//! Until then work can be printed, compared and checked.

use std::fmt;

use enmasse_graph::{Arena, Plan};

/// A region of the GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Memory {
    /// An arena of the plan.
    Arena(Arena),
    /// The parameters as convolutions multiply them: in the element type of activations, at the index of the parameter.
    Rounded,
    /// The same of a teacher's parameters.
    RoundedTeacher,
    /// Gradients of parameters as engines write them, before they are f32: in the element type of activations, at the index of the
    /// gradient.
    Narrow,
    /// What an instruction uses for itself alone.
    Scratch,
    /// A count for each slab of a reduction, which is 0 between kernels: `is_last_of_slab` in `kernels/rows.h`.
    Counters,
    /// What collectives of NCCL work in, beside the step's own work.
    Collectives,
    /// Tables and factors that never change: [`Constants`].
    Constants,
    /// Results of shards that the next shard overwrites.
    Saved,
    /// The numbers of the step: `StepValues` in `kernels/kernel.h`.
    Step,
    /// The first loss that was not finite: `Failure` in `kernels/kernel.h`.
    Failure,
}

/// A place in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub memory: Memory,
    /// Bytes from its start.
    pub offset: usize,
}

/// Some bytes from a place on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub place: Place,
    pub bytes: usize,
}

impl Span {
    /// The bytes from the first of two spans of one memory to the last.
    pub fn hull(self, other: Span) -> Span {
        debug_assert_eq!(self.place.memory, other.place.memory);
        let start = self.place.offset.min(other.place.offset);
        let end = (self.place.offset + self.bytes).max(other.place.offset + other.bytes);
        Span { place: Place { offset: start, ..self.place }, bytes: end - start }
    }

    /// Whether a value comes next in its memory. Alignment leaves gaps.
    pub fn is_before(self, value: Span) -> bool {
        let end = (self.place.offset + self.bytes).next_multiple_of(Plan::ALIGNMENT);
        value.place == Place { offset: end, ..self.place }
    }

    /// Whether two spans have a byte in common.
    pub fn overlaps(self, other: Span) -> bool {
        let [a, b] = [self, other].map(|span| span.place.offset..span.place.offset + span.bytes);
        self.place.memory == other.place.memory && a.start < b.end && b.start < a.end
    }
}

/// The bytes of [`Memory::Constants`], which grow while kernels are made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Constants {
    bytes: Vec<u8>,
}

impl Constants {
    /// Every entry starts at a multiple of this many bytes.
    const ALIGNMENT: usize = 16;

    /// Appends an entry.
    pub fn add(&mut self, entry: &[u8]) -> Span {
        let offset = self.bytes.len().next_multiple_of(Constants::ALIGNMENT);
        self.bytes.resize(offset, 0);
        self.bytes.extend_from_slice(entry);
        Span { place: Place { memory: Memory::Constants, offset }, bytes: entry.len() }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// A field of the struct that a kernel takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Argument {
    /// The address of memory that the kernel reads.
    Read(Span),
    /// The address of memory that the kernel writes whole, before it reads any of it.
    Write(Span),
    /// The address of memory that the kernel changes.
    Change(Span),
    /// A null address, for an operand that is left out.
    Null,
    /// An unsigned number of 32 bits.
    U32(u32),
    /// An unsigned number of 64 bits.
    U64(u64),
    /// A float.
    F32(f32),
}

impl Argument {
    /// An operand to read that may be left out.
    pub fn optional(span: Option<Span>) -> Self {
        span.map_or(Argument::Null, Argument::Read)
    }

    /// What the kernel reads before it has written it.
    pub fn read(&self) -> Option<Span> {
        match *self {
            Argument::Read(span) | Argument::Change(span) => Some(span),
            Argument::Write(_) | Argument::Null | Argument::U32(_) | Argument::U64(_) | Argument::F32(_) => None,
        }
    }

    /// What the kernel has written when it ends.
    pub fn written(&self) -> Option<Span> {
        match *self {
            Argument::Write(span) | Argument::Change(span) => Some(span),
            Argument::Read(_) | Argument::Null | Argument::U32(_) | Argument::U64(_) | Argument::F32(_) => None,
        }
    }
}

/// A kernel with its operands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kernel {
    /// Its name in the module.
    pub name: String,
    /// Blocks, in three dimensions.
    pub grid: [u32; 3],
    /// Threads of a block, in one dimension.
    pub block: u32,
    pub arguments: Vec<Argument>,
}

impl Kernel {
    /// The bytes of the struct. `address` gives the address of a place.
    pub fn pack(&self, address: &dyn Fn(Place) -> u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.pack_into(address, &mut bytes);
        bytes
    }

    /// The same in place of what `bytes` holds, which allocates nothing if it held as many.
    pub fn pack_into(&self, address: &dyn Fn(Place) -> u64, bytes: &mut Vec<u8>) {
        bytes.clear();
        let mut align = 1;
        let mut push = |field: &[u8]| {
            bytes.resize(bytes.len().next_multiple_of(field.len()), 0);
            bytes.extend_from_slice(field);
            align = align.max(field.len());
        };
        for argument in &self.arguments {
            match argument {
                Argument::Read(span) | Argument::Write(span) | Argument::Change(span) => {
                    push(&address(span.place).to_ne_bytes());
                }
                Argument::Null => push(&0u64.to_ne_bytes()),
                Argument::U32(number) => push(&number.to_ne_bytes()),
                Argument::U64(number) => push(&number.to_ne_bytes()),
                Argument::F32(number) => push(&number.to_ne_bytes()),
            }
        }
        bytes.resize(bytes.len().next_multiple_of(align), 0);
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Memory::Arena(arena) => write!(f, "{arena}"),
            Memory::Rounded => f.write_str("rounded"),
            Memory::RoundedTeacher => f.write_str("rounded_teacher"),
            Memory::Narrow => f.write_str("narrow"),
            Memory::Scratch => f.write_str("scratch"),
            Memory::Counters => f.write_str("counters"),
            Memory::Collectives => f.write_str("collectives"),
            Memory::Constants => f.write_str("constants"),
            Memory::Saved => f.write_str("saved"),
            Memory::Step => f.write_str("step"),
            Memory::Failure => f.write_str("failure"),
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.grid;
        write!(f, "{} <{x}x{y}x{z}, {}> (", self.name, self.block)?;
        for (index, argument) in self.arguments.iter().enumerate() {
            write!(f, "{}{argument}", if index > 0 { ", " } else { "" })?;
        }
        f.write_str(")")
    }
}

/// What a kernel writes or changes has a mark.
impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Argument::Read(span) => write!(f, "{span}"),
            Argument::Write(span) => write!(f, "={span}"),
            Argument::Change(span) => write!(f, "~{span}"),
            Argument::Null => f.write_str("-"),
            Argument::U32(number) => write!(f, "{number}"),
            Argument::U64(number) => write!(f, "{number}"),
            Argument::F32(number) => write!(f, "{number}"),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}:{}", self.place.memory, self.place.offset, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_aligned() {
        let mut constants = Constants::default();
        let mut check = |entry: &[u8], offset: usize| {
            let expected = Span { place: Place { memory: Memory::Constants, offset }, bytes: entry.len() };
            assert_eq!(constants.add(entry), expected);
            assert_eq!(constants.bytes()[offset..], *entry);
        };
        check(&[1; 5], 0);
        check(&[2; 16], 16);
        check(&[3; 1], 32);
    }

    #[test]
    fn arguments_have_the_layout_of_c() {
        let place = |offset| Place { memory: Memory::Scratch, offset };
        let check = |arguments: &[Argument], expected: &[u8]| {
            let kernel = Kernel { name: "k".into(), grid: [1; 3], block: 1, arguments: arguments.to_vec() };
            assert_eq!(kernel.pack(&|place| 0x1000 + place.offset as u64), expected);
        };
        let span = Span { place: place(4), bytes: 8 };
        check(&[], &[]);
        check(&[Argument::U32(7)], &[7, 0, 0, 0]);
        check(&[Argument::U32(7), Argument::Read(span)], &[7, 0, 0, 0, 0, 0, 0, 0, 4, 16, 0, 0, 0, 0, 0, 0]);
        check(&[Argument::U64(1), Argument::F32(1.0)], &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x3f, 0, 0, 0, 0]);
        check(&[Argument::Null, Argument::Write(span)], &[0, 0, 0, 0, 0, 0, 0, 0, 4, 16, 0, 0, 0, 0, 0, 0]);
    }
}
