//! The matrix product under convolution and linear layers: `C = init + A B` by register tiles.
//!
//! A is read in place or from a packed block, with either its rows or its columns contiguous; B comes in panels of
//! [`panel_width`] columns, padded with zeros; rows of C lie anywhere, by a table of offsets. An element of C is one
//! chain of multiply-adds over the depth, so its bits do not depend on how rows and columns were cut into tiles.

mod avx2;
mod avx512;
mod portable;
mod tile;

use tile::Tile;

use crate::isa::Isa;

/// The most rows of a register tile at any level.
pub(crate) const MAX_TILE_ROWS: usize = 14;

/// A function for each tile height from 1 up.
type Tiles = &'static [unsafe fn(&Tile)];

/// The register tiles of one level.
struct Level {
    lanes: usize,
    /// A's columns contiguous; tiles of one vector, then of two.
    plain: [Tiles; 2],
    /// A's rows contiguous.
    transposed: [Tiles; 2],
}

fn level(isa: Isa) -> &'static Level {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => &avx512::LEVEL,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &avx2::LEVEL,
        _ => &portable::LEVEL,
    }
}

/// Columns of a panel of B.
pub(crate) fn panel_width(isa: Isa) -> usize {
    2 * level(isa).lanes
}

/// Rows of the tallest tile.
pub(crate) fn tile_rows(isa: Isa) -> usize {
    level(isa).plain[1].len()
}

/// One product. Pointers and strides are in f32 values.
pub(crate) struct Product {
    /// Rows of A and C.
    pub rows: usize,
    /// Columns of B and C.
    pub columns: usize,
    /// Columns of A, rows of B; at least 1.
    pub depth: usize,
    /// A: element (i, p) at `i * stride + p`, or `i + p * stride` if transposed.
    pub a: *const f32,
    /// See `a`.
    pub stride: usize,
    /// See `a`.
    pub transposed: bool,
    /// Panels of B: element (p, j) at `(j / width) * panel + p * width + j % width`.
    pub b: *const f32,
    /// Distance between panels.
    pub panel: usize,
    /// C: element (i, j) at `c_rows[i] + j`.
    pub c: *mut f32,
    /// See `c`.
    pub c_rows: *const usize,
    /// What the product is added to: element (i, j) at `init_rows[i] + j`; null for nothing. May be C itself.
    pub init: *const f32,
    /// See `init`.
    pub init_rows: *const usize,
}

/// Computes one product.
///
/// # Safety
/// `isa` is available; every address the product describes is valid, and nobody else writes C or reads it meanwhile.
pub(crate) unsafe fn multiply(isa: Isa, product: &Product) {
    let Product { rows, columns, depth, a, stride, transposed, b, panel, c, c_rows, init, init_rows } = *product;
    let level = level(isa);
    let tiles = if transposed { &level.transposed } else { &level.plain };
    let (height, width) = (tiles[1].len(), 2 * level.lanes);
    // Tiles of nearly one height: 16 rows go as 8 + 8, not as 14 + 2.
    let count = rows.div_ceil(height);
    for j in (0..columns).step_by(width) {
        let columns = (columns - j).min(width);
        let tiles = tiles[usize::from(columns > level.lanes)];
        for i in 0..count {
            let (first, end) = (rows * i / count, rows * (i + 1) / count);
            // SAFETY: the caller's promise; the tile lies inside the product.
            unsafe {
                let tile = Tile {
                    depth,
                    a: a.add(if transposed { first } else { first * stride }),
                    stride,
                    b: b.add(j / width * panel),
                    columns,
                    c: c.add(j),
                    c_rows: c_rows.add(first),
                    init: if init.is_null() { init } else { init.add(j) },
                    init_rows: init_rows.add(first),
                };
                tiles[end - first - 1](&tile);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::test_support::{available, noise};

    fn check(isa: Isa, rows: usize, columns: usize, depth: usize, transposed: bool, init: bool) {
        let width = panel_width(isa);
        let stride = if transposed { rows + 3 } else { depth + 5 };
        let a = noise(1, if transposed { depth * stride } else { rows * stride });
        let panels = columns.div_ceil(width);
        let b = noise(2, panels * depth * width);
        let ldc = columns + 2;
        let base = noise(3, rows * ldc);
        let mut c = base.clone();
        let c_rows: Vec<usize> = (0..rows).map(|i| (rows - 1 - i) * ldc).collect();
        let product = Product {
            rows,
            columns,
            depth,
            a: a.as_ptr(),
            stride,
            transposed,
            b: b.as_ptr(),
            panel: depth * width,
            c: c.as_mut_ptr(),
            c_rows: c_rows.as_ptr(),
            init: if init { base.as_ptr() } else { std::ptr::null() },
            init_rows: c_rows.as_ptr(),
        };
        // SAFETY: the buffers above have the sizes that the product describes.
        unsafe { multiply(isa, &product) };
        for i in 0..rows {
            for j in 0..ldc {
                let at = c_rows[i] + j;
                if j >= columns {
                    assert_eq!(c[at].to_bits(), base[at].to_bits(), "wrote beyond the columns");
                    continue;
                }
                let element = |p: usize| f64::from(a[if transposed { i + p * stride } else { i * stride + p }]);
                let weight = |p: usize| f64::from(b[j / width * depth * width + p * width + j % width]);
                let sum: f64 = (0..depth).map(|p| element(p) * weight(p)).sum();
                let expected = sum + if init { f64::from(base[at]) } else { 0.0 };
                assert!((f64::from(c[at]) - expected).abs() < 1e-5 * (depth as f64).sqrt(), "{isa} row {i} column {j}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn equals_the_plain_product(
            rows in 1usize..40,
            columns in 1usize..80,
            depth in 1usize..30,
            transposed: bool,
            init: bool,
        ) {
            for isa in available() {
                check(isa, rows, columns, depth, transposed, init);
            }
        }
    }
}
