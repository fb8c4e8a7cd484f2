//! The algorithms of an all-reduce: which values are added first, and between which ranks they travel.

use std::fmt;
use std::str::FromStr;

/// How an all-reduce goes about. Each algorithm has an order of additions of its own, which depends on nothing but the number of
/// ranks, so the bits never depend on timing. `r0 + r1` stands for the values of ranks 0 and 1, in this order.
///
/// Only [`Algorithm::Tree`] adds up shards where they lie. By the others a rank first adds up its own partial sums, in their
/// order, and the order below is that of ranks; so the bits depend on the number of ranks even if that of shards is the same.
///
/// ```
/// use enmasse_comm::{Algorithm, Group};
/// let ranks = Group::threads(3)?.into_iter().map(|group| {
///     std::thread::spawn(move || {
///         let mut values = [group.rank() as f32; 100];
///         group.all_reduce_by(&mut values, Algorithm::Ring).map(|()| values)
///     })
/// });
/// for rank in ranks.collect::<Vec<_>>() {
///     assert_eq!(rank.join().unwrap()?, [3.0; 100]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// The fixed tree over shards ([`crate::tree_fold`]), whose bits do not depend on the number of ranks. Every rank reads its
    /// part of what all others have, adds it up, and reads the other parts; ranks of one node do so first for their node.
    #[default]
    Tree,
    /// The data are cut into a piece for each rank, and sums of pieces go round, from each rank to the next, until every rank has
    /// the whole sum of its piece; then the sums go round. Piece j is `((r(j+1) + r(j+2)) + …) + r(j)`.
    Ring,
    /// Ranks at distance 1, then 2, 4 and so on exchange halves of what they still add up; then they exchange the sums the other
    /// way round. Of ranks beyond the largest power of two p, rank p + i first gives its values to rank i: `r(i) + r(p+i)`. Then
    /// neighbours are added, and neighbours of those: `(r0 + r1) + (r2 + r3)`, the bits of the tree over 2, 4, 8… shards.
    HalvingDoubling,
    /// Every rank sends each other rank its values of that one's piece, and adds up its own; then it sends the sum to each. Piece j
    /// is `((r(j) + r(j+1)) + …) + r(j-1)`.
    Direct,
    /// [`Algorithm::Direct`] among the ranks of each node, with a piece for each rank of the smallest one; then
    /// [`Algorithm::Ring`] over the nodes for each of these pieces; then the sums within each node. On one node it is
    /// [`Algorithm::Direct`], with the same bits.
    Hierarchical,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; 5] =
        [Algorithm::Tree, Algorithm::Ring, Algorithm::HalvingDoubling, Algorithm::Direct, Algorithm::Hierarchical];

    /// The name used in settings and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Tree => "tree",
            Algorithm::Ring => "ring",
            Algorithm::HalvingDoubling => "halving-doubling",
            Algorithm::Direct => "direct",
            Algorithm::Hierarchical => "hierarchical",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name);
        found.ok_or_else(|| format!("must be one of {}", Algorithm::ALL.map(Algorithm::name).join(", ")))
    }
}

/// What decides by which algorithm a group's all-reduces go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AlgorithmChoice {
    /// The caller.
    Named(Algorithm),
    /// The model of their cost, once the caller knows how long the sums are ([`crate::Group::choose_algorithm`]). Until then it
    /// is the tree. The group has the connections of all algorithms that may be chosen.
    Auto,
}

impl Default for AlgorithmChoice {
    fn default() -> Self {
        Algorithm::default().into()
    }
}

impl From<Algorithm> for AlgorithmChoice {
    fn from(algorithm: Algorithm) -> Self {
        AlgorithmChoice::Named(algorithm)
    }
}

impl fmt::Display for AlgorithmChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AlgorithmChoice::Named(algorithm) => algorithm.fmt(f),
            AlgorithmChoice::Auto => f.pad("auto"),
        }
    }
}
