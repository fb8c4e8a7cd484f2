//! Which rank hosts which shards, and the order in which it adds up their values.
//!
//! The number of shards fixes the arithmetic of a run: sums go through the one binary tree over shards. Ranks host
//! contiguous shards, so a rank adds up whole subtrees by itself and passes those partial sums to the group. The bits
//! are then the same on any number of ranks. Everything here depends only on the two numbers.

use std::ops::Range;

use thiserror::Error;

/// The size of the left part of a group of `n > 1`.
pub(crate) const fn split(n: usize) -> usize {
    1 << (n - 1).ilog2()
}

/// Limit of a rank's partial sums: at every level of the tree a range of shards leaves at most two subtrees.
pub(crate) const PARTIALS_LIMIT: usize = 2 * usize::BITS as usize;

/// How shards are divided among ranks: in order; if the numbers do not divide, the first ranks host one more.
///
/// ```
/// use enmasse_comm::ShardMap;
/// let map = ShardMap::new(6, 2)?;
/// assert_eq!((map.local(0), map.local(1)), (0..3, 3..6));
/// // The tree over six shards is ((0+1)+(2+3)) + (4+5), so 2 and 3 meet only in the sum over ranks.
/// assert_eq!(map.partials(0).collect::<Vec<_>>(), [0..2, 2..3]);
/// assert_eq!(map.partials(1).collect::<Vec<_>>(), [3..4, 4..6]);
/// # Ok::<(), enmasse_comm::ShardsError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShardMap {
    shards: usize,
    ranks: usize,
    /// Shards that every rank hosts.
    each: usize,
    /// Ranks that host one more shard.
    larger: usize,
}

/// There are fewer shards than ranks, or no ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{shards} shards cannot be divided among {ranks} ranks: every rank hosts at least one")]
pub struct ShardsError {
    /// The requested shards.
    pub shards: usize,
    /// The requested ranks.
    pub ranks: usize,
}

/// One shard that a rank hosts, in [`ShardMap::schedule`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalShard {
    /// Its number among all shards.
    pub shard: usize,
    /// The slot for its values.
    pub slot: usize,
    /// The additions to perform, in order, as soon as the values are there.
    pub folds: Vec<Fold>,
}

/// One addition: `into = into + from`, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fold {
    /// The slot of the left operand and of the sum.
    pub into: usize,
    /// The slot of the right operand, which is free afterwards.
    pub from: usize,
}

impl ShardMap {
    /// Fails if some rank would host no shard.
    ///
    /// # Errors
    /// There are fewer shards than ranks, or no ranks.
    pub const fn new(shards: usize, ranks: usize) -> Result<Self, ShardsError> {
        if ranks == 0 || shards < ranks {
            return Err(ShardsError { shards, ranks });
        }
        Ok(ShardMap { shards, ranks, each: shards / ranks, larger: shards % ranks })
    }

    /// One shard per rank, and at least one rank.
    pub(crate) const fn one_each(ranks: usize) -> Self {
        let ranks = if ranks == 0 { 1 } else { ranks };
        ShardMap { shards: ranks, ranks, each: 1, larger: 0 }
    }

    /// The number of shards.
    pub const fn shards(&self) -> usize {
        self.shards
    }

    /// The number of ranks that host them.
    pub const fn ranks(&self) -> usize {
        self.ranks
    }

    /// The shards of a rank; empty for a rank that does not exist.
    pub fn local(&self, rank: usize) -> Range<usize> {
        let start = |rank: usize| (rank * self.each + rank.min(self.larger)).min(self.shards);
        start(rank.min(self.ranks))..start(rank.saturating_add(1).min(self.ranks))
    }

    /// The largest subtrees of the tree over all shards that lie within a rank's shards, in order. Their sums are the
    /// partial sums that the rank passes to the group: a single one if both numbers are powers of two, and at most 2
    /// log2(shards).
    pub fn partials(&self, rank: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        self.subtrees(self.local(rank))
    }

    /// The shards of adjacent ranks.
    pub(crate) fn local_by(&self, ranks: &Range<usize>) -> Range<usize> {
        self.local(ranks.start).start..self.local(ranks.end - 1).end
    }

    /// The largest subtrees of the tree over all shards that lie within `local`, in order.
    pub(crate) fn subtrees(&self, local: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let shards = self.shards;
        let mut next = local.start;
        std::iter::from_fn(move || {
            if next == local.end {
                return None;
            }
            let mut node = 0..shards;
            while node.start < local.start || node.end > local.end {
                let middle = node.start + split(node.len());
                node = if next < middle { node.start..middle } else { middle..node.end };
            }
            next = node.end;
            Some(node)
        })
    }

    /// The greatest number of partial sums on any rank.
    pub(crate) fn most_partials(&self) -> usize {
        if self.shards == self.ranks {
            return 1;
        }
        (0..self.ranks).map(|rank| self.partials(rank).count()).max().unwrap_or(0)
    }

    /// The order in which a rank processes its shards. Each shard's values go into a slot, and are added to earlier
    /// ones as soon as the tree allows. In the end slot j holds partial sum j. The number of values held at a time is
    /// at most the depth of the tree.
    ///
    /// ```
    /// use enmasse_comm::{Fold, ShardMap};
    /// let schedule = ShardMap::new(4, 1)?.schedule(0);
    /// let steps: Vec<_> = schedule.iter().map(|step| (step.shard, step.slot, step.folds.as_slice())).collect();
    /// let (left, right) = (Fold { into: 0, from: 1 }, Fold { into: 1, from: 2 });
    /// assert_eq!(steps, [(0, 0, &[][..]), (1, 1, &[left]), (2, 1, &[]), (3, 2, &[right, left])]);
    /// # Ok::<(), enmasse_comm::ShardsError>(())
    /// ```
    pub fn schedule(&self, rank: usize) -> Vec<LocalShard> {
        let mut steps = Vec::with_capacity(self.local(rank).len());
        for (slot, partial) in self.partials(rank).enumerate() {
            append(&mut steps, partial, slot);
        }
        steps
    }

    /// The number of slots in a rank's schedule.
    pub fn slots(&self, rank: usize) -> usize {
        /// Slots for a subtree of `n` shards: its left part is computed first, then its right part next to one sum.
        fn of_subtree(n: usize) -> usize {
            if n == 1 { 1 } else { of_subtree(split(n)).max(1 + of_subtree(n - split(n))) }
        }
        self.partials(rank).enumerate().map(|(held, partial)| held + of_subtree(partial.len())).max().unwrap_or(0)
    }

    /// A walk over the partial sums of all ranks, in shard order.
    pub(crate) fn walk(&self) -> Walk<impl Fn(usize) -> usize + Copy + use<>> {
        self.walk_from(0, 0)
    }

    /// The same from one partial sum of a rank on.
    pub(crate) fn walk_from(&self, rank: usize, partial: usize) -> Walk<impl Fn(usize) -> usize + Copy + use<>> {
        let map = *self;
        Walk::new(rank, partial, move |rank| map.local(rank).end)
    }
}

/// Appends the steps of a subtree whose sum goes into `slot`.
fn append(steps: &mut Vec<LocalShard>, node: Range<usize>, slot: usize) {
    if node.len() == 1 {
        return steps.push(LocalShard { shard: node.start, slot, folds: vec![] });
    }
    let middle = node.start + split(node.len());
    append(steps, node.start..middle, slot);
    append(steps, middle..node.end, slot + 1);
    if let Some(last) = steps.last_mut() {
        last.folds.push(Fold { into: slot, from: slot + 1 });
    }
}

/// A walk over operands of the tree in shard order. Each operand is a partial sum of a *host*: a rank, or a node whose ranks
/// have added up theirs. The position is the next partial sum, if the tree's next node is one.
#[derive(Clone, Copy)]
pub(crate) struct Walk<E> {
    /// Where the adjacent shards of each host end.
    ends: E,
    host: usize,
    partial: usize,
    /// The end of this host's shards.
    end: usize,
}

impl<E: Fn(usize) -> usize> Walk<E> {
    /// From partial sum `partial` of `host` on.
    pub(crate) fn new(host: usize, partial: usize, ends: E) -> Self {
        Walk { end: ends(host), ends, host, partial }
    }

    /// The host of all of `node`, and the index of `node` among its partial sums; `None` if several hosts share the node.
    ///
    /// The caller descends from a root, left to right, so a node begins where the last partial sum ended.
    pub(crate) fn take(&mut self, node: &Range<usize>) -> Option<(usize, usize)> {
        if node.end > self.end {
            return None;
        }
        let taken = (self.host, self.partial);
        self.partial += 1;
        if node.end == self.end {
            self.host += 1;
            self.partial = 0;
            self.end = (self.ends)(self.host);
        }
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tree_fold;
    use proptest::prelude::*;

    #[test]
    fn ranks_host_shards_in_order() {
        let check = |shards: usize, ranks: usize, expected: &[[usize; 2]]| {
            let map = ShardMap::new(shards, ranks).unwrap();
            let local: Vec<_> = (0..ranks).map(|rank| [map.local(rank).start, map.local(rank).end]).collect();
            assert_eq!(local, expected, "{shards} on {ranks}");
            assert!(map.local(ranks).is_empty() && map.local(usize::MAX).is_empty());
        };
        check(1, 1, &[[0, 1]]);
        check(4, 4, &[[0, 1], [1, 2], [2, 3], [3, 4]]);
        check(4, 3, &[[0, 2], [2, 3], [3, 4]]);
        check(6, 4, &[[0, 2], [2, 4], [4, 5], [5, 6]]);
    }

    #[test]
    fn every_rank_hosts_a_shard() {
        let check = |shards: usize, ranks: usize| {
            let error = ShardMap::new(shards, ranks).unwrap_err().to_string();
            let expected =
                format!("{shards} shards cannot be divided among {ranks} ranks: every rank hosts at least one");
            assert_eq!(error, expected);
        };
        check(2, 3);
        check(0, 1);
        check(4, 0);
    }

    #[test]
    fn partials_are_the_largest_subtrees() {
        let check = |shards: usize, ranks: usize, rank: usize, expected: &[[usize; 2]]| {
            let map = ShardMap::new(shards, ranks).unwrap();
            let partials: Vec<_> = map.partials(rank).map(|partial| [partial.start, partial.end]).collect();
            assert_eq!(partials, expected, "rank {rank}: {shards} on {ranks}");
        };
        check(8, 1, 0, &[[0, 8]]);
        check(8, 2, 1, &[[4, 8]]);
        check(4, 3, 0, &[[0, 2]]);
        check(6, 2, 0, &[[0, 2], [2, 3]]);
        check(6, 2, 1, &[[3, 4], [4, 6]]);
        check(16, 3, 1, &[[6, 8], [8, 10], [10, 11]]);
        check(16, 3, 2, &[[11, 12], [12, 16]]);
    }

    /// A rank's sums as text: the contents of its slots after its schedule, and the number of slots used.
    fn run(map: &ShardMap, rank: usize) -> (Vec<String>, usize) {
        let mut slots = vec![];
        let mut used = 0;
        for step in map.schedule(rank) {
            // A stack: no value that is still needed is overwritten, and no slot is skipped.
            assert_eq!(step.slot, slots.len());
            slots.push(step.shard.to_string());
            used = used.max(slots.len());
            for Fold { into, from } in step.folds {
                assert_eq!((into + 2, from + 1), (slots.len(), slots.len()));
                let right = slots.pop().unwrap();
                let left = slots.pop().unwrap();
                slots.push(format!("({left}+{right})"));
            }
        }
        (slots, used)
    }

    proptest! {
        #[test]
        fn schedules_add_up_the_tree(shards in 1usize..70, ranks in 1usize..9) {
            prop_assume!(ranks <= shards);
            let map = ShardMap::new(shards, ranks).unwrap();
            let sums: Vec<_> = (0..ranks).map(|rank| run(&map, rank)).collect();
            for (rank, (sums, slots)) in sums.iter().enumerate() {
                prop_assert_eq!(sums.len(), map.partials(rank).count());
                prop_assert_eq!(*slots, map.slots(rank));
                prop_assert!(sums.len() <= map.most_partials());
            }

            /// The tree over shards, using the ranks' sums for nodes that one rank hosts.
            fn join<E: Fn(usize) -> usize>(
                node: Range<usize>,
                walk: &mut Walk<E>,
                sums: &[(Vec<String>, usize)],
            ) -> String {
                if let Some((rank, partial)) = walk.take(&node) {
                    return sums[rank].0[partial].clone();
                }
                let middle = node.start + split(node.len());
                let left = join(node.start..middle, walk, sums);
                let right = join(middle..node.end, walk, sums);
                format!("({left}+{right})")
            }
            let whole = tree_fold(shards, &mut |s| s.to_string(), &mut |a, b| format!("({a}+{b})")).unwrap();
            prop_assert_eq!(join(0..shards, &mut map.walk(), &sums), whole);
        }
    }
}
