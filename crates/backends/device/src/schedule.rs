//! How one program computes several shards: where the gradients of each are, and when they are
//! added up.
//!
//! The shards of a rank run one after another and share one arena of activations. Each writes a
//! gradient arena, which is added to the others, bucket by bucket, as soon as the tree over shards
//! allows. So k shards need about log2(k) additional gradient arenas.
//!
//! With SyncBatchNorm the shards exchange statistics in the middle of a pass. Then they run
//! together, instruction by instruction, each with activations of its own.

use std::ops::Range;

use enmasse_comm::{Fold, LocalShard};
use enmasse_graph::{Mode, Phase, Plan, Stage};

use crate::{DeviceError, Hosting};

/// The local shards in execution order, and what the program holds for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardSchedule {
    /// The shards, in the order in which they run.
    pub shards: Vec<LocalShard>,
    /// Whether all shards run each instruction before any shard runs the next. This is so if they exchange statistics
    /// in the middle of a pass, and each shard then has its own activations. Otherwise they run one after another and
    /// share one arena of activations.
    pub lockstep: bool,
    /// Micro-batches whose activations a stage of a model holds at a time; `None` if the plans are the whole model's.
    pub in_flight: Option<usize>,
    /// Number of gradient arenas.
    pub slots: usize,
    /// The shards of each partial sum that this rank contributes, as indices among the local shards.
    pub partials: Vec<Range<usize>>,
}

impl ShardSchedule {
    /// The schedule of a program's local shards; `train` is its training plan, if it has one.
    pub fn new(hosting: &Hosting, train: Option<&Plan>) -> Self {
        let exchanges = |plan: &Plan| plan.instructions.iter().any(|node| node.op.is_joint());
        let lockstep = hosting.count() > 1 && train.is_some_and(exchanges);
        let shards = if lockstep { together(hosting) } else { hosting.map().schedule(hosting.rank()) };
        let slots = shards.iter().map(|shard| shard.slot + 1).max().unwrap_or(1);
        let first = hosting.shards().start;
        let partials = hosting.map().partials(hosting.rank()).map(|part| part.start - first..part.end - first);
        let in_flight = train.and_then(|plan| plan.stage.as_ref()).map(Stage::in_flight);
        ShardSchedule { shards, lockstep, in_flight, slots, partials: partials.collect() }
    }

    /// One shard that represents all, for inspecting or measuring instructions.
    pub fn sample() -> Self {
        let shard = LocalShard { shard: 0, slot: 0, folds: Vec::new() };
        ShardSchedule {
            shards: vec![shard],
            lockstep: false,
            in_flight: None,
            slots: 1,
            partials: std::iter::once(0..1).collect(),
        }
    }

    /// Number of activation arenas.
    pub fn activations(&self) -> usize {
        if self.lockstep { self.shards.len() } else { self.in_flight.unwrap_or(1) }
    }

    /// The activation arena of a local shard.
    pub fn activations_of(&self, local: usize) -> usize {
        local % self.activations()
    }

    /// Whether the results of each shard must be saved, because the next shard overwrites them.
    pub fn overwrites(&self) -> bool {
        self.activations() < self.shards.len()
    }

    /// Refuses phases that would overwrite what other shards need: shards that run one after another share activations.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] for a part of a step's phases, if this program runs its shards one after another.
    pub fn check_phases(&self, mode: Mode, phases: &[Phase]) -> Result<(), DeviceError> {
        let whole: &[Phase] = match mode {
            Mode::Train => &[Phase::Forward, Phase::Loss, Phase::Backward],
            Mode::Evaluate => &[Phase::Forward, Phase::Loss],
        };
        if !(self.overwrites() || self.in_flight.is_some()) || !phases[0].is_of_a_shard() || phases.starts_with(whole) {
            return Ok(());
        }
        let shards = self.shards.len();
        let last = whole[whole.len() - 1].name();
        Err(DeviceError::Unsupported(format!(
            "this program runs its {shards} shards one after another: submit forward to {last} of a step at once ({mode:?}), \
             or host one shard per rank"
        )))
    }
}

/// Every shard has a gradient arena, partial sum j begins in arena j, and all sums come after the last shard.
fn together(hosting: &Hosting) -> Vec<LocalShard> {
    let partials: Vec<_> = hosting.map().partials(hosting.rank()).collect();
    let mut others = partials.len()..;
    let mut shards: Vec<LocalShard> = (hosting.shards())
        .map(|shard| {
            let first_of = partials.iter().position(|partial| partial.start == shard);
            let slot = first_of.or_else(|| others.next()).unwrap_or(0);
            LocalShard { shard, slot, folds: Vec::new() }
        })
        .collect();
    let first = hosting.shards().start;
    let mut folds = Vec::new();
    for partial in partials {
        let slot = |shard: usize| shards[shard - first].slot;
        enmasse_comm::tree_fold(partial.len(), &mut |shard| slot(partial.start + shard), &mut |into, from| {
            folds.push(Fold { into, from });
            into
        });
    }
    if let Some(last) = shards.last_mut() {
        last.folds = folds;
    }
    shards
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_that_run_together_keep_their_gradients_until_the_last() {
        let check = |shards: usize, ranks: usize, rank: usize, slots: &[usize], folds: &[(usize, usize)]| {
            let map = enmasse_comm::ShardMap::new(shards, ranks).unwrap();
            let found = together(&Hosting::of(map, rank));
            assert_eq!(found.iter().map(|shard| shard.slot).collect::<Vec<_>>(), slots);
            let last: Vec<_> = found.last().unwrap().folds.iter().map(|fold| (fold.into, fold.from)).collect();
            assert_eq!(last, folds);
            assert!(found[..found.len() - 1].iter().all(|shard| shard.folds.is_empty()));
        };
        check(4, 1, 0, &[0, 1, 2, 3], &[(0, 1), (2, 3), (0, 2)]);
        check(4, 2, 1, &[0, 1], &[(0, 1)]);
        // Shards 0 to 2 of 6 form two partial sums, (0 1) and 2.
        check(6, 2, 0, &[0, 2, 1], &[(0, 2)]);
        check(6, 2, 1, &[0, 1, 2], &[(1, 2)]);
    }
}
