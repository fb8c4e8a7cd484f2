//! Matmuls of f32 whose operands are split into three parts of bf16, for levels with tile registers: their layout, and who does them.

use super::Matmul;
#[cfg(any(target_arch = "x86_64", test))]
use super::amx;
use crate::element::Element;
use crate::isa::Isa;

/// Parts of a value.
pub(super) const PARTS: usize = 3;
/// Products of parts for a product of two values.
pub(crate) const SPLIT_PRODUCTS: f64 = 6.0;
/// Words in a row of a register, and rows.
pub(super) const SIDE: usize = 16;
/// Values of the depth that are multiplied at once.
pub(crate) const SPLIT_VALUES: usize = 2 * SIDE;
/// Words of the parts of `SPLIT_VALUES` rows of a panel.
pub(super) const SPLIT_WORDS: usize = PARTS * 2 * SIDE * SIDE;

/// Words of a split panel of `depth` rows. Beyond the depth they are zeros.
pub(crate) fn split_words(depth: usize) -> usize {
    depth.div_ceil(SPLIT_VALUES) * SPLIT_WORDS
}

/// Fewest columns, and least depth, of a matmul that is faster with B split.
const MIN_SPLIT: [usize; 2] = [40, 32];

/// Whether matmuls of words of `E`, of so many columns and such a depth, should be done by [`multiply_split`]. It does not depend on
/// their rows, so bits do not depend on how these are divided.
pub(crate) fn splits<E: Element>(isa: Isa, columns: usize, depth: usize) -> bool {
    isa == Isa::Amx && E::PER_WORD == 1 && columns >= MIN_SPLIT[0] && depth >= MIN_SPLIT[1]
}

/// As [`super::multiply`], for matmuls of f32 whose B consists of panels that [`split_panels`] wrote. A is split on the way.
///
/// # Safety
/// As for [`super::multiply`]; [`splits`].
pub(crate) unsafe fn multiply_split<const TRANSPOSED: bool>(isa: Isa, matmuls: impl IntoIterator<Item = Matmul<f32>>) {
    debug_assert_eq!(isa, Isa::Amx);
    #[cfg(test)]
    if !isa.available() {
        // SAFETY: the caller's promise.
        return unsafe { amx::split::multiply::<amx::Emulated, TRANSPOSED>(matmuls) };
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
    unsafe {
        amx::multiply_split_in_registers::<TRANSPOSED>(matmuls)
    };
    #[cfg(not(target_arch = "x86_64"))]
    drop(matmuls);
}

/// Splits the panels of B, which are [`split_words`] apart. `sizes` are the values from one row of B to the next, the
/// number of rows and the number of columns.
///
/// # Safety
/// `isa` runs here, and has split matmuls; the addresses are valid.
pub(crate) unsafe fn split_panels(isa: Isa, from: *const f32, sizes: [usize; 3], to: *mut f32) {
    debug_assert_eq!(isa, Isa::Amx);
    #[cfg(test)]
    if !isa.available() {
        // SAFETY: the caller's promise.
        return unsafe { amx::split::split_panels::<amx::Emulated>(from, sizes, to) };
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
    unsafe {
        amx::split_panels_in_registers(from, sizes, to)
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, sizes, to);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::gemm::panel_width;
    use crate::guard::{Edge, Guarded};
    use crate::test_support::noise;

    /// A matmul that is added to C, with its rows divided at `cuts`.
    fn split<const T: bool>(edge: Edge, [rows, columns, depth]: [usize; 3], cuts: &[usize]) -> Vec<f32> {
        let a = Guarded::new(edge, &noise(1, rows * depth));
        let b = Guarded::new(edge, &noise(2, depth * columns));
        let panels = columns.div_ceil(panel_width(Isa::Amx));
        let mut split = Guarded::new(edge, &vec![f32::NAN; panels * split_words(depth)]);
        // SAFETY: B has its rows, and the panels their size.
        unsafe { split_panels(Isa::Amx, b.as_ptr(), [columns, depth, columns], split.as_mut_ptr()) };
        let c_rows: Vec<usize> = (0..rows).map(|row| (rows - 1 - row) * columns).collect();
        let mut c = Guarded::new(edge, &noise(3, rows * columns));
        let to = c.as_mut_ptr();
        let matmuls = cuts.windows(2).filter(|ends| ends[0] < ends[1]).map(|ends| Matmul {
            rows: ends[1] - ends[0],
            columns,
            depth,
            a: a[if T { ends[0] } else { ends[0] * depth }..].as_ptr(),
            stride: if T { rows } else { depth },
            b: split.as_ptr(),
            panel: split_words(depth),
            c: to,
            c_rows: c_rows[ends[0]..].as_ptr(),
            init: to,
            init_rows: c_rows[ends[0]..].as_ptr(),
            far: true,
        });
        // SAFETY: the buffers above have the sizes that the matmuls describe.
        unsafe { multiply_split::<T>(Isa::Amx, matmuls) };
        c.to_vec()
    }

    /// The same as chains of multiply-adds.
    fn plain<const T: bool>([rows, columns, depth]: [usize; 3]) -> Vec<f32> {
        let a = noise(1, rows * depth);
        let b = noise(2, depth * columns);
        let mut c = noise(3, rows * columns);
        for (i, j) in (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))) {
            let add =
                |sum: f32, p: usize| a[if T { p * rows + i } else { i * depth + p }].mul_add(b[p * columns + j], sum);
            c[(rows - 1 - i) * columns + j] += (0..depth).fold(0.0, add);
        }
        c
    }

    /// The greatest error of results in f32, in units of the sums of their terms' magnitudes, and the mean error.
    fn errors<const T: bool>(size @ [rows, columns, depth]: [usize; 3], found: &[f32]) -> [f64; 2] {
        let a = noise(1, rows * depth);
        let b = noise(2, depth * columns);
        let base = noise(3, rows * columns);
        let [mut most, mut mean] = [0.0f64; 2];
        for (i, j) in (0..size[0]).flat_map(|i| (0..columns).map(move |j| (i, j))) {
            let at = (rows - 1 - i) * columns + j;
            let term =
                |p: usize| f64::from(a[if T { p * rows + i } else { i * depth + p }]) * f64::from(b[p * columns + j]);
            let start = f64::from(base[at]);
            let expected = (0..depth).map(term).sum::<f64>() + start;
            let scale = (0..depth).map(|p| term(p).abs()).sum::<f64>() + start.abs();
            let error = (f64::from(found[at]) - expected) / scale;
            (most, mean) = (most.max(error.abs()), mean + error / (rows * columns) as f64);
        }
        [most, mean]
    }

    fn check<const T: bool>(edge: Edge, size: [usize; 3], cut: usize) {
        let found = split::<T>(edge, size, &[0, size[0]]);
        let [most, _] = errors::<T>(size, &found);
        let [most_of_plain, _] = errors::<T>(size, &plain::<T>(size));
        // Sums of few terms are rounded more often than in f32, where each is rounded once: by up to two units in the last place.
        // What a product of parts less would leave out is 4e-6 of a term.
        assert!(most <= most_of_plain + 2.4e-7, "{size:?}: {most:e}, in f32 {most_of_plain:e}");
        assert_eq!(split::<T>(edge, size, &[0, cut.min(size[0]), size[0]]), found, "{size:?} cut at {cut}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn split_matmuls_are_as_exact_as_those_of_f32(
            rows in 1usize..75,
            columns in 1usize..80,
            depth in 1usize..140,
            cut in 0usize..75,
        ) {
            for edge in Edge::BOTH {
                check::<false>(edge, [rows, columns, depth], cut);
                check::<true>(edge, [rows, columns, depth], cut);
            }
        }
    }

    #[test]
    fn great_depths_are_split_in_pieces() {
        for depth in [384, 385, 500, 1100] {
            check::<false>(Edge::BOTH[0], [33, 40, depth], 17);
            check::<true>(Edge::BOTH[0], [33, 40, depth], 17);
        }
    }

    /// What is left out of the products has no preferred sign.
    #[test]
    fn errors_are_not_biased() {
        let size = [64, 64, 384];
        let [_, mean] = errors::<false>(size, &split::<false>(Edge::BOTH[0], size, &[0, 64]));
        let [_, mean_of_plain] = errors::<false>(size, &plain::<false>(size));
        assert!(mean.abs() <= mean_of_plain.abs() + 1e-9, "{mean:e}, in f32 {mean_of_plain:e}");
    }

    #[test]
    fn the_parts_of_a_value_add_up_to_it() {
        let all = [1.0, -1.0, 1.0 + f32::EPSILON, 0.1, 1e-30, 3e38, 16_777_215.0, -0.0, f32::MIN_POSITIVE];
        let b: Vec<f32> = all.into_iter().cycle().take(32 * 16).collect();
        let mut split = vec![f32::NAN; split_words(32)];
        // SAFETY: 32 rows of 16 columns.
        unsafe { split_panels(Isa::Amx, b.as_ptr(), [16, 32, 16], split.as_mut_ptr()) };
        for (at, value) in b.iter().enumerate() {
            let row = at / 16;
            let column = at % 16;
            let half = |part: usize| {
                let word = split[part * 2 * SIDE * SIDE + row % SIDE * SIDE + column].to_bits();
                f32::from_bits(if row < SIDE { word << 16 } else { word & 0xffff_0000 })
            };
            assert_eq!(half(0) + half(1) + half(2), *value, "{value:e}");
        }
    }
}
