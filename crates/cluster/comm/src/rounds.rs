//! All-reduces as rounds: in each, a rank sends some of its values to one rank, and takes some from one rank.
//!
//! The rounds depend only on the algorithm, the ranks and the length, so all ranks find the same ones. A rank's part of a round
//! may be empty. Transports carry rounds out in steps of a chunk; [`PairwiseExchange::longest`] tells all ranks how many.

use std::ops::Range;

use crate::algorithm::Algorithm;
use crate::element::{Element, Reduction};
use crate::operation::Operation;
use crate::pieces::piece;

/// The rounds of one operation, as seen from one rank.
pub(crate) struct Rounds<'a> {
    algorithm: Algorithm,
    rank: usize,
    /// The ranks of each node, in order.
    nodes: &'a [Vec<usize>],
    ranks: usize,
    count: usize,
    /// Bytes of an element.
    size: usize,
}

/// The ranks with which a rank exchanges values in all-reduces by an algorithm, some more than once. If one is another's
/// partner, so is the other.
pub(crate) fn partners(algorithm: Algorithm, rank: usize, nodes: &[Vec<usize>]) -> impl Iterator<Item = usize> {
    // The length changes what is exchanged, and not between which ranks.
    let rounds = Rounds { algorithm, rank, nodes, ranks: nodes.iter().map(Vec::len).sum(), count: 0, size: 1 };
    (0..rounds.len()).flat_map(move |number| {
        let PairwiseExchange { send, receive, .. } = rounds.get(number);
        [send.map(|(to, _)| to), receive.map(|receipt| receipt.from)].into_iter().flatten()
    })
}

/// One rank's part of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PairwiseExchange {
    /// The rank to send to, and the elements.
    pub send: Option<(usize, Range<usize>)>,
    pub receive: Option<Receipt>,
    /// The most elements that any rank may send in this round; the same on all ranks.
    pub longest: usize,
}

/// What a rank takes in a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Receipt {
    pub from: usize,
    pub range: Range<usize>,
    pub how: Take,
}

/// What becomes of values that have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// They are the left operand, and the rank's own values the right one.
    Left,
    /// They are the right operand.
    Right,
    /// They replace the rank's own values.
    Copy,
}

impl<'a> Rounds<'a> {
    /// The rounds of an operation of `rank`, where `nodes` are the ranks of each node.
    pub(crate) fn new(operation: &Operation, rank: usize, nodes: &'a [Vec<usize>]) -> Self {
        let ranks = nodes.iter().map(Vec::len).sum();
        let algorithm = operation.algorithm;
        let count = operation.count;
        let size = operation.dtype.size();
        Rounds { algorithm, rank, nodes, ranks, count, size }
    }

    /// The number of rounds.
    pub(crate) fn len(&self) -> usize {
        match self.algorithm {
            Algorithm::Tree => 0,
            Algorithm::Ring | Algorithm::Direct => 2 * (self.ranks - 1),
            Algorithm::HalvingDoubling => 2 * (self.levels() + usize::from(self.extra() > 0)),
            Algorithm::Hierarchical => 2 * (self.largest_node() - 1) + 2 * (self.nodes.len() - 1),
        }
    }

    /// A round, from 0.
    pub(crate) fn get(&self, number: usize) -> PairwiseExchange {
        match self.algorithm {
            Algorithm::Tree => PairwiseExchange { send: None, receive: None, longest: 0 },
            Algorithm::Ring => ring(number, self.rank, self.ranks, 0..self.count, self.size, |place| place),
            Algorithm::Direct => {
                let node = Node { place: self.rank, ranks: self.ranks, owners: self.ranks };
                let last = self.ranks - 1;
                let piece = |owner| piece(self.count, self.size, owner, self.ranks);
                match number < last {
                    true => node.scatter(number + 1, piece, |place| place),
                    false => node.gather(number + 1 - last, piece, |place| place),
                }
            }
            Algorithm::HalvingDoubling => self.halving_doubling(number),
            Algorithm::Hierarchical => self.hierarchical(number),
        }
    }

    /// The exponent of the largest power of two that is not more than the ranks.
    fn levels(&self) -> usize {
        self.ranks.ilog2() as usize
    }

    /// The ranks beyond that power.
    fn extra(&self) -> usize {
        self.ranks - (1 << self.levels())
    }

    fn halving_doubling(&self, number: usize) -> PairwiseExchange {
        let levels = self.levels();
        let core = 1 << self.levels();
        let extra = self.extra();
        let folds = usize::from(extra > 0);
        let whole = 0..self.count;
        // The ranks beyond the power of two give their values first, and get the sum at last.
        let other = self.rank.checked_sub(core);
        let beyond = (self.rank < extra).then_some(core + self.rank);
        if number < folds {
            let receive = beyond.map(|from| Receipt { from, range: whole.clone(), how: Take::Right });
            return PairwiseExchange { send: other.map(|to| (to, whole)), receive, longest: self.count };
        }
        if number + 1 == self.len() && extra > 0 {
            let receive = other.map(|from| Receipt { from, range: whole.clone(), how: Take::Copy });
            return PairwiseExchange { send: beyond.map(|to| (to, whole)), receive, longest: self.count };
        }
        let number = number - folds;
        let level = if number < levels { number } else { 2 * levels - 1 - number };
        // Rank 0 keeps the first half of all, which is never the shorter one.
        let longest = self.kept(0, level + 1).len();
        if self.rank >= core {
            return PairwiseExchange { send: None, receive: None, longest };
        }
        let partner = self.rank ^ 1 << level;
        let is_low = self.rank >> level & 1 == 0;
        let kept = self.kept(self.rank, level + 1);
        let given = self.kept(partner, level + 1);
        let how = if is_low { Take::Right } else { Take::Left };
        let (sent, taken, how) = if number < levels { (given, kept, how) } else { (kept, given, Take::Copy) };
        let receive = Some(Receipt { from: partner, range: taken, how });
        PairwiseExchange { send: Some((partner, sent)), receive, longest }
    }

    /// What `rank` still adds up after so many halvings.
    fn kept(&self, rank: usize, halvings: usize) -> Range<usize> {
        (0..halvings).fold(0..self.count, |range, level| {
            let half = piece(range.len(), self.size, rank >> level & 1, 2);
            range.start + half.start..range.start + half.end
        })
    }

    fn largest_node(&self) -> usize {
        self.nodes.iter().map(Vec::len).max().unwrap_or(1)
    }

    fn hierarchical(&self, number: usize) -> PairwiseExchange {
        let node = self.nodes.iter().position(|node| node.contains(&self.rank)).unwrap_or(0);
        let own = &self.nodes[node];
        let place = own.iter().position(|&rank| rank == self.rank).unwrap_or(0);
        let owners = self.nodes.iter().map(Vec::len).min().unwrap_or(1);
        let within = self.largest_node() - 1;
        let between = 2 * (self.nodes.len() - 1);
        let owned = |owner: usize| piece(self.count, self.size, owner, owners);
        let local = Node { place, ranks: own.len(), owners };
        if number < within {
            return local.scatter(number + 1, owned, |place| own[place]);
        }
        if number >= within + between {
            return local.gather(number - within - between + 1, owned, |place| own[place]);
        }
        let number = number - within;
        let mut round = match place < owners {
            true => ring(number, node, self.nodes.len(), owned(place), self.size, |node| self.nodes[node][place]),
            false => PairwiseExchange { send: None, receive: None, longest: 0 },
        };
        // The first piece is the longest one.
        round.longest = piece(owned(0).len(), self.size, 0, self.nodes.len()).len();
        round
    }
}

/// A round of a ring over `places`, of `whole`: a sum goes round first, and then goes round once more to all.
fn ring(
    number: usize,
    place: usize,
    places: usize,
    whole: Range<usize>,
    size: usize,
    rank: impl Fn(usize) -> usize,
) -> PairwiseExchange {
    let last = places - 1;
    let before = (place + places - 1) % places;
    let after = (place + 1) % places;
    let piece = |back: usize| {
        let piece = piece(whole.len(), size, (place + 2 * places - back) % places, places);
        whole.start + piece.start..whole.start + piece.end
    };
    let (sent, how) = if number < last { (number + 1, Take::Left) } else { (number - last, Take::Copy) };
    PairwiseExchange {
        send: Some((rank(after), piece(sent))),
        receive: Some(Receipt { from: rank(before), range: piece(sent + 1), how }),
        longest: self::piece(whole.len(), size, 0, places).len(),
    }
}

/// A rank's place among ranks that all exchange with each other, the first of which own a piece each.
struct Node {
    place: usize,
    ranks: usize,
    owners: usize,
}

impl Node {
    /// Every rank gives its values of a piece to the owner that is so many places before it.
    fn scatter(
        &self,
        distance: usize,
        piece: impl Fn(usize) -> Range<usize>,
        rank: impl Fn(usize) -> usize,
    ) -> PairwiseExchange {
        let Some((before, after)) = self.neighbours(distance) else { return self.idle(piece) };
        let receive = || Receipt { from: rank(after), range: piece(self.place), how: Take::Right };
        PairwiseExchange {
            send: (before < self.owners).then(|| (rank(before), piece(before))),
            receive: (self.place < self.owners).then(receive),
            longest: piece(0).len(),
        }
    }

    /// Every owner gives the sum of its piece to the rank that is so many places before it.
    fn gather(
        &self,
        distance: usize,
        piece: impl Fn(usize) -> Range<usize>,
        rank: impl Fn(usize) -> usize,
    ) -> PairwiseExchange {
        let Some((before, after)) = self.neighbours(distance) else { return self.idle(piece) };
        PairwiseExchange {
            send: (self.place < self.owners).then(|| (rank(before), piece(self.place))),
            receive: (after < self.owners).then(|| Receipt { from: rank(after), range: piece(after), how: Take::Copy }),
            longest: piece(0).len(),
        }
    }

    /// The places at a distance in either direction; `None` where larger nodes have ranks and this one has none.
    fn neighbours(&self, distance: usize) -> Option<(usize, usize)> {
        let place = |forward: usize| (self.place + forward) % self.ranks;
        (distance < self.ranks).then(|| (place(self.ranks - distance), place(distance)))
    }

    fn idle(&self, piece: impl Fn(usize) -> Range<usize>) -> PairwiseExchange {
        PairwiseExchange { send: None, receive: None, longest: piece(0).len() }
    }
}

/// Adds up a rank's own partial sums, in their order, in the place of the first.
///
/// # Safety
/// The operation's memory is valid and used by no other code.
pub(crate) unsafe fn add_up_partials<T: Element>(operation: &Operation, rank: usize) {
    let data = operation.output.cast::<T>();
    let count = operation.count;
    for partial in 1..operation.shards.partials(rank).count() {
        // SAFETY: guaranteed by the caller; partial sums do not overlap.
        unsafe {
            let values = data.wrapping_add(partial * operation.stride).cast_const();
            take(Take::Right, operation.reduction, values, data, count);
        }
    }
}

/// Takes `count` values into a rank's own.
///
/// # Safety
/// Both ranges are valid, do not overlap, and the second is used by no other code.
pub(crate) unsafe fn take<T: Element>(how: Take, reduction: Reduction, from: *const T, to: *mut T, count: usize) {
    // SAFETY: guaranteed by the caller.
    let (from, to) = unsafe { (std::slice::from_raw_parts(from, count), std::slice::from_raw_parts_mut(to, count)) };
    if how == Take::Copy {
        return to.copy_from_slice(from);
    }
    match reduction {
        Reduction::Sum => combine(how, from, to, T::sum),
        Reduction::Product => combine(how, from, to, T::product),
        Reduction::Max => combine(how, from, to, T::max),
        Reduction::Min => combine(how, from, to, T::min),
    }
}

fn combine<T: Element>(how: Take, from: &[T], to: &mut [T], combine: impl Fn(T, T) -> T) {
    let pairs = to.iter_mut().zip(from);
    match how {
        Take::Left => pairs.for_each(|(own, &come)| *own = combine(come, *own)),
        Take::Right | Take::Copy => pairs.for_each(|(own, &come)| *own = combine(*own, come)),
    }
}

#[cfg(test)]
#[path = "rounds_tests.rs"]
mod tests;
