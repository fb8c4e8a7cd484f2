//! Operations in which ranks get different data, pairs, and operations that own their memory, against plain models.

use enmasse_comm::{Bf16, Element, F16, Group, Reduction, tree_fold};

use super::value;

/// All types, each of which has its own bits.
pub fn of_every_type(group: &Group, seed: u64, len: usize, root: usize) {
    each(group, seed, len, root, |x| x as f32, |x| x.to_bits().into());
    each(group, seed, len, root, |x| x, f64::to_bits);
    each(group, seed, len, root, |x| F16::from_f32(x as f32), |x| x.to_bits().into());
    each(group, seed, len, root, |x| Bf16::from_f32(x as f32), |x| x.to_bits().into());
    each(group, seed, len, root, |x| x.to_bits() as i32, |x| x as u64);
    each(group, seed, len, root, |x| x.to_bits() as i64, |x| x as u64);
    each(group, seed, len, root, |x| x.to_bits() as u8, u64::from);
}

fn each<T: Element>(group: &Group, seed: u64, len: usize, root: usize, element: fn(f64) -> T, bits: fn(T) -> u64) {
    let (rank, ranks) = (group.rank(), group.world_size());
    // What a rank has, for all ranks.
    let of = |rank: usize| -> Vec<T> { (0..len * ranks).map(|i| element(value(seed, rank, i))).collect() };
    let part = |of: &[T], rank: usize| of[rank * len..(rank + 1) * len].to_vec();
    let own = of(rank);
    let check = |what: &str, found: &[T], expected: &[T]| {
        let same = found.iter().map(|&x| bits(x)).eq(expected.iter().map(|&x| bits(x)));
        assert!(same, "{group:?}: {what} of {len} {}, seed {seed}, root {root}", T::DTYPE.name());
    };

    let first = part(&own, 0);
    let firsts: Vec<T> = (0..ranks).flat_map(|rank| part(&of(rank), 0)).collect();
    let of_root = if rank == root { firsts } else { vec![] };
    let mut found = vec![T::default(); of_root.len()];
    group.gather(&first, &mut found, root).unwrap();
    check("gather", &found, &of_root);
    check("gather_owned", &group.gather_owned(first, root).wait().unwrap(), &of_root);

    let given = if rank == root { own.clone() } else { vec![] };
    let expected = part(&of(root), rank);
    let mut found = vec![T::default(); len];
    group.scatter(&given, &mut found, root).unwrap();
    check("scatter", &found, &expected);
    check("scatter_owned", &group.scatter_owned(given, len, root).wait().unwrap(), &expected);

    let expected: Vec<T> = (0..ranks).flat_map(|sender| part(&of(sender), rank)).collect();
    let mut found = vec![T::default(); own.len()];
    group.all_to_all(&own, &mut found).unwrap();
    check("all_to_all", &found, &expected);
    check("all_to_all_owned", &group.all_to_all_owned(own.clone()).wait().unwrap(), &expected);

    let expected: Vec<T> = (0..ranks).flat_map(of).collect();
    check("all_gather_owned", &group.all_gather_owned(own.clone()).wait().unwrap(), &expected);
    check("broadcast_owned", &group.broadcast_owned(own.clone(), root).wait().unwrap(), &of(root));

    for reduction in [Reduction::Sum, Reduction::Product, Reduction::Max, Reduction::Min] {
        let mut combine = match reduction {
            Reduction::Sum => T::sum,
            Reduction::Product => T::product,
            Reduction::Max => T::max,
            Reduction::Min => T::min,
        };
        let mut model = |i| tree_fold(ranks, &mut |rank| element(value(seed, rank, i)), &mut combine).unwrap();
        let expected: Vec<T> = (0..own.len()).map(&mut model).collect();
        check("all_reduce_owned", &group.all_reduce_owned(own.clone(), reduction).wait().unwrap(), &expected);
        let piece = group.piece::<T>(rank, own.len());
        let mut found = own.clone();
        let owned = group.reduce_scatter_owned(own.clone(), reduction);
        group.reduce_scatter_with(&mut found, reduction).unwrap();
        check("reduce_scatter_with", &found[piece.clone()], &expected[piece.clone()]);
        check("reduce_scatter_owned", &owned.wait().unwrap()[piece.clone()], &expected[piece]);
        let mut found = own.clone();
        let owned = group.reduce_to_owned(own.clone(), reduction, root);
        group.reduce_to(&mut found, reduction, root).unwrap();
        let owned = owned.wait().unwrap();
        if rank == root {
            check("reduce_to", &found, &expected);
            check("reduce_to_owned", &owned, &expected);
        }
    }
}

/// Several ranks: the first and the last send to each other, while the others do something else.
pub fn between_two(group: &Group, len: usize) {
    let rank = group.rank();
    let last = group.world_size() - 1;
    let pair = group.pair(last, 0).unwrap();
    assert_eq!(pair.is_some(), rank == 0 || rank == last, "{group:?}");
    let Some(pair) = pair else { return };
    let of = |rank: usize| -> Vec<i64> { (0..len).map(|i| (i * 7 + rank) as i64).collect() };
    let mut found = vec![0; len];
    if rank == last {
        pair.send(&of(last)).unwrap();
        pair.send(&of(last + 1)).unwrap();
        pair.receive(&mut found).unwrap();
        assert_eq!(found, of(0));
    } else {
        pair.receive(&mut found).unwrap();
        assert_eq!(found, of(last));
        pair.receive(&mut found).unwrap();
        assert_eq!(found, of(last + 1));
        pair.send(&of(0)).unwrap();
    }
}
