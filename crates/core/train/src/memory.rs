//! The memory of a run: stated before its first step, and compared with what is free.
//!
//! The kernel gives memory when it is first written, so a run that needs too much would be killed
//! in the middle of its first step. All ranks therefore tell what they need before any writes to
//! its arenas. The ranks of a machine together must find that much in the machine and in their
//! control groups. Otherwise the run ends there, and names the largest batch whose plan fits.
//!
//! # What is counted
//!
//! What is stated is the peak of a rank's process ([`RankMemory`]):
//!
//! - what the device plans (`Device::memory`, which allocates nothing),
//! - the batches that exist at a time,
//! - a base: what the process has before it writes to its arenas, with an allowance for what comes
//!   later.
//!
//! The base has what each loader thread takes for the largest of a few images
//! (`Locality::reading_bytes`). A larger image is not counted, and a much smaller one after it frees
//! its memory (`files::reuse`).
//!
//! Processes of one machine share the pages of the program and the memory through which they
//! exchange data. Each process's peak has them, but the machine has them once, so ranks are compared
//! with what is free by the rest (`ProcessMemory::shared`).
//!
//! # What keeps the peak low
//!
//! Checkpoints and exports are converted to PyTorch's order and written 4 MiB at a time, so they
//! take no second copy of the weights. Files are read one tensor at a time, except those of
//! `--weights`.
//!
//! Memory whose size comes from a file is reserved by `files::reserve`, and lack of it is an error
//! that names the file. For what a library takes without asking, `files::require` asks first.

use enmasse_comm::{BufferBytes, Group};
use enmasse_device::{Device, Hosting, Memory};
use enmasse_graph::{Arena, Plans};
use enmasse_system::machine::{Bound, Free, ResidentMemory};
use serde::Serialize;

use crate::TrainError;

/// What a rank takes at its peak, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RankMemory {
    /// Whether activations, weights and libraries are in the device's own memory, and not in the process.
    pub on_device: bool,
    /// Values of a step, and the device's scratch.
    pub activations: usize,
    /// Parameters, running statistics, gradients, the optimiser's state, averages.
    pub weights: usize,
    /// An allowance for what libraries take on the device by themselves, such as cuDNN and NCCL.
    pub libraries: usize,
    /// Batches that are made ahead of their use.
    pub batches: usize,
    /// The program itself, the index of its data, decoders, buffers of files and of other ranks.
    pub base: usize,
}

impl RankMemory {
    /// The sum of all parts in the memory of the process.
    pub fn total(&self) -> usize {
        let program = if self.on_device { 0 } else { self.program() };
        [program, self.batches, self.base].into_iter().fold(0, usize::saturating_add)
    }

    /// The sum of all parts on the device, or the same of a device that takes memory of the process.
    pub fn on_device(&self) -> usize {
        if self.on_device { self.program() } else { self.total() }
    }

    fn program(&self) -> usize {
        [self.activations, self.weights, self.libraries].into_iter().fold(0, usize::saturating_add)
    }

    /// Of a program and its batches in a process that already has `resident` bytes, shared by `sharers` ranks.
    pub(crate) fn new(program: Memory, on_device: bool, batches: usize, process: &ProcessMemory) -> Self {
        let Memory { state, gradients, activations, scratch, library, staging } = program;
        let weights = state + gradients;
        // Files are read before a step has written to the arenas.
        let later = if on_device { batches } else { activations + scratch + gradients + batches };
        RankMemory {
            on_device,
            activations: activations + scratch,
            weights,
            libraries: library,
            batches,
            base: process.bytes() + staging + process.loading.saturating_sub(later),
        }
    }
}

/// The memory of a program with these plans. If arenas alone need more than is free, only theirs: what a device prepares grows with the
/// batch, and would not fit either.
pub(crate) fn program_memory(device: &dyn Device, plans: &Plans, hosting: &Hosting) -> Result<Memory, TrainError> {
    let free = device.free_memory()?.or_else(|| usize::try_from(Free::gather()?.bytes).ok());
    let arenas = Memory {
        state: plans.arenas().into_iter().filter(|(arena, _)| arena.outlives_step()).map(|(_, bytes)| bytes).sum(),
        gradients: plans.arena_bytes(Arena::Gradients),
        activations: plans.arena_bytes(Arena::Activations),
        scratch: 0,
        library: 0,
        staging: 0,
    };
    if free.is_some_and(|free| arenas.total() > free) { Ok(arenas) } else { Ok(device.memory(plans, hosting)?) }
}

/// Checks that a program fits into the device's own memory, if it has any. `with_batch` is what the program takes with another
/// batch; the error names the largest that fits.
pub(crate) fn check_device_memory(
    device: &dyn Device,
    program: Memory,
    batch: usize,
    with_batch: &dyn Fn(usize) -> Result<Memory, TrainError>,
) -> Result<(), TrainError> {
    let Some(free) = device.free_memory()?.filter(|&free| program.total() > free) else { return Ok(()) };
    let batch = largest_batch(batch, &mut |batch| Ok(with_batch(batch)?.total() <= free))?;
    Err(TrainError::DeviceMemory { needed: program.total() as u64, free: free as u64, batch })
}

/// A process before it writes to its arenas.
#[derive(Default)]
pub(crate) struct ProcessMemory {
    /// Its resident memory.
    pub resident: ResidentMemory,
    /// The number of ranks that are its threads.
    pub ranks: usize,
    /// The memory through which a rank's data pass to other ranks.
    pub exchange: BufferBytes,
    /// Decoding threads of a rank, and the bytes that each takes.
    pub decoders: [usize; 2],
    /// Bytes that the data set keeps of what it has read.
    pub kept: usize,
    /// Bytes of what a rank fetches ahead at a time.
    pub ahead: usize,
    /// Bytes of a weights file, or of its largest tensor, that are in memory while weights are loaded.
    pub loading: usize,
}

impl ProcessMemory {
    /// Stacks, the heap's slack, logs and charts, and the pieces in which files are written.
    const GROWTH: usize = 4 << 20;
    /// Code that has not run yet.
    const CODE: usize = 8 << 20;

    /// A rank's share of what is resident and no other process has.
    pub fn own_resident(&self) -> usize {
        self.resident.own as usize / self.ranks
    }

    /// A rank's share of what all processes of the machine have together: it is there once, and clean pages of files count as free.
    pub fn shared(&self) -> usize {
        (self.resident.shared as usize + Self::CODE) / self.ranks + self.of_local_peers()
    }

    /// Ranks that are threads of one process have that memory as their own.
    fn of_local_peers(&self) -> usize {
        if self.ranks > 1 { 0 } else { self.exchange.of_local_peers }
    }

    /// A rank's share of the process.
    fn bytes(&self) -> usize {
        let [threads, bytes] = self.decoders;
        self.own_resident()
            + self.shared()
            + (Self::GROWTH + self.kept) / self.ranks
            + self.exchange.own
            + threads * bytes
            + self.ahead
    }
}

/// What a rank of a machine needs, and what it has, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Need {
    /// A number that only the ranks of its machine, or of its container there, have.
    machine: i64,
    /// At its peak, without what other processes have too.
    peak: i64,
    /// What of that is resident already.
    resident: i64,
    /// What its process could get in addition; negative if unknown.
    free: i64,
    /// Whether that is the limit of a control group.
    limited: bool,
}

/// A machine whose ranks need more than is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shortage {
    /// The number of its ranks.
    ranks: usize,
    needed: i64,
    free: i64,
    limited: bool,
}

/// The first machine whose ranks together need more than they have and could get.
fn shortage(needs: &[Need]) -> Option<Shortage> {
    shortages(needs).next()
}

/// The same of each rank's machine.
fn shortages(needs: &[Need]) -> impl Iterator<Item = Shortage> {
    needs.iter().filter_map(|first| {
        let ranks: Vec<&Need> = needs.iter().filter(|need| need.machine == first.machine).collect();
        let sum = |part: fn(&Need) -> i64| ranks.iter().map(|need| part(need)).fold(0, i64::saturating_add);
        let tightest = ranks.iter().filter(|need| need.free >= 0).min_by_key(|need| need.free)?;
        let needed = sum(|need| need.peak);
        let free = tightest.free.saturating_add(sum(|need| need.resident));
        (needed > free).then_some(Shortage { ranks: ranks.len(), needed, free, limited: tightest.limited })
    })
}

/// Bytes of activations that a rank must save, on the rank where these are most, so that the programs of all fit into what is free; 0 if
/// they do. All ranks of a group call it.
pub(crate) fn excess(
    device: &dyn Device,
    group: Option<&Group>,
    plans: &Plans,
    hosting: &Hosting,
    batches: usize,
    process: &ProcessMemory,
) -> Result<usize, TrainError> {
    let program = program_memory(device, plans, hosting)?;
    let free = device.free_memory()?;
    let memory = RankMemory::new(program, free.is_some(), batches, process);
    let needs = gather(group, memory.total(), process)?;
    let of_machines = shortages(&needs).map(|short| (short.needed - short.free) as usize / short.ranks + 1);
    let own = match free {
        Some(free) => program.total().saturating_sub(free),
        None => of_machines.max().unwrap_or(0),
    };
    let mut all = vec![i64::try_from(own).unwrap_or(i64::MAX)];
    if let Some(group) = group {
        let own = all.clone();
        all.resize(group.world_size(), 0);
        group.all_gather(&own, &mut all)?;
    }
    Ok(all.into_iter().max().map_or(0, |most| most as usize))
}

/// The largest batch below `batch` for which `fits`, which holds for all batches below one for which it holds.
fn largest_batch(
    batch: usize,
    fits: &mut dyn FnMut(usize) -> Result<bool, TrainError>,
) -> Result<Option<usize>, TrainError> {
    let (mut fitting, mut too_large) = (0, batch);
    while too_large - fitting > 1 {
        let middle = fitting + (too_large - fitting) / 2;
        match fits(middle)? {
            true => fitting = middle,
            false => too_large = middle,
        }
    }
    Ok((fitting > 0).then_some(fitting))
}

/// Checks that the ranks of each machine together find the memory that they need; `own` is this rank's peak, in this process.
/// `with_batch` is this rank's total with another batch. All ranks of a group call it, and all get the same error, which
/// names the largest batch that fits.
pub(crate) fn check_memory(
    group: Option<&Group>,
    own: usize,
    process: &ProcessMemory,
    batch: usize,
    with_batch: &dyn Fn(usize) -> Result<usize, TrainError>,
) -> Result<(), TrainError> {
    let needs = gather(group, own, process)?;
    let Some(short) = shortage(&needs) else { return Ok(()) };
    // Ranks differ little in what a smaller batch saves them. Rank 0 plans for all.
    let mut largest = [0];
    if group.is_none_or(|group| group.rank() == 0) {
        let fits = &mut |batch: usize| {
            let saved = own.saturating_sub(with_batch(batch)?).saturating_mul(short.ranks);
            Ok(short.needed.saturating_sub(saved as i64) <= short.free)
        };
        largest[0] = largest_batch(batch, fits)?.map_or(0, |batch| batch as i64);
    }
    if let Some(group) = group {
        group.broadcast(&mut largest, 0)?;
    }
    Err(TrainError::Memory {
        ranks: short.ranks,
        needed: short.needed as u64,
        free: short.free as u64,
        limited: short.limited,
        batch: usize::try_from(largest[0]).ok().filter(|&batch| batch > 0),
    })
}

/// Checks that this process alone finds the memory for a program of `plans` and a batch of images. `compile` makes the plans
/// for other batches; an error names the largest that fits.
///
/// # Errors
/// There is too little memory on the machine or on the device, or the device cannot run the plans.
pub fn require_memory(
    device: &dyn Device,
    plans: &Plans,
    compile: &dyn Fn(usize) -> Result<Plans, TrainError>,
) -> Result<(), TrainError> {
    let process = ProcessMemory { resident: ResidentMemory::gather(), ranks: 1, ..ProcessMemory::default() };
    let program = |plans: &Plans| program_memory(device, plans, &Hosting::new(plans, None)?);
    check_device_memory(device, program(plans)?, plans.evaluate.batch, &|batch| program(&compile(batch)?))?;
    let on_device = device.free_memory()?.is_some();
    let total = |plans: &Plans| {
        let images = plans.evaluate.shape(plans.evaluate.images).elements() * Hosting::new(plans, None)?.count();
        Ok(RankMemory::new(program(plans)?, on_device, images, &process).total())
    };
    let with_batch = |batch: usize| total(&compile(batch)?);
    check_memory(None, total(plans)?, &process, plans.evaluate.batch, &with_batch)
}

/// The number of a machine, from the identity of its kernel's boot, since several machines may have one name. The name tells apart the
/// containers of a machine, each of which may have a limit of its own.
fn machine(boot: &[u8], host: &[u8]) -> i64 {
    let hash = blake3::hash(&[boot, host].concat());
    hash.as_bytes().iter().take(8).fold(0, |number, &byte| number << 8 | i64::from(byte))
}

/// The needs of all ranks, in rank order; `own` is the peak of this one, in this process.
fn gather(group: Option<&Group>, own: usize, process: &ProcessMemory) -> Result<Vec<Need>, TrainError> {
    let kernel = |name: &str| std::fs::read(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
    let machine = machine(&kernel("random/boot_id"), &kernel("hostname"));
    let free = Free::gather();
    let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let own = [
        machine,
        bytes(own.saturating_sub(process.shared()) as u64),
        bytes(process.own_resident() as u64),
        free.map_or(-1, |free| bytes(free.bytes)),
        i64::from(free.is_some_and(|free| free.bound == Bound::ControlGroup)),
    ];
    let mut all = own.to_vec();
    if let Some(group) = group {
        all.resize(own.len() * group.world_size(), 0);
        group.all_gather(&own, &mut all)?;
    }
    let (needs, _) = all.as_chunks();
    let need = |&[machine, peak, resident, free, limited]: &[i64; 5]| {
        let limited = limited != 0;
        Need { machine, peak, resident, free, limited }
    };
    Ok(needs.iter().map(need).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortages() {
        // Ranks as (machine, need, resident, free, limited).
        let check = |ranks: &[(i64, i64, i64, i64, bool)], expected: Option<(usize, i64, i64, bool)>| {
            let need = |&(machine, peak, resident, free, limited)| Need { machine, peak, resident, free, limited };
            let found = shortage(&ranks.iter().map(need).collect::<Vec<_>>());
            let expected = expected.map(|(ranks, needed, free, limited)| Shortage { ranks, needed, free, limited });
            assert_eq!(found, expected, "{ranks:?}");
        };
        check(&[(7, 50, 10, 40, false)], None);
        check(&[(7, 51, 10, 40, false)], Some((1, 51, 50, false)));
        check(&[(7, 51, 10, 40, true)], Some((1, 51, 50, true)));
        check(&[(7, 51, 10, 0, true)], Some((1, 51, 10, true)));
        // Unknown.
        check(&[(7, 51, 10, -1, false)], None);
        // The ranks of a machine share its memory, and the tightest report counts.
        check(&[(7, 50, 10, 80, false), (7, 50, 10, 81, false)], None);
        check(&[(7, 51, 10, 80, false), (7, 50, 10, 81, false)], Some((2, 101, 100, false)));
        check(&[(7, 50, 10, 90, false), (7, 50, 10, 79, true)], Some((2, 100, 99, true)));
        check(&[(7, 50, 10, 90, false), (7, 50, 10, -1, true)], None);
        // Machines do not.
        check(&[(7, 50, 10, 40, false), (8, 50, 10, 40, false)], None);
        check(&[(7, 50, 10, 40, false), (8, 60, 10, 40, true)], Some((1, 60, 50, true)));
        check(&[(7, i64::MAX, 0, 1, false), (7, i64::MAX, 0, 1, false)], Some((2, i64::MAX, 1, false)));
    }

    /// Regression test: the needs of machines that had the same name were added up.
    #[test]
    fn machines_are_told_apart_by_more_than_their_name() {
        let check = |one: [&str; 2], other: [&str; 2], expected: bool| {
            let number = |[boot, host]: [&str; 2]| machine(boot.as_bytes(), host.as_bytes());
            assert_eq!(number(one) == number(other), expected, "{one:?} {other:?}");
        };
        check(["b7\n", "node\n"], ["b7\n", "node\n"], true);
        check(["b7\n", "localhost\n"], ["c2\n", "localhost\n"], false);
        check(["b7\n", "container-1\n"], ["b7\n", "container-2\n"], false);
        // Without the identity of the boot.
        check(["", "node-1\n"], ["", "node-1\n"], true);
        check(["", "node-1\n"], ["", "node-2\n"], false);
    }

    /// Regression test: 512 small ranks of one machine were refused, since each counted the program and the buffers of the others.
    #[test]
    fn what_processes_share_is_counted_once() {
        const MIB: usize = 1 << 20;
        // Of this many ranks in a process: the peak of one, and what it adds to its machine, in MiB.
        let check = |ranks: usize, expected: (usize, usize)| {
            let process = ProcessMemory {
                resident: ResidentMemory { own: 16 << 20, shared: 24 << 20 },
                ranks,
                exchange: BufferBytes { own: MIB, of_local_peers: 7 * MIB },
                ..ProcessMemory::default()
            };
            let program = Memory { state: 0, gradients: 0, activations: 0, scratch: 0, library: 0, staging: 0 };
            let peak = RankMemory::new(program, false, 0, &process).total();
            assert_eq!((peak / MIB, (peak - process.shared()) / MIB), expected, "{ranks}");
        };
        check(1, (16 + 24 + 12 + 8, 16 + 4 + 1));
        check(4, (4 + 6 + 3 + 1, 4 + 1 + 1));
    }

    #[test]
    fn batches_that_fit() {
        let check = |batch: usize, most: usize, expected: Option<usize>| {
            let mut asked = 0;
            let found = largest_batch(batch, &mut |batch| {
                asked += 1;
                Ok(batch <= most)
            });
            assert_eq!(found.unwrap(), expected, "{batch} {most}");
            assert!(asked <= usize::BITS - batch.leading_zeros(), "{asked} plans");
        };
        check(1, 1, None);
        check(2, 1, Some(1));
        check(2, 0, None);
        check(64, 12, Some(12));
        check(64, 63, Some(63));
        check(1000, 0, None);
    }
}
