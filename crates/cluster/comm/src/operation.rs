//! One collective operation, and the header that every rank publishes before any data moves.

use std::ops::Range;

use crate::algorithm::Algorithm;
use crate::compression::{Compressed, Compression};
use crate::element::{DType, Element, Reduction};
use crate::group_path::GroupPath;
use crate::pieces::piece;
use crate::shards::ShardMap;

/// Version of headers and protocol; ranks of different versions do not communicate.
pub(crate) const PROTOCOL: u32 = 11;
/// Values that have codes in headers, which are their places here, from 1.
const DTYPES: [DType; 7] = [DType::F32, DType::F64, DType::U8, DType::I32, DType::I64, DType::Bf16, DType::F16];
const REDUCTIONS: [Reduction; 4] = [Reduction::Sum, Reduction::Max, Reduction::Min, Reduction::Product];
/// Words of a header.
pub(crate) const HEADER_WORDS: usize = 8;
/// Bytes of a header on a wire, as little-endian words.
pub(crate) const HEADER_BYTES: usize = HEADER_WORDS * 8;

/// The kind of collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    AllReduce = 1,
    Broadcast = 2,
    AllGather = 3,
    Barrier = 4,
    ReduceScatter = 5,
    AllGatherPieces = 6,
    Reduce = 7,
    Gather = 8,
    Scatter = 9,
    AllToAll = 10,
    Transfer = 11,
}

/// Identifies one incarnation of a group, so that messages of another job, attempt or membership are told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Hash of the job's name.
    pub job: u64,
    /// Number of restarts of the job.
    pub attempt: u32,
    /// Number of membership changes within an attempt.
    pub epoch: u32,
}

impl Identity {
    /// The identity of an attempt of a job.
    pub(crate) fn of_job(job: &str, attempt: u32) -> Self {
        let [a, b, c, d, e, f, g, h, ..] = *blake3::hash(job.as_bytes()).as_bytes();
        Identity { job: u64::from_le_bytes([a, b, c, d, e, f, g, h]), attempt, epoch: 0 }
    }
}

/// A collective over memory of the caller. Element counts are per rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub kind: Kind,
    pub dtype: DType,
    pub reduction: Reduction,
    /// That of an all-reduce.
    pub algorithm: Algorithm,
    /// How values of an all-reduce cross between nodes; `None` for as they are.
    pub compressed: Option<Compressed>,
    /// The rank that sends in a broadcast, scatter or transfer, or that gets the result of a reduce or gather.
    pub root: usize,
    /// The shards that a reduction sums over; a single shard in any other operation.
    pub shards: ShardMap,
    pub count: usize,
    /// This rank's input: `count` elements, in a reduction for each of its partial sums, and in a scatter or all-to-all for
    /// each rank.
    pub input: *const u8,
    /// Elements from one partial sum of a reduction to the next.
    pub stride: usize,
    /// The result: `count` elements, in a gather, all-gather or all-to-all `count` per rank. The same pointer as `input` except
    /// in these and in a scatter.
    pub output: *mut u8,
    /// Where the part of each rank ends, in elements, of a reduce-scatter or an all-gather in parts of any length. Null: in equal
    /// pieces.
    pub ends: *const usize,
    /// Identifies the lengths of such parts; 0 for equal pieces.
    pub lengths: u64,
    /// The group that carries it out; set when the operation is passed to the group.
    pub group: GroupPath,
    /// Its number in the group, from 1; set when it is queued.
    pub sequence: u64,
    /// Its number among all operations that this rank has recorded; set when it is queued.
    pub flight: u64,
}

// SAFETY: the caller that queues an operation keeps its memory valid, and untouched by others, until it is done.
unsafe impl Send for Operation {}

impl Operation {
    pub(crate) fn new<T: Element>(kind: Kind, input: *const T, output: *mut T, count: usize) -> Self {
        Operation {
            kind,
            dtype: T::DTYPE,
            reduction: Reduction::Sum,
            algorithm: Algorithm::Tree,
            compressed: None,
            root: 0,
            shards: ShardMap::one_each(1),
            count,
            input: input.cast(),
            stride: count,
            output: output.cast(),
            ends: std::ptr::null(),
            lengths: 0,
            group: GroupPath::default(),
            sequence: 0,
            flight: 0,
        }
    }

    pub(crate) fn barrier() -> Self {
        let nothing = std::ptr::NonNull::<u8>::dangling().as_ptr();
        Operation::new(Kind::Barrier, nothing, nothing, 0)
    }

    /// The header, on which all ranks must agree.
    pub(crate) fn header(&self, identity: Identity) -> Header {
        let code = u64::from(PROTOCOL) << 32
            | self.compressed.map_or(0, |by| code_of(&Compression::ALL, by.to)) << 28
            | code_of(&Algorithm::ALL, self.algorithm) << 24
            | (self.kind as u64) << 16
            | code_of(&DTYPES, self.dtype) << 8
            | code_of(&REDUCTIONS, self.reduction);
        Header([
            code,
            identity.job,
            u64::from(identity.attempt) << 32 | u64::from(identity.epoch),
            self.sequence,
            self.count as u64,
            // An operation in parts has no root.
            self.root as u64 ^ self.lengths,
            self.shards.shards() as u64,
            self.group.0,
        ])
    }

    /// Where the bytes for `receiver` begin in the input of `sender`, and in the receiver's output, if the operation has any. They
    /// are `count` elements.
    pub(crate) fn exchanged(&self, sender: usize, receiver: usize) -> Option<(usize, usize)> {
        let each = self.count * self.dtype.size();
        match self.kind {
            Kind::Gather if receiver == self.root => Some((0, sender * each)),
            Kind::Scatter if sender == self.root => Some((receiver * each, 0)),
            Kind::AllToAll => Some((receiver * each, sender * each)),
            _ => None,
        }
    }

    /// Whether ranks send each other different data ([`Operation::exchanged`]).
    pub(crate) fn is_exchange(&self) -> bool {
        matches!(self.kind, Kind::Gather | Kind::Scatter | Kind::AllToAll)
    }

    /// Whether one rank's data go to all others.
    pub(crate) fn has_one_sender(&self) -> bool {
        matches!(self.kind, Kind::Broadcast | Kind::Scatter | Kind::Transfer)
    }

    /// The bytes that belong to `sender`, of the output or, in an exchange, of what all ranks send.
    pub(crate) fn part_from(&self, sender: usize, ranks: usize) -> Range<usize> {
        let size = self.dtype.size();
        match self.kind {
            Kind::AllGather | Kind::Gather => sender * self.count * size..(sender + 1) * self.count * size,
            Kind::AllToAll => sender * ranks * self.count * size..(sender + 1) * ranks * self.count * size,
            Kind::Scatter => 0..ranks * self.count * size,
            Kind::AllGatherPieces => {
                let piece = self.piece_of(sender, ranks);
                piece.start * size..piece.end * size
            }
            Kind::AllReduce | Kind::Reduce | Kind::Broadcast | Kind::Transfer | Kind::Barrier | Kind::ReduceScatter => {
                0..self.count * size
            }
        }
    }

    /// The elements that belong to `rank` if each rank has a part.
    pub(crate) fn piece_of(&self, rank: usize, ranks: usize) -> Range<usize> {
        if self.ends.is_null() {
            return piece(self.count, self.dtype.size(), rank, ranks);
        }
        // SAFETY: the caller of the operation keeps the ends of all ranks valid until it is done.
        let ends = unsafe { std::slice::from_raw_parts(self.ends, ranks) };
        rank.checked_sub(1).map_or(0, |before| ends[before])..ends[rank]
    }

    /// The elements of a reduction's result that `rank` gets.
    pub(crate) fn result_of(&self, rank: usize, ranks: usize) -> Range<usize> {
        match self.kind {
            Kind::ReduceScatter => self.piece_of(rank, ranks),
            Kind::Reduce if rank != self.root => 0..0,
            _ => 0..self.count,
        }
    }

    /// Copies this rank's input of an all-gather to its place in the output, unless it lies there already.
    pub(crate) fn place_own_part(&self, rank: usize, ranks: usize) {
        let place = self.output.wrapping_add(self.part_from(rank, ranks).start);
        if self.kind == Kind::AllGather && place.cast_const() != self.input {
            // SAFETY: both pointers are the operation's memory, valid for this many bytes and used by no other code
            // until it is done.
            unsafe { std::ptr::copy(self.input, place, self.count * self.dtype.size()) }
        }
    }

    /// The operation in a group of one.
    pub(crate) fn carry_out_alone(&self) {
        self.place_own_part(0, 1);
        if self.is_exchange() && self.output.cast_const() != self.input {
            // SAFETY: as above.
            unsafe { std::ptr::copy(self.input, self.output, self.count * self.dtype.size()) }
        }
    }

    /// The operation's description, without its number.
    pub(crate) fn describe(&self) -> String {
        self.header(Identity::default()).operation()
    }
}

/// Version, operation, types, job, attempt, membership epoch, sequence, count, root, shards and group, as words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header(pub [u64; HEADER_WORDS]);

impl Header {
    /// Sent by a leaving rank in place of a header. No operation has the number 0.
    pub(crate) const LEAVING: Header = Header([(PROTOCOL as u64) << 32, 0, 0, 0, 0, 0, 0, 0]);

    pub(crate) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Self {
        let mut header = Header::default();
        for (word, bytes) in header.0.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        header
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.0[3]
    }

    /// The operation's description. Bits unknown to this version are shown as numbers.
    pub(crate) fn operation(&self) -> String {
        let [code, _, _, _, count, root, _, group] = self.0;
        let dtype = name_of(&DTYPES, code >> 8, DType::name);
        let reduction = name_of(&REDUCTIONS, code, Reduction::name);
        let operation = match code >> 16 & 0xff {
            1 if code_of(&Algorithm::ALL, Algorithm::Tree) == code >> 24 & 0xf => match code >> 28 & 0xf {
                0 => format!("all_reduce({reduction}) of {count} {dtype}"),
                to => {
                    let compression = name_of(&Compression::ALL, to, Compression::name);
                    format!("all_reduce({reduction}) of {count} {dtype} in {compression}")
                }
            },
            1 => {
                let algorithm = name_of(&Algorithm::ALL, code >> 24 & 0xf, Algorithm::name);
                format!("all_reduce({reduction}) of {count} {dtype} by {algorithm}")
            }
            2 => format!("broadcast of {count} {dtype} from rank {root}"),
            3 => format!("all_gather of {count} {dtype}"),
            4 => "barrier".to_owned(),
            5 => format!("reduce_scatter({reduction}) of {count} {dtype}"),
            6 => format!("all_gather_pieces of {count} {dtype}"),
            7 => format!("reduce({reduction}) of {count} {dtype} to rank {root}"),
            8 => format!("gather of {count} {dtype} to rank {root}"),
            9 => format!("scatter of {count} {dtype} from rank {root}"),
            10 => format!("all_to_all of {count} {dtype}"),
            11 => format!("transfer of {count} {dtype} from rank {root}"),
            other => format!("operation {other}"),
        };
        GroupPath(group).name_operation(operation)
    }

    /// A description with the fields that differ from `other`.
    pub(crate) fn describe_against(&self, other: &Header) -> String {
        let [code, job, incarnation, sequence, _, root, shards, _] = self.0;
        let mut text = format!("{} #{sequence}", self.operation());
        if code >> 32 != other.0[0] >> 32 {
            text += &format!(" (protocol {})", code >> 32);
        }
        if job != other.0[1] {
            text += &format!(" (job {job:016x})");
        }
        if incarnation != other.0[2] {
            text += &format!(" (attempt {}, membership {})", incarnation >> 32, incarnation & 0xffff_ffff);
        }
        if shards != other.0[6] && code == other.0[0] {
            text += &format!(" (over {shards} shards)");
        }
        if root != other.0[5] && code == other.0[0] && matches!(code >> 16 & 0xff, 5 | 6) {
            text += " (in other parts)";
        }
        text
    }
}

/// The code of one of the known values.
fn code_of<T: PartialEq>(known: &[T], value: T) -> u64 {
    known.iter().position(|one| *one == value).map_or(0, |place| place as u64 + 1)
}

/// The name of the known value with the code in the lowest byte.
fn name_of<T: Copy>(known: &[T], code: u64, name: impl Fn(T) -> &'static str) -> &'static str {
    known.get((code as u8 as usize).wrapping_sub(1)).map_or("?", |value| name(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip_and_describe_differences() {
        let identity = Identity { job: 7, attempt: 1, epoch: 2 };
        let nothing = std::ptr::NonNull::<f32>::dangling().as_ptr();
        let operation = Operation { sequence: 17, ..Operation::new(Kind::AllReduce, nothing, nothing, 1000) };
        let header = operation.header(identity);
        assert_eq!(Header::from_bytes(&header.to_bytes()), header);
        assert_eq!(header.describe_against(&header), "all_reduce(sum) of 1000 f32 #17");
        let other = Operation { kind: Kind::Broadcast, root: 3, dtype: DType::I64, ..operation };
        let other = other.header(Identity { attempt: 0, ..identity });
        assert_eq!(other.describe_against(&header), "broadcast of 1000 i64 from rank 3 #17 (attempt 0, membership 2)");
        let other = Operation { algorithm: Algorithm::Ring, ..operation }.header(identity);
        assert_eq!(other.describe_against(&header), "all_reduce(sum) of 1000 f32 by ring #17");
        let by = Compressed { to: Compression::F16, residual: nothing };
        let other = Operation { compressed: Some(by), ..operation }.header(identity);
        assert_eq!(other.describe_against(&header), "all_reduce(sum) of 1000 f32 in f16 #17");
        let other = Operation { shards: ShardMap::new(4, 3).unwrap(), ..operation }.header(identity);
        assert_eq!(other.describe_against(&header), "all_reduce(sum) of 1000 f32 #17 (over 4 shards)");
        let group = GroupPath::default().child(1).and_then(|path| path.child(0)).unwrap();
        assert_eq!(Operation { group, ..operation }.describe(), "all_reduce(sum) of 1000 f32 in group 2.1");
    }
}
