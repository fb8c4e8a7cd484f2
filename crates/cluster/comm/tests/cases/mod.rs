//! What ranks do in a group, and what must come of it. Each function is the part of one rank, and checks that rank's result
//! against a plain model, so that it runs over any transport, with ranks as threads or as processes.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::slice;
use std::sync::Arc;

use enmasse_comm::{Bf16, Element, Fold, Group, Reduction, ShardMap, tree_fold};

pub mod algorithms;
pub mod compressed;
pub mod exchanges;

/// Values of all magnitudes, so that another order of addition would give other bits.
pub fn value(seed: u64, shard: usize, i: usize) -> f64 {
    let bits = (seed ^ (shard as u64) << 40 ^ i as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ bits >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (bits as i64 as f64) * 2f64.powi((bits % 40) as i32 - 80)
}

fn bf16(value: f64) -> Bf16 {
    Bf16::from_f32(value as f32)
}

/// An all-reduce of each type has the bits of the fixed tree.
pub fn same_bits(group: &Group, seed: u64, len: usize, reduction: Reduction) {
    one_type(group, seed, len, reduction, |x| x as f32, |x| x.to_bits().into());
    one_type(group, seed, len, reduction, bf16, |x| x.to_bits().into());
    one_type(group, seed, len, reduction, |x| x, f64::to_bits);
    one_type(group, seed, len, reduction, |x| x.to_bits() as i64, |x| x as u64);
    one_type(group, seed, len, reduction, |x| x.to_bits() as i32, |x| x as u64);
}

fn one_type<T: Element>(
    group: &Group,
    seed: u64,
    len: usize,
    reduction: Reduction,
    element: fn(f64) -> T,
    bits: fn(T) -> u64,
) {
    let mut data: Vec<T> = (0..len).map(|i| element(value(seed, group.rank(), i))).collect();
    group.all_reduce_with(&mut data, reduction).unwrap();
    let mut combine = match reduction {
        Reduction::Sum => T::sum,
        Reduction::Product => T::product,
        Reduction::Max => T::max,
        Reduction::Min => T::min,
    };
    let model = |i| tree_fold(group.world_size(), &mut |rank| element(value(seed, rank, i)), &mut combine).unwrap();
    let same = data.into_iter().map(bits).eq((0..len).map(model).map(bits));
    assert!(same, "{group:?}: other bits, {len} elements of {}, seed {seed}", T::DTYPE.name());
}

/// Sums and copies on memory that is registered have the same bits as on other memory.
pub fn on_lent_memory(group: &Group, len: usize) {
    let (rank, ranks) = (group.rank(), group.world_size());
    let mut memory = Arc::new(vec![0f32; len]);
    let start = Arc::get_mut(&mut memory).unwrap().as_mut_ptr();
    // SAFETY: the vector owns these bytes, and nothing changes its length.
    unsafe { group.register_memory(&memory, start.cast(), len * size_of::<f32>()) };
    // SAFETY: this function alone uses the memory.
    let registered = unsafe { slice::from_raw_parts_mut(start, len) };
    let own = |i| value(len as u64, rank, i) as f32;
    let mut other: Vec<f32> = (0..len).map(own).collect();
    registered.copy_from_slice(&other);
    group.all_reduce(registered).unwrap();
    group.all_reduce(&mut other).unwrap();
    assert!(registered.iter().map(|x| x.to_bits()).eq(other.iter().map(|x| x.to_bits())), "{group:?}, {len}");
    // A part of the memory.
    let part = &mut registered[len / 3..];
    part.iter_mut().enumerate().for_each(|(i, x)| *x = (i % 1000 * (rank + 1)) as f32);
    group.broadcast(part, ranks - 1).unwrap();
    assert!(part.iter().enumerate().all(|(i, &x)| x == (i % 1000 * ranks) as f32), "{group:?}, {len}");
}

/// All-gathers, broadcasts and barriers copy what they should.
pub fn copies(group: &Group, len: usize) {
    let (rank, ranks) = (group.rank(), group.world_size());
    let expected = |i: usize, rank: usize| (i * 7 + rank) as u8;
    let own: Vec<u8> = (0..len).map(|i| expected(i, rank)).collect();
    let mut all = vec![0; len * ranks];
    group.all_gather(&own, &mut all).unwrap();
    assert!((0..ranks).all(|r| (0..len).all(|i| all[r * len + i] == expected(i, r))), "{group:?}, {len}");
    let mut pieces = vec![0u8; len];
    let piece = group.piece::<u8>(rank, len);
    piece.clone().for_each(|i| pieces[i] = (i * 7) as u8);
    group.all_gather_pieces(&mut pieces).unwrap();
    assert!(pieces.iter().enumerate().all(|(i, &x)| x == (i * 7) as u8), "{group:?}, {len}");
    let mut copy = own;
    group.broadcast(&mut copy, ranks - 1).unwrap();
    assert!(copy.iter().enumerate().all(|(i, &x)| x == expected(i, ranks - 1)), "{group:?}, {len}");
    group.barrier().unwrap();
    let few = group.all_gather_bytes(&[1, 2][..rank.min(2)]).unwrap();
    assert_eq!(few, [&[][..], &[1], &[1, 2], &[1, 2], &[1, 2]][..ranks]);
}

/// Every operation once, with numbers whose sums are exact.
pub fn every_operation(group: &Group, len: usize) {
    let (rank, ranks) = (group.rank(), group.world_size());
    let factor = ranks * (ranks + 1) / 2;
    let mut sum: Vec<i32> = (0..len).map(|i| (i * (rank + 1)) as i32).collect();
    group.all_reduce(&mut sum).unwrap();
    assert!(sum.iter().enumerate().all(|(i, &x)| x == (i * factor) as i32), "{group:?}, {len}");
    let mut greatest: Vec<f64> = (0..len).map(|i| (i as f64) * if rank == 0 { 1.0 } else { -1.0 }).collect();
    group.all_reduce_with(&mut greatest, Reduction::Max).unwrap();
    assert!(greatest.iter().enumerate().all(|(i, &x)| x == i as f64), "{group:?}, {len}");
    let mut copy = vec![rank as i64; len];
    group.broadcast(&mut copy, ranks - 1).unwrap();
    assert_eq!(copy, vec![ranks as i64 - 1; len]);
    let mut all = vec![0u8; len * ranks];
    let own = vec![rank as u8 + 1; len];
    group.all_gather(&own, &mut all).unwrap();
    assert!(all.iter().enumerate().all(|(i, &x)| usize::from(x) == i / len + 1), "{group:?}, {len}");
    let mut pieces: Vec<i64> = (0..len).map(|i| (i * (rank + 1)) as i64).collect();
    group.reduce_scatter(&mut pieces).unwrap();
    group.all_gather_pieces(&mut pieces).unwrap();
    assert!(pieces.iter().enumerate().all(|(i, &x)| x == (i * factor) as i64), "{group:?}, {len}");
    let mut each = vec![0u8; len * ranks];
    // SAFETY: both stay untouched until the handle has been waited for.
    unsafe { group.all_gather_start(own.as_ptr(), each.as_mut_ptr(), len) }.wait().unwrap();
    assert_eq!(each, all);
    group.barrier().unwrap();
}

/// Operations that were started end in order, and before a later call.
pub fn started_in_order(group: &Group) {
    let mut buckets = vec![vec![1f32; 5000]; 300];
    // SAFETY: `buckets` stays untouched until all handles have been waited for.
    let handles: Vec<_> =
        buckets.iter_mut().map(|b| unsafe { group.all_reduce_start(b.as_mut_ptr(), b.len()) }).collect();
    let mut after = [1i64];
    group.all_reduce(&mut after).unwrap();
    assert!(handles.iter().all(|handle| handle.is_done()), "a blocking call overtook earlier operations");
    for handle in handles {
        handle.wait().unwrap();
    }
    assert!(buckets.iter().flatten().all(|&x| x == group.world_size() as f32), "{group:?}");
    assert_eq!(after, [group.world_size() as i64]);
}

/// A number of shards, and their values.
#[derive(Clone, Copy, Debug)]
pub struct Shards {
    pub shards: usize,
    pub len: usize,
    /// Elements between one slot and the next.
    pub gap: usize,
    pub seed: u64,
}

/// The operations that the ranks use to sum.
#[derive(Clone, Copy, Debug)]
enum How {
    Blocking,
    Started,
    /// Each rank its piece, and then all pieces.
    InPieces,
    /// Each rank its part, of any length, and then all parts.
    InParts,
    /// The last rank everything, and then all others.
    ByOne,
}

/// The sum over shards has the bits of the fixed tree, for every type.
pub fn sums_over_shards(group: &Group, case: Shards) {
    sums_of(group, case, |x| x as f32, |x| x.to_bits().into());
    sums_of(group, case, bf16, |x| x.to_bits().into());
    sums_of(group, case, |x| x, f64::to_bits);
    sums_of(group, case, |x| x.to_bits() as i64, |x| x as u64);
    sums_of(group, case, |x| x.to_bits() as u8, u64::from);
}

/// The same for one type.
pub fn sums_of<T: Element>(group: &Group, case: Shards, element: fn(f64) -> T, bits: fn(T) -> u64) {
    let Shards { shards, len, seed, .. } = case;
    let model = |i| tree_fold(shards, &mut |shard| element(value(seed, shard, i)), &mut T::sum).unwrap();
    let expected: Vec<_> = (0..len).map(model).map(bits).collect();
    for how in [How::Blocking, How::Started, How::InPieces, How::InParts, How::ByOne] {
        let same = sum(group, case, element, how).into_iter().map(bits).eq(expected.iter().copied());
        assert!(same, "{group:?}: other bits, {case:?}, {how:?}");
    }
}

/// The result on a rank that processes its shards in the order of the schedule.
fn sum<T: Element>(group: &Group, case: Shards, element: fn(f64) -> T, how: How) -> Vec<T> {
    let Shards { shards, len, gap, seed } = case;
    let map = ShardMap::new(shards, group.world_size()).unwrap();
    let stride = len + gap;
    let mut slots = vec![T::default(); map.slots(group.rank()) * stride];
    for step in map.schedule(group.rank()) {
        for i in 0..len {
            slots[step.slot * stride + i] = element(value(seed, step.shard, i));
        }
        for Fold { into, from } in step.folds {
            for i in 0..len {
                slots[into * stride + i] = T::sum(slots[into * stride + i], slots[from * stride + i]);
            }
        }
    }
    let start = slots.as_mut_ptr();
    match how {
        How::Blocking => group.all_reduce_shards(&mut slots, len, stride, shards).unwrap(),
        // SAFETY: the slots stay untouched until the handle has been waited for.
        How::Started => unsafe { group.all_reduce_shards_start(start, len, stride, shards) }.wait().unwrap(),
        How::InPieces => {
            // SAFETY: as above.
            unsafe { group.reduce_scatter_shards_start(start, len, stride, shards) }.wait().unwrap();
            let own = group.piece::<T>(group.rank(), len);
            slots[..own.start].fill(T::default());
            slots[own.end..].fill(T::default());
            // SAFETY: as above.
            unsafe { group.all_gather_pieces_start(start, len) }.wait().unwrap();
        }
        How::InParts => {
            let ends = ends_of_parts(seed, len, group.world_size());
            // SAFETY: as above, and the ends live as long.
            unsafe { group.reduce_scatter_parts_start(start, len, stride, shards, &ends) }.wait().unwrap();
            let own = group.rank().checked_sub(1).map_or(0, |before| ends[before])..ends[group.rank()];
            slots[..own.start].fill(T::default());
            slots[own.end..].fill(T::default());
            group.all_gather_parts(&mut slots[..len], &ends).unwrap();
        }
        How::ByOne => {
            let last = group.world_size() - 1;
            // SAFETY: as above.
            unsafe { group.reduce_shards_start(start, len, stride, shards, last) }.wait().unwrap();
            if group.rank() < last {
                slots[..len].fill(T::default());
            }
            group.broadcast(&mut slots[..len], last).unwrap();
        }
    }
    slots.truncate(len);
    slots
}

/// Parts of any length, of which some are empty, as is the first of every third case.
fn ends_of_parts(seed: u64, len: usize, ranks: usize) -> Vec<usize> {
    let cut = |rank: usize| match seed % 3 {
        0 if rank == 0 => 0,
        1 if rank.is_multiple_of(2) => len / 2,
        _ => value(seed, rank, 7).to_bits() as usize % (len + 1),
    };
    let mut ends: Vec<usize> = (0..ranks - 1).map(cut).chain([len]).collect();
    ends.sort_unstable();
    ends
}

/// Four ranks: groups of groups, named by their path.
pub fn groups_of_groups(group: &Group) {
    let rank = group.rank();
    let half = group.split(Some(rank as u32 / 2), 0).unwrap().unwrap();
    let again = half.split(Some(0), -(half.rank() as i64)).unwrap().unwrap();
    let other = group.split(Some(9), 0).unwrap().unwrap();
    let mut sum = [1i64 << (8 * rank)];
    again.all_reduce(&mut sum).unwrap();
    assert_eq!(sum, [0x0101 << (16 * (rank / 2))]);
    assert_eq!(format!("{again:?}"), format!("Group(rank {} of 2 of group {}.1)", 1 - rank % 2, rank / 2 + 1));
    assert_eq!(format!("{other:?}"), format!("Group(rank {rank} of 4 of group 3)"));
}

/// At least three ranks: neither a group nor one split from it waits for the other.
pub fn two_groups_at_once(group: &Group) {
    let rank = group.rank();
    let ranks = group.world_size() as f32;
    let part = group.split((rank != 1).then_some(0), 0).unwrap();
    let (mut of_whole, mut of_part) = (vec![1f32; 70_000], vec![1f32; 70_000]);
    let [whole_start, part_start] = [of_whole.as_mut_ptr(), of_part.as_mut_ptr()];
    let Some(part) = part else {
        group.all_reduce(&mut of_whole).unwrap();
        return assert_eq!(of_whole[0], ranks);
    };
    // SAFETY: both stay untouched until their handles have been waited for.
    let whole = || unsafe { group.all_reduce_start(whole_start, 70_000) };
    // SAFETY: as above.
    let partly = || unsafe { part.all_reduce_start(part_start, 70_000) };
    // One rank waits for them in one order, the others in the reverse order.
    if rank == 0 {
        let (first, second) = (whole(), partly());
        first.wait().and(second.wait()).unwrap();
    } else {
        partly().wait().and(whole().wait()).unwrap();
    }
    assert_eq!([of_whole[0], of_part[0]], [ranks, ranks - 1.0]);
}
