//! All-reduces by every algorithm, against plain loops in the documented order.

use enmasse_comm::{Algorithm, Bf16, Element, Group, Reduction, ShardMap, tree_fold};

use super::value;

/// The piece of `pieces` that an element of `len` is in, where cuts lie at cache lines, and the piece's begin and length.
fn piece_of(i: usize, len: usize, size: usize, pieces: usize) -> (usize, usize, usize) {
    let each = len.div_ceil(pieces).next_multiple_of(64 / size);
    let piece = i / each;
    (piece, piece * each, each.min(len - piece * each))
}

/// The sum of element `i` of `len` in an algorithm's order, where `leaf` is a rank's value.
pub fn model<T: Copy>(
    algorithm: Algorithm,
    nodes: &[Vec<usize>],
    [i, len, size]: [usize; 3],
    leaf: &dyn Fn(usize) -> T,
    combine: &mut dyn FnMut(T, T) -> T,
) -> T {
    let ranks: usize = nodes.iter().map(Vec::len).sum();
    // From left to right, beginning at one place of a list.
    let mut around = |values: Vec<T>, first: usize| {
        let places = values.len();
        let mut all = (0..places).map(|step| values[(first + step) % places]);
        let first = all.next().unwrap();
        all.fold(first, &mut *combine)
    };
    let all = || (0..ranks).map(leaf).collect::<Vec<_>>();
    match algorithm {
        Algorithm::Ring => around(all(), piece_of(i, len, size, ranks).0 + 1),
        Algorithm::Direct => around(all(), piece_of(i, len, size, ranks).0),
        Algorithm::HalvingDoubling => {
            let core = 1 << ranks.ilog2();
            let mut values = all();
            for rank in core..ranks {
                values[rank - core] = combine(values[rank - core], values[rank]);
            }
            // Neighbours, and neighbours of those.
            let mut distance = 1;
            while distance < core {
                for rank in (0..core).step_by(2 * distance) {
                    values[rank] = combine(values[rank], values[rank + distance]);
                }
                distance *= 2;
            }
            values[0]
        }
        Algorithm::Hierarchical => {
            let owners = nodes.iter().map(Vec::len).min().unwrap();
            let (owner, start, len) = piece_of(i, len, size, owners);
            let sums = nodes.iter().map(|node| around(node.iter().map(|&rank| leaf(rank)).collect(), owner)).collect();
            around(sums, piece_of(i - start, len, size, nodes.len()).0 + 1)
        }
        _ => tree_fold(ranks, &mut |rank| leaf(rank), &mut |a, b| combine(a, b)).unwrap(),
    }
}

/// An all-reduce of each type has the bits of the algorithm's order, on every rank.
pub fn same_bits(group: &Group, algorithm: Algorithm, nodes: &[Vec<usize>], seed: u64, len: usize) {
    one_type(group, algorithm, nodes, seed, len, |x| x as f32, |x| x.to_bits().into());
    one_type(group, algorithm, nodes, seed, len, |x| Bf16::from_f32(x as f32), |x| x.to_bits().into());
    one_type(group, algorithm, nodes, seed, len, |x| x, f64::to_bits);
    one_type(group, algorithm, nodes, seed, len, |x| x.to_bits() as u8, u64::from);
}

fn one_type<T: Element>(
    group: &Group,
    algorithm: Algorithm,
    nodes: &[Vec<usize>],
    seed: u64,
    len: usize,
    element: fn(f64) -> T,
    bits: fn(T) -> u64,
) {
    let mut data: Vec<T> = (0..len).map(|i| element(value(seed, group.rank(), i))).collect();
    group.all_reduce_by(&mut data, algorithm).unwrap();
    let sum = |i| {
        let leaf = |rank| element(value(seed, rank, i));
        model(algorithm, nodes, [i, len, size_of::<T>()], &leaf, &mut T::sum)
    };
    // Each rank has its share of the model's work, and the sums of the first rank.
    let (rank, ranks) = (group.rank(), group.world_size());
    let same = (rank..len).step_by(ranks).all(|i| bits(data[i]) == bits(sum(i)));
    let mut of_first = data.clone();
    group.broadcast(&mut of_first, 0).unwrap();
    let same = same && data.into_iter().map(bits).eq(of_first.into_iter().map(bits));
    assert!(same, "{group:?}: other bits by {algorithm}, {len} elements of {}, seed {seed}", T::DTYPE.name());
}

/// The same of one type, through many chunks.
pub fn same_bits_of_f32(group: &Group, algorithm: Algorithm, nodes: &[Vec<usize>], len: usize) {
    one_type(group, algorithm, nodes, 7, len, |x| x as f32, |x| x.to_bits().into());
}

/// Other reductions than sums, in a group whose own algorithm it is, where the order can be seen: of zeros the right one wins.
pub fn other_reductions(group: &Group, algorithm: Algorithm, nodes: &[Vec<usize>], len: usize) {
    for (reduction, mut combine) in [
        (Reduction::Product, <f32 as Element>::product as fn(f32, f32) -> f32),
        (Reduction::Max, <f32 as Element>::max),
        (Reduction::Min, <f32 as Element>::min),
    ] {
        let leaf = |rank: usize, i: usize| if (rank + i).is_multiple_of(3) { -0.0 } else { 0.0f32 };
        let mut data: Vec<f32> = (0..len).map(|i| leaf(group.rank(), i)).collect();
        group.all_reduce_with(&mut data, reduction).unwrap();
        let mut expected = |i: usize| model(algorithm, nodes, [i, len, 4], &|rank| leaf(rank, i), &mut combine);
        let same = data.iter().enumerate().all(|(i, found)| found.to_bits() == expected(i).to_bits());
        assert!(same, "{group:?}: {reduction:?} by {algorithm}");
    }
}

/// A rank adds up its own partial sums first, from left to right.
pub fn shards(group: &Group, algorithm: Algorithm, nodes: &[Vec<usize>], shards: usize, len: usize, seed: u64) {
    let map = ShardMap::new(shards, group.world_size()).unwrap();
    let of_shards = |shards: std::ops::Range<usize>, i: usize| {
        let leaf = |shard: usize| value(seed, shards.start + shard, i) as f32;
        tree_fold(shards.len(), &mut { leaf }, &mut |a, b| a + b).unwrap()
    };
    let mut data: Vec<f32> =
        map.partials(group.rank()).flat_map(|part| (0..len).map(move |i| of_shards(part.clone(), i))).collect();
    group.all_reduce_shards(&mut data, len, len, shards).unwrap();
    let leaf = |rank: usize, i: usize| {
        let mut partials = map.partials(rank).map(|part| of_shards(part, i));
        let first = partials.next().unwrap();
        partials.fold(first, |a, b| a + b)
    };
    let expected = |i: usize| model(algorithm, nodes, [i, len, 4], &|rank| leaf(rank, i), &mut |a, b| a + b);
    let same = data[..len].iter().enumerate().all(|(i, found)| found.to_bits() == expected(i).to_bits());
    assert!(same, "{group:?}: {shards} shards by {algorithm}");
}
