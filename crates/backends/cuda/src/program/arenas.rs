//! The GPU's memory of a program: what outlives a step, what all steps share, and what each of two steps has for itself.

use std::sync::Arc;

use enmasse_device::{Memory as Bytes, ShardSchedule};
use enmasse_graph::{Arena, Plans};
use enmasse_tensor::DType;

use crate::CudaError;
use crate::driver::{Buffer, Context, Stream};
use crate::kernels::step;
use crate::lower::Places;
use crate::nccl::Nccl;
use crate::work::{Constants, Memory, Place};

/// Steps whose inputs the GPU holds at a time: while it computes one, it copies the next.
pub(crate) const STEPS: usize = 2;

/// The constants of each sequence begin at a multiple of this many bytes.
pub(crate) const ALIGNMENT: usize = 256;

/// The driver gives memory in multiples of this many bytes.
const GRANULE: usize = 2 << 20;

/// What ranks sum.
pub(super) const GRADIENTS: Memory = Memory::Arena(Arena::Gradients);

/// Bytes of each region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    state: Vec<(Memory, usize)>,
    shared: Vec<(Memory, usize)>,
    /// For each of the steps.
    own: Vec<(Memory, usize)>,
    /// On the host, for exchanges of ranks.
    staging: usize,
}

impl Sizes {
    /// The regions of a program. `scratch`, `constants` and so on are bytes.
    pub fn new(
        plans: &Plans,
        schedule: &ShardSchedule,
        [narrow, scratch, counters, collectives, constants, staging]: [usize; 6],
    ) -> Self {
        let arena = |arena: Arena| (Memory::Arena(arena), plans.arena_bytes(arena));
        let times = |count: usize, (memory, bytes): (Memory, usize)| (memory, count * bytes);
        let is_narrow = plans.evaluate.precision.activations() != DType::F32;
        let rounded = |arena: Arena| if is_narrow { plans.arena_bytes(arena) / 2 } else { 0 };
        let saved = Places { plans, schedule }.saved_bytes() * schedule.shards.len();
        let shared = vec![
            times(schedule.slots, arena(Arena::Gradients)),
            times(schedule.activations(), arena(Arena::Activations)),
            (Memory::Rounded, rounded(Arena::Parameters)),
            (Memory::RoundedTeacher, rounded(Arena::Teacher)),
            (Memory::Narrow, narrow),
            (Memory::Scratch, scratch),
            (Memory::Counters, counters),
            (Memory::Collectives, collectives),
            (Memory::Constants, constants),
            (Memory::Failure, step::FAILURE_BYTES),
            (Memory::Saved, saved),
        ];
        let own = vec![times(schedule.shards.len(), arena(Arena::Input)), (Memory::Step, step::BYTES)];
        Sizes { state: state_sizes(plans), shared, own, staging }
    }

    /// The sums that users see. What the driver takes beyond the regions is scratch.
    pub fn summary(&self) -> Bytes {
        let sum = |sizes: &[(Memory, usize)]| sizes.iter().map(|(_, bytes)| bytes).sum::<usize>();
        let taken =
            |sizes: &[(Memory, usize)]| sizes.iter().map(|(_, bytes)| bytes.next_multiple_of(GRANULE)).sum::<usize>();
        let of = |memory: Memory| self.shared.iter().filter(|(m, _)| *m == memory).map(|(_, bytes)| bytes).sum();
        let [gradients, activations] = [Arena::Gradients, Arena::Activations].map(|arena| of(Memory::Arena(arena)));
        let state = sum(&self.state);
        let all = taken(&self.state) + taken(&self.shared) + STEPS * taken(&self.own);
        let scratch = all - state - gradients - activations;
        Bytes { state, gradients, activations, scratch, library: 0, staging: self.staging }
    }
}

fn state_sizes(plans: &Plans) -> Vec<(Memory, usize)> {
    let state = plans.arenas().into_iter().filter(|(arena, _)| arena.outlives_step());
    state.map(|(arena, bytes)| (Memory::Arena(arena), bytes)).collect()
}

/// The regions that outlive a program's place in a group.
pub(crate) struct State(Vec<(Memory, Buffer)>);

/// The regions of steps.
pub(crate) struct Arenas {
    shared: Vec<(Memory, Buffer)>,
    own: [Vec<(Memory, Buffer)>; STEPS],
}

fn allocate(context: &Arc<Context>, sizes: &[(Memory, usize)]) -> Result<Vec<(Memory, Buffer)>, CudaError> {
    sizes.iter().map(|&(memory, bytes)| Ok((memory, Buffer::new(context, &memory.to_string(), bytes)?))).collect()
}

fn find(regions: &[(Memory, Buffer)], memory: Memory) -> Option<&Buffer> {
    regions.iter().find(|(other, _)| *other == memory).map(|(_, buffer)| buffer)
}

impl State {
    /// Allocates the regions and fills them with zeros.
    pub fn new(context: &Arc<Context>, plans: &Plans, stream: &Stream) -> Result<Self, CudaError> {
        let regions = allocate(context, &state_sizes(plans))?;
        regions.iter().try_for_each(|(_, buffer)| buffer.zero(stream))?;
        Ok(State(regions))
    }

    /// The region of an arena.
    pub fn arena(&self, arena: Arena) -> Result<&Buffer, CudaError> {
        find(&self.0, Memory::Arena(arena)).ok_or_else(|| no_region(Memory::Arena(arena)))
    }
}

fn no_region(memory: Memory) -> CudaError {
    CudaError::Unsupported(format!("the program has no memory for {memory}"))
}

impl Arenas {
    /// Allocates the regions. Gradients that nothing writes are zero, as are counters and the failure. NCCL
    /// allocates those of the regions that it sums.
    pub fn new(
        context: &Arc<Context>,
        sizes: &Sizes,
        stream: &Stream,
        nccl: Option<&Arc<Nccl>>,
    ) -> Result<Self, CudaError> {
        let region = |&(memory, bytes): &(Memory, usize)| {
            let buffer = match nccl {
                Some(nccl) if memory == GRADIENTS => nccl.allocate(context, &memory.to_string(), bytes),
                _ => Buffer::new(context, &memory.to_string(), bytes),
            };
            Ok((memory, buffer?))
        };
        let shared = sizes.shared.iter().map(region).collect::<Result<Vec<_>, CudaError>>()?;
        let zero = [GRADIENTS, Memory::Counters, Memory::Failure];
        zero.iter().filter_map(|&memory| find(&shared, memory)).try_for_each(|buffer| buffer.zero(stream))?;
        let own = [allocate(context, &sizes.own)?, allocate(context, &sizes.own)?];
        Ok(Arenas { shared, own })
    }

    /// Frees all regions. What is bound to them must not run again.
    pub fn free(&mut self) {
        self.shared.clear();
        self.own.iter_mut().for_each(Vec::clear);
    }

    /// Writes the constants of several sequences, one after another.
    pub fn fill_constants(&self, stream: &Stream, constants: &[&Constants]) -> Result<(), CudaError> {
        let region = find(&self.shared, Memory::Constants).ok_or_else(|| no_region(Memory::Constants))?;
        let mut offset = 0;
        for constants in constants {
            region.write(stream, offset, constants.bytes())?;
            offset += constants.bytes().len().next_multiple_of(ALIGNMENT);
        }
        Ok(())
    }

    /// The region of a step, by the step's number among [`STEPS`].
    pub fn region<'a>(&'a self, state: &'a State, step: usize, memory: Memory) -> Result<&'a Buffer, CudaError> {
        let regions = [&self.shared, &self.own[step], &state.0];
        regions.into_iter().find_map(|regions| find(regions, memory)).ok_or_else(|| no_region(memory))
    }

    /// The address of a place in a step.
    pub fn address(&self, state: &State, step: usize, place: Place) -> Result<u64, CudaError> {
        Ok(self.region(state, step, place.memory)?.address() + place.offset as u64)
    }
}
