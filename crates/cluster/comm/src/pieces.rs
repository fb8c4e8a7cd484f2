//! Which elements of a buffer each rank owns, and the chunks in which they travel.
//!
//! A reduce-scatter is the first half of an all-reduce, in these pieces of the whole.
//! `all_gather_pieces` is the second half.

use std::ops::Range;

/// Elements of each partial sum that a chunk of at most `bytes` moves, cut at cache lines.
pub(crate) fn chunk_len(bytes: usize, size: usize, partials: usize) -> usize {
    bytes / partials / 64 * (64 / size)
}

/// The part of `len` elements of `size` bytes that `rank` of `ranks` owns. Cuts lie at cache lines, so the last parts may
/// be shorter or empty.
pub(crate) fn piece(len: usize, size: usize, rank: usize, ranks: usize) -> Range<usize> {
    let line = 64 / size;
    let each = len.div_ceil(ranks).next_multiple_of(line);
    let start = |rank: usize| each.saturating_mul(rank).min(len);
    start(rank)..start(rank.saturating_add(1))
}

/// Up to `len` elements of a piece, beginning with its `start`-th.
pub(crate) fn part_of(piece: &Range<usize>, start: usize, len: usize) -> Range<usize> {
    let part = piece.start.saturating_add(start).min(piece.end);
    part..part.saturating_add(len).min(piece.end)
}

/// The elements that are in both ranges.
pub(crate) fn intersection(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let start = one.start.max(other.start);
    start..one.end.min(other.end).max(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_everything_once() {
        for (len, size, ranks) in [(0, 4, 3), (1, 4, 3), (1000, 4, 3), (1000, 8, 5), (65536, 4, 2), (7, 1, 2)] {
            let mut end = 0;
            for rank in 0..ranks {
                let piece = piece(len, size, rank, ranks);
                assert_eq!(piece.start, end, "{len} {size} {rank} of {ranks}");
                end = piece.end;
            }
            assert_eq!(end, len);
        }
    }
}
