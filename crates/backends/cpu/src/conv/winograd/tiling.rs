//! The tiles of a feature map, and which of the 36 products each of them needs.
//!
//! The products at the point at infinity contribute only to the fourth result (in the gradient of the weights, their
//! factor is only the fourth value), so a tile of three rows or columns does not need them. Therefore sides are divided
//! into nearly even pieces: 14 results are 3 + 4 + 3 + 4, with 22 products instead of 24, and 7 are 3 + 4.

use std::ops::Range;

use super::{PLANES, even_pieces};

/// Rows and columns of a whole tile of the result.
pub(super) const TILE: usize = 4;
/// Products along a side of a whole tile. The last is at infinity.
const POINTS: usize = 6;
const INFINITY: usize = POINTS - 1;

/// A tile of the result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tile {
    pub image: usize,
    /// Its first row and column.
    pub corner: [usize; 2],
    /// Rows and columns: [`TILE`] at most.
    pub size: [usize; 2],
}

impl Tile {
    /// Points along each side that contribute: all, or all except infinity.
    #[inline(always)]
    pub(super) fn points(&self) -> [usize; 2] {
        self.size.map(|size| if size == TILE { POINTS } else { INFINITY })
    }

    /// The tile's class. In the order of classes, the tiles that need a given plane are contiguous: only rows whole,
    /// both whole, only columns whole, neither whole.
    fn class(&self) -> usize {
        match self.size.map(|size| size == TILE) {
            [true, false] => 0,
            [true, true] => 1,
            [false, true] => 2,
            [false, false] => 3,
        }
    }
}

/// The tiles of a tensor `[batch, height, width, channels]`, class by class.
#[derive(Clone, Debug)]
pub(super) struct Tiling {
    pub tiles: Vec<Tile>,
    /// Where each class begins, and where the last one ends.
    bounds: [usize; 5],
}

impl Tiling {
    pub(super) fn new(batch: usize, size: [usize; 3]) -> Self {
        let mut tiles: Vec<Tile> = (0..batch)
            .flat_map(|image| even_pieces(size[0], TILE).map(move |rows| (image, rows)))
            .flat_map(|(image, rows)| even_pieces(size[1], TILE).map(move |columns| (image, rows.clone(), columns)))
            .map(|(image, rows, columns)| Tile {
                image,
                corner: [rows.start, columns.start],
                size: [rows.len(), columns.len()],
            })
            .collect();
        tiles.sort_by_key(Tile::class);
        let bounds = std::array::from_fn(|class| tiles.partition_point(|tile| tile.class() < class));
        Tiling { tiles, bounds }
    }

    /// Tiles of all images.
    pub(super) fn count(&self) -> usize {
        self.tiles.len()
    }

    /// The tiles of each class.
    pub(super) fn classes(&self) -> impl Iterator<Item = Range<usize>> {
        self.bounds.windows(2).map(|ends| ends[0]..ends[1])
    }

    /// The tiles that need a plane, as a range that counts from the first of `tiles`.
    pub(super) fn needing(&self, plane: usize, tiles: &Range<usize>) -> Range<usize> {
        let at_infinity = [plane / POINTS, plane % POINTS].map(|point| point == INFINITY);
        let [first, end] = match at_infinity {
            [false, false] => [0, 4],
            [true, false] => [0, 2],
            [true, true] => [1, 2],
            [false, true] => [1, 3],
        };
        let clamp = |bound: usize| bound.clamp(tiles.start, tiles.end) - tiles.start;
        clamp(self.bounds[first])..clamp(self.bounds[end])
    }

    /// Number of products for one channel of the source and one of the result.
    pub(super) fn matmuls(&self) -> usize {
        (0..PLANES).map(|plane| self.needing(plane, &(0..self.count())).len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_cut_evenly() {
        let check = |[height, width]: [usize; 2], tiles: usize, matmuls: usize| {
            let tiling = Tiling::new(1, [height, width, 1]);
            assert_eq!((tiling.count(), tiling.matmuls()), (tiles, matmuls), "{height}x{width}");
        };
        check([4, 4], 1, 36);
        check([4, 3], 1, 30);
        check([3, 4], 1, 30);
        check([1, 1], 1, 25);
        check([8, 8], 4, 4 * 36);
        check([7, 7], 4, 11 * 11);
        check([6, 6], 4, 10 * 10);
        check([14, 14], 16, 22 * 22);
        check([28, 5], 14, 42 * 10);
    }

    #[test]
    fn each_pixel_once_and_each_plane_where_needed() {
        for size in (1..18).flat_map(|height| (1..18).map(move |width| [height, width, 3])) {
            let tiling = Tiling::new(2, size);
            let mut covered = vec![0; 2 * size[0] * size[1]];
            for tile in &tiling.tiles {
                for (y, x) in (0..tile.size[0]).flat_map(|y| (0..tile.size[1]).map(move |x| (y, x))) {
                    covered[(tile.image * size[0] + tile.corner[0] + y) * size[1] + tile.corner[1] + x] += 1;
                }
            }
            assert!(covered.iter().all(|&count| count == 1), "{size:?}");
            let count = tiling.count();
            for tiles in [0..count, 0..count / 2, count / 3..count, 1..1] {
                for plane in 0..PLANES {
                    let counts = |tile: &Tile| plane / POINTS < tile.points()[0] && plane % POINTS < tile.points()[1];
                    let found = tiling.needing(plane, &tiles);
                    let expected = tiles.clone().filter(|&tile| counts(&tiling.tiles[tile]));
                    assert!(found.map(|tile| tiles.start + tile).eq(expected), "{size:?} {tiles:?} plane {plane}");
                }
            }
        }
    }
}
