//! What algorithms do, against groups that count their bytes and against the rounds themselves; and what is chosen.

use super::*;
use crate::element::DType;
use crate::operation::{Kind, Operation};
use crate::rounds::Rounds;
use proptest::prelude::*;

/// The ranks of this name for each; those with equal letters share a node.
fn nodes(names: &str) -> Topology {
    Topology::new(&names.chars().collect::<Vec<_>>())
}

/// So many nodes with as many ranks each, dealt to them in blocks or one after another.
fn even(count: usize, each: usize, cyclic: bool) -> Topology {
    let node = |rank: usize| if cyclic { rank % count } else { rank / each };
    Topology::new(&(0..count * each).map(node).collect::<Vec<_>>())
}

#[test]
fn bytes_are_those_that_ranks_receive() {
    for ranks in [2, 3, 4, 5] {
        // Pieces of whole cache lines, also in halves of halves.
        let bytes = 3 * 4 * 5 * 64 * 4;
        let threads = Group::threads(ranks).unwrap().into_iter().map(|group| {
            std::thread::spawn(move || {
                Algorithm::ALL.map(|algorithm| {
                    let before = group.traffic();
                    group.all_reduce_by(&mut vec![1f32; bytes / 4], algorithm).unwrap();
                    (group.traffic() - before).received as f64
                })
            })
        });
        let found: Vec<_> = threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect();
        for (place, algorithm) in Algorithm::ALL.into_iter().enumerate() {
            let work = work(algorithm, &Topology::together(ranks), bytes);
            // What a rank beyond the power of two gives and gets, no other rank receives both of.
            let most = found.iter().map(|found| found[place]).fold(0.0, f64::max);
            let beside = if algorithm == Algorithm::HalvingDoubling && !ranks.is_power_of_two() { bytes } else { 0 };
            assert_eq!(most + beside as f64, work.within.bytes, "{algorithm} over {ranks}");
        }
    }
}

#[test]
fn work_by_topology() {
    let check = |algorithm: Algorithm, names: &str, within: [f64; 3], between: [f64; 3], added: f64| {
        let found = work(algorithm, &nodes(names), 24000);
        let of = |messages: Messages| [messages.rounds, messages.count, messages.bytes];
        assert_eq!((of(found.within), of(found.between), found.added), (within, between, added), "{algorithm} {names}");
    };
    let none = [0.0; 3];
    check(Algorithm::Tree, "aaaa", [2.0, 6.0, 36000.0], none, 18000.0);
    check(Algorithm::Tree, "abcd", none, [2.0, 6.0, 36000.0], 18000.0);
    check(Algorithm::Tree, "aabb", [2.0, 2.0, 24000.0], [2.0, 3.0, 24000.0], 18000.0);
    // Neighbours on different nodes: a node has two partial sums for the other one.
    check(Algorithm::Tree, "abab", [2.0, 2.0, 24000.0], [2.0, 4.0, 36000.0], 24000.0);
    check(Algorithm::Ring, "aaaa", [6.0, 18.0, 36000.0], none, 18000.0);
    check(Algorithm::Ring, "aabb", none, [6.0, 7.0, 36000.0], 18000.0);
    check(Algorithm::Ring, "abab", none, [6.0, 7.0, 72000.0], 18000.0);
    check(Algorithm::HalvingDoubling, "aaaa", [4.0, 12.0, 36000.0], none, 18000.0);
    check(Algorithm::HalvingDoubling, "aabb", [2.0, 2.0, 24000.0], [2.0, 3.0, 24000.0], 18000.0);
    check(Algorithm::HalvingDoubling, "aaaaa", [6.0, 24.0, 84000.0], none, 42000.0);
    check(Algorithm::Direct, "aabb", none, [6.0, 7.0, 48000.0], 18000.0);
    check(Algorithm::Hierarchical, "aaaa", [6.0, 18.0, 36000.0], none, 18000.0);
    check(Algorithm::Hierarchical, "abab", [2.0, 2.0, 24000.0], [2.0, 3.0, 24000.0], 18000.0);
    check(Algorithm::Hierarchical, "aab", [2.0, 2.0, 48000.0], [2.0, 3.0, 24000.0], 36000.0);
    check(Algorithm::Ring, "a", none, none, 0.0);
    let short = work(Algorithm::Tree, &nodes("aaa"), 4096);
    assert_eq!((short.within, short.added), (Messages { rounds: 1.0, count: 2.0, bytes: 8192.0 }, 8192.0));
}

#[test]
fn the_choice_by_ranks_nodes_and_bytes() {
    use Algorithm::{HalvingDoubling, Hierarchical, Ring, Tree};
    let table = [
        ("1 node of 1", Topology::together(1), [Tree; 4]),
        ("1 node of 2", Topology::together(2), [Tree; 4]),
        ("1 node of 64", Topology::together(64), [Tree; 4]),
        ("4 nodes of 1", even(4, 1, false), [Tree; 4]),
        ("2 nodes of 8", even(2, 8, false), [Tree; 4]),
        ("8 nodes of 8", even(8, 8, false), [Tree; 4]),
        // Ranks dealt to nodes one after another: the tree has a partial sum for each rank.
        ("2 nodes of 2, cyclic", even(2, 2, true), [Tree, Hierarchical, Hierarchical, Hierarchical]),
        ("8 nodes of 8, cyclic", even(8, 8, true), [HalvingDoubling, Hierarchical, Hierarchical, Hierarchical]),
        // Many nodes: by the tree each has a message for every other one in each chunk.
        ("128 nodes of 1", even(128, 1, false), [Tree, HalvingDoubling, HalvingDoubling, HalvingDoubling]),
        ("100 nodes of 1", even(100, 1, false), [Tree, HalvingDoubling, Tree, Ring]),
        ("128 nodes of 8", even(128, 8, false), [Tree, HalvingDoubling, HalvingDoubling, HalvingDoubling]),
        ("96 nodes of 8", even(96, 8, false), [Tree, HalvingDoubling, Tree, Hierarchical]),
    ];
    let model = CostModel::of_choice(TransportChoice::Auto);
    let found = table.each_ref().map(|(what, topology, _)| {
        (*what, [4 << 10, 64 << 10, 1 << 20, 25 << 20].map(|bytes| model.cheapest(topology, bytes)))
    });
    assert_eq!(found, table.map(|(what, _, expected)| (what, expected)));
}

fn algorithms() -> impl Strategy<Value = Algorithm> {
    prop::sample::select(&Algorithm::ALL[..])
}

proptest! {
    #[test]
    fn the_cheapest_is_chosen(names in prop::collection::vec(0u8..5, 1..40), bytes in 0usize..1 << 28, by_mpi: bool) {
        let family = crate::MpiFamily::OpenMpi;
        let transport = if by_mpi { TransportChoice::Mpi(family) } else { TransportChoice::Auto };
        let topology = Topology::new(&names);
        let model = CostModel::of_choice(transport);
        let seconds = |algorithm| model.seconds(&work(algorithm, &topology, bytes));
        let chosen = model.cheapest(&topology, bytes);
        for other in CANDIDATES {
            prop_assert!(seconds(chosen) <= seconds(other), "{} for {}", chosen, other);
        }
        // Of those that cost the same the tree, whose bits do not depend on the ranks.
        prop_assert!(chosen == Algorithm::Tree || seconds(chosen) < seconds(Algorithm::Tree));
        // A sum takes longer if it is longer.
        let longer = model.seconds(&work(chosen, &topology, bytes + (64 << 10)));
        prop_assert!(names.len() < 2 || seconds(chosen) < longer);
    }

    #[test]
    fn work_is_that_of_the_rounds(names in prop::collection::vec(0u8..4, 2..10), algorithm in algorithms()) {
        prop_assume!(algorithm != Algorithm::Tree);
        let topology = Topology::new(&names);
        let ranks = names.len();
        // Pieces of whole cache lines, also in halves of halves and in pieces of pieces.
        let count = 16 * 2520 * 8;
        let nothing = std::ptr::NonNull::<f32>::dangling().as_ptr();
        let operation = Operation { algorithm, ..Operation::new(Kind::AllReduce, nothing, nothing, count) };
        let rounds: Vec<_> = (0..ranks).map(|rank| Rounds::new(&operation, rank, topology.nodes())).collect();
        let (mut crossing, mut by_round) = (0, 0);
        let mut of_nodes = vec![0; topology.nodes().len()];
        for number in 0..rounds[0].len() {
            let mut sent = vec![0; topology.nodes().len()];
            for rank in 0..ranks {
                if let Some((to, part)) = rounds[rank].get(number).send
                    && topology.node_of(to) != topology.node_of(rank)
                {
                    sent[topology.node_of(rank)] += part.len() * DType::F32.size();
                }
            }
            crossing += usize::from(sent.iter().any(|&bytes| bytes > 0));
            by_round += sent.iter().max().copied().unwrap_or(0);
            of_nodes.iter_mut().zip(&sent).for_each(|(all, sent)| *all += sent);
        }
        let found = work(algorithm, &topology, count * DType::F32.size());
        // Directly, the busiest node of a round differs from round to round, and some rounds may cross no nodes.
        let is_direct = algorithm == Algorithm::Direct;
        let busiest = of_nodes.into_iter().max().unwrap_or(0);
        let bytes = if is_direct { busiest } else { by_round } as f64;
        prop_assert!((found.between.bytes - bytes).abs() <= bytes * 1e-9, "{:?} is not {}", found, bytes);
        if !is_direct {
            let all = rounds[0].len() as f64;
            prop_assert_eq!((found.between.rounds, found.within.rounds), (crossing as f64, all - crossing as f64));
        }
    }
}
