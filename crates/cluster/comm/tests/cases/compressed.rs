//! Compressed all-reduces, against a plain model of who rounds what.

use std::ops::Range;

use enmasse_comm::{Bf16, Compression, F16, Group, tree_fold};

use super::value;

/// Elements of a chunk, and of the lines at which chunks are cut.
const CHUNK: usize = 114_688;
const LINE: usize = 16;

fn round(to: Compression, value: f32) -> f32 {
    match to {
        Compression::Bf16 => Bf16::from_f32(value).to_f32(),
        Compression::F16 => F16::from_f32(value).to_f32(),
    }
}

/// The part of a range that belongs to one of `parts`.
fn part(whole: &Range<usize>, number: usize, parts: usize) -> Range<usize> {
    let each = whole.len().div_ceil(parts).next_multiple_of(LINE);
    let at = |number: usize| whole.end.min(whole.start + number * each);
    at(number)..at(number + 1)
}

/// The rank of each node that rounds the node's values of element `i` of `len`, and the one that owns the sum.
fn rounds(nodes: &[Vec<usize>], i: usize, len: usize) -> (Vec<usize>, usize) {
    let chunk = i / CHUNK * CHUNK..len.min((i / CHUNK + 1) * CHUNK);
    let find = |whole: &Range<usize>, parts: usize| {
        let number = (0..parts).find(|&number| part(whole, number, parts).contains(&i)).unwrap();
        (number, part(whole, number, parts))
    };
    let (node, of_node) = find(&chunk, nodes.len());
    let (place, owned) = find(&of_node, nodes[node].len());
    let most = nodes.iter().map(Vec::len).max().unwrap();
    let first = |place: usize, ranks: usize| (place * most).div_ceil(ranks);
    let channels = first(place, nodes[node].len())..first(place + 1, nodes[node].len());
    let channel = channels.start + find(&owned, channels.len()).0;
    let serves = |ranks: &Vec<usize>| {
        let place = (0..ranks.len())
            .find(|&place| (first(place, ranks.len())..first(place + 1, ranks.len())).contains(&channel));
        ranks[place.unwrap()]
    };
    let mut rounds: Vec<usize> = nodes.iter().map(serves).collect();
    rounds[node] = nodes[node][place];
    (rounds, nodes[node][place])
}

/// Sums one after another, with what each rank keeps between them, have the model's bits on every rank.
pub fn same_bits(group: &Group, to: Compression, nodes: &[Vec<usize>], seed: u64, len: usize) {
    let (rank, ranks) = (group.rank(), group.world_size());
    let of = |step: u64, rank: usize, i: usize| (value(seed ^ step, rank, i) / 4096.0) as f32;
    let mut residual = vec![0.0; len];
    // Each rank has its share of the model's work.
    let mine = || (rank..len).step_by(ranks);
    let mut kept: Vec<Vec<f32>> = mine().map(|_| vec![0.0; ranks]).collect();
    for step in 0..3 {
        let mut data: Vec<f32> = (0..len).map(|i| of(step, rank, i)).collect();
        group.all_reduce_compressed(&mut data, to, &mut residual).unwrap();
        for (i, kept) in mine().zip(&mut kept) {
            let mut rounded = |value: f32, rank: usize| {
                let value = value + kept[rank];
                kept[rank] = value - round(to, value);
                round(to, value)
            };
            let add = &mut |a: f32, b: f32| a + b;
            let expected = if nodes.len() == 1 {
                tree_fold(ranks, &mut |rank| of(step, rank, i), add).unwrap()
            } else {
                let (rounds, owner) = rounds(nodes, i, len);
                let of_node = |node: usize| {
                    let ranks = &nodes[node];
                    tree_fold(ranks.len(), &mut |place| of(step, ranks[place], i), &mut |a, b| a + b).unwrap()
                };
                let sums: Vec<f32> = (0..nodes.len()).map(|node| rounded(of_node(node), rounds[node])).collect();
                rounded(tree_fold(nodes.len(), &mut |node| sums[node], add).unwrap(), owner)
            };
            assert_eq!(
                data[i].to_bits(),
                expected.to_bits(),
                "{group:?} {to}: {i} of {len} in sum {step}, seed {seed}"
            );
        }
        let mut of_first = data.clone();
        group.broadcast(&mut of_first, 0).unwrap();
        assert!(data.iter().map(|x| x.to_bits()).eq(of_first.iter().map(|x| x.to_bits())), "{group:?} {to}");
    }
    let mut all = vec![0.0; len * ranks];
    group.all_gather(&residual, &mut all).unwrap();
    for (i, kept) in mine().zip(&kept) {
        let found: Vec<f32> = (0..ranks).map(|rank| all[rank * len + i]).collect();
        assert_eq!(&found, kept, "{group:?} {to}: what is kept of {i} of {len}, seed {seed}");
    }
}

/// A rank adds up its own partial sums first.
pub fn shards(group: &Group, to: Compression, len: usize) {
    // Seven shards on three ranks: two partial sums on each.
    let mut data: Vec<f32> = vec![1.0; 2 * len];
    let mut residual = vec![0.0; len];
    // SAFETY: both stay untouched until the handle has been waited for.
    let handle =
        unsafe { group.all_reduce_shards_compressed_start(data.as_mut_ptr(), len, len, 7, to, residual.as_mut_ptr()) };
    handle.wait().unwrap();
    assert_eq!(data[..len], vec![6.0; len], "{group:?} {to}");
}
