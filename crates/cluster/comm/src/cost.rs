//! What an all-reduce costs by each algorithm, and the choice of the cheapest.
//!
//! The model is LogGP's: a round takes a latency, a message an overhead of the processors that send and receive it, a byte its
//! time on the wire, and a byte that is added its time there. What an algorithm does follows from the length of the sum and from
//! which ranks share a node. The choice has constants in place of measured figures, so it is the same on all ranks and in every run.

use crate::algorithm::Algorithm;
use crate::group::Group;
use crate::rendezvous::TransportChoice;
use crate::shards::ShardMap;
use crate::topology::Topology;
use crate::transport::DIRECT_BYTES;
use crate::transport::hierarchical::SLOT_BYTES;

/// The algorithms that may be chosen; of two that cost the same, the first one. [`Algorithm::Direct`] is not among them: it needs
/// connections between all ranks.
pub(crate) const CANDIDATES: [Algorithm; 4] =
    [Algorithm::Tree, Algorithm::HalvingDoubling, Algorithm::Ring, Algorithm::Hierarchical];

/// What an algorithm sends in an all-reduce.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Messages {
    /// Rounds, one after another.
    pub rounds: f64,
    /// Messages of the rank that sends most. Within a node they are looks at the counters of its other ranks, of which a round by
    /// any algorithm takes one at each.
    pub count: f64,
    /// Bytes: within nodes those that a rank receives, between nodes those of all ranks of the busiest node.
    pub bytes: f64,
}

impl Messages {
    fn add(&mut self, rounds: f64, count: f64, bytes: f64) {
        self.rounds += rounds;
        self.count += count;
        self.bytes += bytes;
    }
}

/// What an algorithm does in an all-reduce, on the rank that does most.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Between ranks of one node. A round that also crosses nodes counts there alone.
    pub within: Messages,
    /// Between nodes.
    pub between: Messages,
    /// Bytes added to others.
    pub added: f64,
}

/// What messages between two ranks cost, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Connection {
    /// Of a round.
    pub latency: f64,
    /// Of a message, on the processors that send and receive it.
    pub overhead: f64,
    /// Of a byte. Processors handle further messages meanwhile.
    pub per_byte: f64,
}

impl Connection {
    /// Ranks of one node, through memory.
    const MEMORY: Connection = Connection { latency: 2e-6, overhead: 5e-7, per_byte: 1.5e-10 };
    /// Hosts joined by Ethernet of 10 Gbit/s.
    const TCP: Connection = Connection { latency: 2e-5, overhead: 5e-6, per_byte: 8e-10 };
    /// Hosts joined by a network of 100 Gbit/s that MPI reaches without the kernel.
    const MPI: Connection = Connection { latency: 2e-6, overhead: 1e-6, per_byte: 8e-11 };

    fn seconds(&self, messages: &Messages) -> f64 {
        let Messages { rounds, count, bytes } = messages;
        rounds * self.latency + (count * self.overhead).max(bytes * self.per_byte)
    }
}

/// What work costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    /// Between ranks of one node.
    pub within: Connection,
    /// Between nodes.
    pub between: Connection,
    /// Seconds of a byte that is added to another.
    pub per_byte_added: f64,
}

impl CostModel {
    /// The constants by which algorithms are chosen.
    fn of_choice(transport: TransportChoice) -> Self {
        let between = match transport {
            TransportChoice::Mpi(_) => Connection::MPI,
            TransportChoice::Auto | TransportChoice::Shared | TransportChoice::Tcp => Connection::TCP,
        };
        CostModel { within: Connection::MEMORY, between, per_byte_added: 1e-10 }
    }

    /// The seconds of an all-reduce.
    pub fn seconds(&self, work: &Work) -> f64 {
        self.within.seconds(&work.within) + self.between.seconds(&work.between) + work.added * self.per_byte_added
    }

    /// The algorithm that takes the least time for a sum of `bytes`.
    fn cheapest(&self, topology: &Topology, bytes: usize) -> Algorithm {
        let seconds = |algorithm: Algorithm| self.seconds(&work(algorithm, topology, bytes));
        // The first one, of several that take as long.
        let cheapest = CANDIDATES.into_iter().min_by(|one, other| seconds(*one).total_cmp(&seconds(*other)));
        cheapest.unwrap_or_default()
    }
}

impl Group {
    /// What an all-reduce of `bytes` by an algorithm makes these ranks do.
    pub fn all_reduce_work(&self, algorithm: Algorithm, bytes: usize) -> Work {
        work(algorithm, &self.core.topology, bytes)
    }

    /// The algorithm by which an all-reduce of `bytes` over these ranks costs least. It depends on nothing but the length, which
    /// ranks share a node, and the kind of transport; so it is the same on all ranks, and in every run.
    ///
    /// ```
    /// use enmasse_comm::{Algorithm, Group};
    /// // On one node nothing costs less than the tree.
    /// for group in Group::threads(4)? {
    ///     assert_eq!(group.choose_algorithm(25 << 20), Algorithm::Tree);
    /// }
    /// # Ok::<(), enmasse_comm::JoinError>(())
    /// ```
    pub fn choose_algorithm(&self, bytes: usize) -> Algorithm {
        let transport = self.core.group_state.connectivity.transport;
        CostModel::of_choice(transport).cheapest(&self.core.topology, bytes)
    }
}

/// What an all-reduce of `bytes` by an algorithm makes ranks do, each with one partial sum.
fn work(algorithm: Algorithm, topology: &Topology, bytes: usize) -> Work {
    let ranks = topology.nodes().iter().map(Vec::len).sum::<usize>();
    let sum = Sum { topology, ranks, bytes: bytes as f64 };
    match algorithm {
        _ if ranks < 2 => Work::default(),
        Algorithm::Tree => sum.tree(),
        Algorithm::Ring => sum.ring(),
        Algorithm::HalvingDoubling => sum.halving_doubling(),
        Algorithm::Direct => sum.direct(),
        Algorithm::Hierarchical => sum.hierarchical(),
    }
}

/// A sum over ranks.
struct Sum<'a> {
    topology: &'a Topology,
    ranks: usize,
    bytes: f64,
}

impl Sum<'_> {
    /// Ranks of each node.
    fn sizes(&self) -> impl Iterator<Item = usize> {
        self.topology.nodes().iter().map(Vec::len)
    }

    /// A value for each node, from its ranks; the largest.
    fn most(&self, of_node: impl Fn(&[usize]) -> usize) -> f64 {
        self.topology.nodes().iter().map(|node| of_node(node)).max().unwrap_or(0) as f64
    }

    fn nodes(&self) -> f64 {
        self.topology.nodes().len() as f64
    }

    /// The messages by which a rank tells its operation to every other node, before any data.
    fn headers(&self) -> f64 {
        self.nodes() - 1.0
    }

    /// The messages of so many bytes on their way between two ranks.
    fn chunks(bytes: f64) -> f64 {
        (bytes / SLOT_BYTES as f64).ceil().max(1.0)
    }

    /// What one of `owners` that share the data gets of all others, and gives to all.
    fn share(owners: f64) -> f64 {
        (owners - 1.0) / owners
    }

    fn tree(&self) -> Work {
        let shards = ShardMap::one_each(self.ranks);
        let mut partials = vec![0; self.topology.nodes().len()];
        for run in self.topology.runs() {
            partials[run.node] += shards.subtrees(shards.local_by(&run.ranks)).count();
        }
        let all: usize = partials.iter().sum();
        let most = partials.iter().copied().max().unwrap_or(1) as f64;
        let nodes = self.nodes();
        let largest = self.most(<[usize]>::len);
        let (others, local) = (nodes - 1.0, largest - 1.0);
        let mut work = Work::default();
        if self.bytes * most <= DIRECT_BYTES as f64 {
            // Everybody gets everything, on several nodes by way of the first rank of each.
            let rounds = if nodes > 1.0 { 2.0 } else { 1.0 };
            let received = partials.iter().map(|own| all - own).max().unwrap_or(0) as f64;
            if largest > 1.0 {
                work.within.add(rounds, rounds * local, rounds * local * self.bytes);
            }
            if nodes > 1.0 {
                work.between.add(1.0, others * most, received * self.bytes);
            }
            work.added = (local + received) * self.bytes;
            return work;
        }
        if largest > 1.0 {
            work.within.add(2.0, 2.0 * local, 2.0 * Self::share(largest) * self.bytes);
        }
        if nodes > 1.0 {
            // A rank that is alone sends its header with its first data.
            let headers = if largest > 1.0 { self.headers() } else { 0.0 };
            let messages = others * (most + 1.0) * Self::chunks(self.bytes * most);
            // Partial sums go to the owners on other nodes, which return the sums.
            let busiest =
                partials.iter().map(|&own| ((own as f64) * others).max((all - own) as f64)).fold(0.0, f64::max);
            work.between.add(2.0, headers + messages, (busiest + others) * self.bytes / nodes);
        }
        let smallest = self.sizes().min().unwrap_or(1) as f64;
        let least = partials.iter().min().copied().unwrap_or(0);
        work.added = Self::share(largest) * self.bytes + (all - least) as f64 * self.bytes / nodes / smallest;
        work
    }

    fn ring(&self) -> Work {
        let rounds = 2.0 * (self.ranks - 1) as f64;
        let piece = self.bytes / self.ranks as f64;
        let crosses = |&rank: &usize| !self.is_within(rank, (rank + 1) % self.ranks);
        self.in_rounds(rounds, piece, self.most(|node| node.iter().copied().filter(crosses).count()))
    }

    fn direct(&self) -> Work {
        let rounds = 2.0 * (self.ranks - 1) as f64;
        let piece = self.bytes / self.ranks as f64;
        // In the mean over rounds: every rank exchanges with each rank of other nodes.
        let crossing = self.most(|node| node.len() * (self.ranks - node.len()));
        self.in_rounds(rounds, piece, crossing / (self.ranks - 1) as f64)
    }

    /// Rounds in which all ranks send a piece, of which so many on a node send theirs to another one.
    fn in_rounds(&self, rounds: f64, piece: f64, crossing: f64) -> Work {
        let mut work = Work { added: rounds / 2.0 * piece, ..Work::default() };
        self.add_round(&mut work, rounds, piece, crossing);
        work.between.count += self.headers();
        work
    }

    fn add_round(&self, work: &mut Work, rounds: f64, piece: f64, crossing: f64) {
        let local = self.most(<[usize]>::len) - 1.0;
        match crossing > 0.0 {
            true => work.between.add(rounds, rounds * Self::chunks(piece), rounds * crossing * piece),
            false => work.within.add(rounds, rounds * local, rounds * piece),
        }
    }

    fn halving_doubling(&self) -> Work {
        let levels = self.ranks.ilog2();
        let core = 1 << levels;
        let mut work = Work::default();
        if core < self.ranks {
            // The ranks beyond give their values first, and get the sum at last.
            let crossing = |given: &dyn Fn(usize) -> Option<usize>| self.most(|node| self.crossing(node, given));
            let there = crossing(&|rank| rank.checked_sub(core));
            let back = crossing(&|rank| (rank + core < self.ranks).then_some(rank + core));
            self.add_round(&mut work, 1.0, self.bytes, there);
            self.add_round(&mut work, 1.0, self.bytes, back);
            work.added += self.bytes;
        }
        for level in 0..levels {
            let half = self.bytes / f64::from(2u32 << level);
            let partner = |rank: usize| (rank < core).then_some(rank ^ 1 << level);
            self.add_round(&mut work, 2.0, half, self.most(|node| self.crossing(node, &partner)));
            work.added += half;
        }
        work.between.count += self.headers();
        work
    }

    /// How many of these ranks, which share a node, have a partner on another one.
    fn crossing(&self, node: &[usize], partner: &dyn Fn(usize) -> Option<usize>) -> usize {
        node.iter().filter(|&&rank| partner(rank).is_some_and(|other| !self.is_within(rank, other))).count()
    }

    fn hierarchical(&self) -> Work {
        let nodes = self.nodes();
        let largest = self.most(<[usize]>::len);
        let owners = self.sizes().min().unwrap_or(1) as f64;
        let piece = self.bytes / owners;
        let local = largest - 1.0;
        let mut work = Work { added: (local + Self::share(nodes)) * piece, ..Work::default() };
        if largest > 1.0 {
            self.add_round(&mut work, 2.0 * local, piece, 0.0);
        }
        if nodes > 1.0 {
            // A ring for each piece.
            self.add_round(&mut work, 2.0 * (nodes - 1.0), piece / nodes, owners);
        }
        work.between.count += self.headers();
        work
    }

    fn is_within(&self, rank: usize, other: usize) -> bool {
        self.topology.node_of(rank) == self.topology.node_of(other)
    }
}

#[cfg(test)]
#[path = "cost_tests.rs"]
mod tests;
