//! Which ranks of a group share memory, and which of them carry data between nodes.
//!
//! A *node* is a set of ranks that share memory: those of one machine, container, network and user.
//! If a rank cannot open the memory of its node, each rank there becomes a node of its own, and the
//! lines at the start say why (`Group::ways`).
//!
//! What travels between nodes is divided into *channels*, as many as the largest node has ranks. On
//! every node each channel has one rank that serves it, and the ranks that serve a channel are
//! connected with each other. So every byte travels once between two nodes, and all ranks of a node
//! take part. Everything here depends only on the node of each rank, so all ranks find the same.
//!
//! All-reduces by another algorithm than the tree go between other ranks, too. A group has the
//! connections of its own algorithm, and no more: all of them are opened while the group forms, so
//! that an operation never waits for a connection, and a rank that cannot be reached is named
//! before the first step. By `ring` a rank has at most two more, by `halving-doubling` the
//! logarithm of the ranks. By `direct` it has one to every rank of another node. Where the model of
//! costs chooses, a rank has the connections of all algorithms that it may choose.
//!
//! A node adds up its ranks wherever a subtree lies on it, as a rank does with its shards. Where
//! neighbours in rank order are on different nodes (Slurm's `cyclic`), fewer subtrees lie on a
//! node. The bits are the same, and more travels, up to one partial sum per rank.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::ops::Range;

use crate::algorithm::{Algorithm, AlgorithmChoice};
use crate::cost::CANDIDATES;
use crate::pieces::piece;
use crate::rounds::partners;

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Topology {
    /// Each rank's node, and its place among the ranks of that node.
    seats: Vec<(usize, usize)>,
    /// The ranks of each node, in order.
    nodes: Vec<Vec<usize>>,
    /// Ranges of adjacent ranks of one node, each as long as possible. Together they are all ranks, in order.
    runs: Vec<Run>,
    channels: usize,
    /// For whose all-reduces ranks are connected, besides the channels.
    choice: AlgorithmChoice,
}

/// Adjacent ranks of one node. The sum of their shards travels as one wherever the tree over shards allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub node: usize,
    pub ranks: Range<usize>,
}

impl Topology {
    /// `names` has a name for each rank; ranks with equal names are on one node.
    pub(crate) fn new<N: Eq + Hash>(names: &[N]) -> Self {
        // Nodes are in the order of their first ranks.
        let mut numbers = HashMap::new();
        let mut seats = vec![];
        let mut nodes = Vec::<Vec<usize>>::new();
        let mut runs = Vec::<Run>::new();
        for (rank, name) in names.iter().enumerate() {
            let node = *numbers.entry(name).or_insert_with(|| {
                nodes.push(vec![]);
                nodes.len() - 1
            });
            seats.push((node, nodes[node].len()));
            nodes[node].push(rank);
            match runs.last_mut().filter(|run| run.node == node) {
                Some(run) => run.ranks.end = rank + 1,
                None => runs.push(Run { node, ranks: rank..rank + 1 }),
            }
        }
        let channels = nodes.iter().map(Vec::len).max().unwrap_or(1);
        Topology { seats, nodes, runs, channels, choice: AlgorithmChoice::default() }
    }

    /// Every rank on a node of its own.
    pub(crate) fn apart(ranks: usize) -> Self {
        Self::new(&(0..ranks).collect::<Vec<_>>())
    }

    /// All ranks on one node.
    pub(crate) fn together(ranks: usize) -> Self {
        Self::new(&vec![(); ranks])
    }

    /// The same ranks, connected for all-reduces by this choice.
    pub(crate) fn connected_for(self, choice: AlgorithmChoice) -> Self {
        Topology { choice, ..self }
    }

    /// For whose all-reduces ranks are connected.
    pub(crate) fn choice(&self) -> AlgorithmChoice {
        self.choice
    }

    /// The algorithms for which ranks have connections besides the channels.
    fn algorithms(&self) -> &[Algorithm] {
        match &self.choice {
            AlgorithmChoice::Named(algorithm) => std::slice::from_ref(algorithm),
            AlgorithmChoice::Auto => &CANDIDATES,
        }
    }

    /// Whether ranks are connected for all-reduces by this algorithm.
    pub(crate) fn connects_for(&self, algorithm: Algorithm) -> bool {
        let are_all_connected = self.algorithms().contains(&Algorithm::Direct) || self.channels == 1;
        are_all_connected || algorithm == Algorithm::Tree || self.algorithms().contains(&algorithm)
    }

    /// The ranks of each node, in order.
    pub(crate) fn nodes(&self) -> &[Vec<usize>] {
        &self.nodes
    }

    /// How the ranks exchange data, in words, if nodes do so over `links`.
    pub(crate) fn describe(&self, links: &str) -> String {
        match self.nodes.len() {
            1 => "ranks share memory".to_owned(),
            nodes if nodes == self.seats.len() => format!("ranks exchange data over {links}"),
            nodes => format!("ranks share memory on {nodes} nodes, which exchange data over {links}"),
        }
    }

    pub(crate) fn node_of(&self, rank: usize) -> usize {
        self.seats[rank].0
    }

    /// The place of a rank among the ranks of its node.
    pub(crate) fn place_of(&self, rank: usize) -> usize {
        self.seats[rank].1
    }

    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The greatest number of runs on one node.
    pub(crate) fn most_runs(&self) -> usize {
        let runs = |node| self.runs.iter().filter(|run| run.node == node).count();
        (0..self.nodes.len()).map(runs).max().unwrap_or(1)
    }

    pub(crate) fn channels(&self) -> usize {
        self.channels
    }

    /// The channels that a rank serves: at least one.
    pub(crate) fn channels_of(&self, rank: usize) -> Range<usize> {
        let (node, place) = self.seats[rank];
        let start = |place: usize| (place * self.channels).div_ceil(self.nodes[node].len());
        start(place)..start(place + 1)
    }

    /// The channels that two ranks of different nodes have in common; empty for ranks of one node.
    pub(crate) fn common(&self, one: usize, other: usize) -> Range<usize> {
        let (a, b) = (self.channels_of(one), self.channels_of(other));
        let (start, end) = (a.start.max(b.start), a.end.min(b.end));
        if self.node_of(one) == self.node_of(other) { start..start } else { start..end.max(start) }
    }

    /// The ranks with which a rank is connected, in order.
    pub(crate) fn peers_of(&self, rank: usize) -> impl Iterator<Item = usize> {
        let algorithms = self.algorithms().iter();
        let partners: BTreeSet<_> = algorithms.flat_map(|&algorithm| partners(algorithm, rank, &self.nodes)).collect();
        let is_partner = move |other| partners.contains(&other) && self.node_of(other) != self.node_of(rank);
        (0..self.seats.len()).filter(move |&other| !self.common(rank, other).is_empty() || is_partner(other))
    }

    /// The part of `owned`, a range of elements of `size` bytes that `owner` owns, that travels in one of its channels.
    pub(crate) fn part_of_channel(
        &self,
        owned: &Range<usize>,
        size: usize,
        owner: usize,
        channel: usize,
    ) -> Range<usize> {
        let channels = self.channels_of(owner);
        let part = piece(owned.len(), size, channel - channels.start, channels.len());
        owned.start + part.start..owned.start + part.end
    }

    /// The part of it that travels between `owner` and `other`. The parts of all ranks of a node together are the whole.
    pub(crate) fn share(&self, owned: &Range<usize>, size: usize, owner: usize, other: usize) -> Range<usize> {
        let common = self.common(owner, other);
        if common.is_empty() {
            return owned.start..owned.start;
        }
        let part = |channel| self.part_of_channel(owned, size, owner, channel);
        part(common.start).start..part(common.end - 1).end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nodes_are_served_by_channels() {
        let check = |names: &str, runs: usize, peers: &[&[usize]]| {
            let topology = Topology::new(&names.chars().collect::<Vec<_>>());
            let found: Vec<Vec<usize>> = (0..names.len()).map(|rank| topology.peers_of(rank).collect()).collect();
            assert_eq!(
                (topology.runs().len(), &found[..]),
                (runs, &peers.iter().map(|peers| peers.to_vec()).collect::<Vec<_>>()[..]),
                "{names}"
            );
        };
        check("aa", 1, &[&[], &[]]);
        check("ab", 2, &[&[1], &[0]]);
        check("aabb", 2, &[&[2], &[3], &[0], &[1]]);
        check("abab", 4, &[&[1], &[0], &[3], &[2]]);
        check("aaab", 2, &[&[3], &[3], &[3], &[0, 1, 2]]);
        check("abcc", 3, &[&[1, 2, 3], &[0, 2, 3], &[0, 1], &[0, 1]]);
        check("aaabb", 2, &[&[3], &[3], &[4], &[0, 1], &[2]]);
    }

    #[test]
    fn ranks_are_connected_for_their_algorithm_alone() {
        let check = |names: &str, algorithm: AlgorithmChoice, peers: &[&[usize]], connects: &[Algorithm]| {
            let topology = Topology::new(&names.chars().collect::<Vec<_>>()).connected_for(algorithm);
            let found: Vec<Vec<usize>> = (0..names.len()).map(|rank| topology.peers_of(rank).collect()).collect();
            assert_eq!(found, peers, "{names} {algorithm}");
            let found: Vec<_> = Algorithm::ALL.into_iter().filter(|one| topology.connects_for(*one)).collect();
            assert_eq!(found, connects, "{names} {algorithm}");
        };
        let tree = Algorithm::Tree;
        let ring = Algorithm::Ring;
        let direct = Algorithm::Direct;
        check("aabb", tree.into(), &[&[2], &[3], &[0], &[1]], &[tree]);
        check("aabb", ring.into(), &[&[2, 3], &[2, 3], &[0, 1], &[0, 1]], &[tree, ring]);
        check("aabb", direct.into(), &[&[2, 3], &[2, 3], &[0, 1], &[0, 1]], &Algorithm::ALL);
        let halving = Algorithm::HalvingDoubling;
        check("aabb", halving.into(), &[&[2], &[3], &[0], &[1]], &[tree, halving]);
        check("aaab", halving.into(), &[&[3], &[3], &[3], &[0, 1, 2]], &[tree, halving]);
        check(
            "aabbb",
            Algorithm::Hierarchical.into(),
            &[&[2, 3], &[3, 4], &[0], &[0, 1], &[1]],
            &[tree, Algorithm::Hierarchical],
        );
        check("abc", tree.into(), &[&[1, 2], &[0, 2], &[0, 1]], &Algorithm::ALL);
        let but_direct = Algorithm::ALL.into_iter().filter(|algorithm| *algorithm != direct).collect::<Vec<_>>();
        check("aabb", AlgorithmChoice::Auto, &[&[2, 3], &[2, 3], &[0, 1], &[0, 1]], &but_direct);
    }

    proptest! {
        #[test]
        fn every_rank_of_another_node_is_reached_and_shares_cover_what_a_rank_owns(
            names in prop::collection::vec(0u8..4, 1..12),
            (start, len) in (0usize..100, 0usize..2000),
            algorithm in prop::sample::select(&Algorithm::ALL[..]),
        ) {
            let topology = Topology::new(&names).connected_for(algorithm.into());
            // Both ends expect a connection, or neither.
            for rank in 0..names.len() {
                for peer in topology.peers_of(rank) {
                    prop_assert!(topology.peers_of(peer).any(|other| other == rank), "{} {}", rank, peer);
                }
            }
            prop_assert_eq!(topology.runs().iter().flat_map(|run| run.ranks.clone()).collect::<Vec<_>>(),
                (0..names.len()).collect::<Vec<_>>());
            for owner in 0..names.len() {
                for (node, ranks) in topology.nodes().iter().enumerate() {
                    let shares: Vec<_> = ranks.iter().map(|&rank| topology.share(&(start..start + len), 4, owner, rank)).collect();
                    let is_own = node == topology.node_of(owner);
                    // In order, without gaps.
                    let end = shares.iter().filter(|share| !share.is_empty()).try_fold(start, |end, share| {
                        (share.start == end).then_some(share.end)
                    });
                    prop_assert_eq!(end, Some(if is_own { start } else { start + len }));
                    let linked = |&rank: &usize| !topology.common(owner, rank).is_empty();
                    prop_assert!(is_own || ranks.iter().any(linked));
                }
            }
        }
    }
}
