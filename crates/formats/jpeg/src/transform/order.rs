//! The order of coefficients in a block, in which the transforms with vectors need few shuffles.
//!
//! A pass multiplies pairs of rows by pairs of constants. So the rows of a pair alternate, and a pass over four columns leaves each
//! row's columns in the same order. Then these are pairs for the next pass as they are.

/// The place of each coefficient, in zigzag order, in rows of eight.
#[rustfmt::skip]
const ZIGZAG: [u8; 64] = [
     0,  1,  8, 16,  9,  2,  3, 10, 17, 24, 32, 25, 18, 11,  4,  5,
    12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13,  6,  7, 14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
    58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// The rows in pairs, and so the columns.
const PAIRS: [usize; 8] = [0, 4, 2, 6, 1, 7, 5, 3];

/// The place of each coefficient, in zigzag order, in eights.
pub(crate) const PLACES: [u8; 64] = {
    let mut places = ZIGZAG;
    let mut at = 0;
    while at < 64 {
        places[at] = place(places[at] as usize / 8, places[at] as usize % 8) as u8;
        at += 1;
    }
    places
};

/// The place of a row's coefficient. An eight has four columns of a pair of rows: the eights of the first four columns come first.
pub(super) const fn place(row: usize, column: usize) -> usize {
    let (row, column) = (in_pairs(row), in_pairs(column));
    (column / 4 * 4 + row / 2) * 8 + column % 4 * 2 + row % 2
}

/// Whether the coefficient at a place is in the first row.
pub(crate) const fn is_first_row(place: usize) -> bool {
    matches!(place, 0 | 2 | 4 | 6 | 32 | 34 | 36 | 38)
}

/// Where a row or a column is in [`PAIRS`].
const fn in_pairs(line: usize) -> usize {
    let mut at = 0;
    while PAIRS[at] != line {
        at += 1;
    }
    at
}
