//! The one order in which values are combined over shards, or over ranks with one shard each: a
//! fixed binary tree.
//!
//! A group of n splits at the largest power of two below n: three shards add as `(s0 + s1) + s2`,
//! five as `((s0 + s1) + (s2 + s3)) + s4`. Transport, chunking, arrival order and the number of
//! ranks never change the tree, so they never change a bit. A rank that hosts all shards of a
//! subtree contributes its sum as one operand, and only such partial sums travel. The owner of a
//! slice adds all pieces in the order of the tree, so the traffic equals a ring's.

use std::ops::Range;

use crate::element::{Element, Reduction};
use crate::shards::{Walk, split};

/// Elements combined at a time: few enough for the first-level cache at every level of the tree.
pub(crate) const BLOCK: usize = 512;

/// Combines `leaf(0)`, …, `leaf(n - 1)` in the fixed tree; `None` if `n` is 0.
///
/// ```
/// let text = enmasse_comm::tree_fold(5, &mut |rank| format!("r{rank}"), &mut |a, b| format!("({a}+{b})"));
/// assert_eq!(text.as_deref(), Some("(((r0+r1)+(r2+r3))+r4)"));
/// ```
pub fn tree_fold<T>(n: usize, leaf: &mut impl FnMut(usize) -> T, combine: &mut impl FnMut(T, T) -> T) -> Option<T> {
    fn fold<T>(ranks: Range<usize>, leaf: &mut impl FnMut(usize) -> T, combine: &mut impl FnMut(T, T) -> T) -> T {
        if ranks.len() == 1 {
            return leaf(ranks.start);
        }
        let middle = ranks.start + split(ranks.len());
        let left = fold(ranks.start..middle, leaf, combine);
        let right = fold(middle..ranks.end, leaf, combine);
        combine(left, right)
    }
    (n > 0).then(|| fold(0..n, leaf, combine))
}

/// Combines `len` elements of each partial sum below a node of the fixed tree over shards, and passes on the result block
/// by block. The walk begins at the node's first partial sum.
///
/// `source(host, partial, range)` returns that partial sum's values in the range; `sink(start, values)` receives the
/// result from `start` on. A block is complete before its sink is called, so the sink may overwrite the memory that the
/// source read.
pub(crate) fn tree_reduce<'a, T: Element, E: Fn(usize) -> usize + Copy>(
    node: Range<usize>,
    walk: Walk<E>,
    len: usize,
    reduction: Reduction,
    source: impl Fn(usize, usize, Range<usize>) -> &'a [T],
    mut sink: impl FnMut(usize, &[T]),
) {
    let mut block = [T::default(); BLOCK];
    for start in (0..len).step_by(BLOCK) {
        let range = start..len.min(start + BLOCK);
        let out = &mut block[..range.len()];
        let all = node.clone();
        let walk = &mut { walk };
        let source = |(host, partial): (usize, usize)| source(host, partial, range.clone());
        match reduction {
            Reduction::Sum => reduce_block(all, walk, &source, out, T::sum),
            Reduction::Product => reduce_block(all, walk, &source, out, T::product),
            Reduction::Max => reduce_block(all, walk, &source, out, T::max),
            Reduction::Min => reduce_block(all, walk, &source, out, T::min),
        }
        sink(start, out);
    }
}

fn reduce_block<'a, T: Element, E: Fn(usize) -> usize>(
    shards: Range<usize>,
    walk: &mut Walk<E>,
    source: &impl Fn((usize, usize)) -> &'a [T],
    out: &mut [T],
    combine: impl Fn(T, T) -> T + Copy,
) {
    if let Some(whole) = walk.take(&shards) {
        return out.copy_from_slice(source(whole));
    }
    let middle = shards.start + split(shards.len());
    match walk.take(&(shards.start..middle)) {
        Some(left) => match walk.take(&(middle..shards.end)) {
            // Two operands in place, the usual case at the lowest level: neither is copied.
            Some(right) => {
                for ((out, &left), &right) in out.iter_mut().zip(source(left)).zip(source(right)) {
                    *out = combine(left, right);
                }
                return;
            }
            None => out.copy_from_slice(source(left)),
        },
        None => reduce_block(shards.start..middle, walk, source, out, combine),
    }
    let mut right = [T::default(); BLOCK];
    let right = &mut right[..out.len()];
    reduce_block(middle..shards.end, walk, source, right, combine);
    for (out, &right) in out.iter_mut().zip(&*right) {
        *out = combine(*out, right);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shards::ShardMap;
    use proptest::prelude::*;

    #[test]
    fn splits_at_the_largest_power_of_two_below() {
        for (n, expected) in [(2, 1), (3, 2), (4, 2), (5, 4), (8, 4), (9, 8)] {
            assert_eq!(split(n), expected, "{n}");
        }
        assert_eq!(tree_fold(0, &mut |_| 1, &mut |a, b| a + b), None);
    }

    proptest! {
        #[test]
        fn blocks_follow_the_tree(shards in 1usize..12, ranks in 1usize..12, len in 0usize..1500, seed: u64) {
            prop_assume!(ranks <= shards);
            let map = ShardMap::new(shards, ranks).unwrap();
            let value = |shard: usize, i: usize| {
                let bits = (seed ^ ((shard * 7919 + i) as u64)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                (bits >> 40) as f32 * 10f32.powi((bits % 9) as i32 - 4)
            };
            for reduction in [Reduction::Sum, Reduction::Product, Reduction::Max, Reduction::Min] {
                let mut combine = match reduction {
                    Reduction::Sum => <f32 as Element>::sum,
                    Reduction::Product => <f32 as Element>::product,
                    Reduction::Max => <f32 as Element>::max,
                    Reduction::Min => <f32 as Element>::min,
                };
                // The sums of each rank's own shards.
                let mut sum_up = |partial: Range<usize>| -> Vec<f32> {
                    let mut sum = |i| tree_fold(partial.len(), &mut |s| value(partial.start + s, i), &mut combine).unwrap();
                    (0..len).map(&mut sum).collect()
                };
                let partials: Vec<Vec<_>> =
                    (0..ranks).map(|rank| map.partials(rank).map(&mut sum_up).collect()).collect();
                let mut out = vec![0f32; len];
                tree_reduce(0..shards, map.walk(), len, reduction, |rank, partial, range| &partials[rank][partial][range], |start, values| {
                    out[start..start + values.len()].copy_from_slice(values);
                });
                for (i, out) in out.iter().enumerate() {
                    let plain = tree_fold(shards, &mut |shard| value(shard, i), &mut combine).unwrap();
                    prop_assert_eq!(out.to_bits(), plain.to_bits());
                }
            }
        }
    }
}
