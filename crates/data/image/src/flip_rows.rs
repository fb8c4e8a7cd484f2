//! Rows of RGB pixels in reverse order, in place, from both ends to the middle. All levels give the same bytes.

use enmasse_system::simd::SimdLevel;

/// Flips each row of `row_bytes` bytes, left to right.
pub(crate) fn flip_rows(pixels: &mut [u8], row_bytes: usize) {
    mirror_at(SimdLevel::default(), pixels, row_bytes);
}

fn mirror_at(level: SimdLevel, pixels: &mut [u8], row_bytes: usize) {
    let rows = pixels.chunks_exact_mut(row_bytes);
    match level {
        SimdLevel::Plain => rows.for_each(plain),
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2(has) => rows.for_each(|row| avx2::flip_rows(has, row)),
        // Longer vectors save hardly more: each would still be stored across two lines of the cache.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx512(has) => rows.for_each(|row| avx2::flip_rows(has.avx2(), row)),
        #[cfg(target_arch = "aarch64")]
        SimdLevel::Neon => rows.for_each(neon::flip_rows),
    }
}

fn plain(row: &mut [u8]) {
    row.as_chunks_mut::<3>().0.reverse();
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use enmasse_system::simd::Avx2;

    /// Bytes of a vector.
    const VECTOR: usize = 16;
    /// Bytes of the five pixels that a step takes from each end.
    const STEP: usize = 15;

    /// Flips a row. `_has` proves that the processor has AVX2.
    pub fn flip_rows(_has: Avx2, row: &mut [u8]) {
        // As long as the vectors of both ends have no byte in common.
        let steps = row.len().saturating_sub(2 * (VECTOR - STEP)) / (2 * STEP);
        if steps > 0 {
            // SAFETY: the processor has AVX2, and the row is long enough for these steps.
            unsafe { exchange(row, steps) };
        }
        let end = row.len() - STEP * steps;
        super::plain(&mut row[STEP * steps..end]);
    }

    /// Exchanges `STEP * steps` bytes of each end.
    ///
    /// SAFETY: there is at least one step, and `2 * (VECTOR - STEP)` bytes more than those of all steps.
    #[target_feature(enable = "avx2")]
    unsafe fn exchange(row: &mut [u8], steps: usize) {
        // The pixels of one end for the other one, whose byte nearest to the middle stays.
        let to_left = _mm_setr_epi8(13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, -1);
        let to_right = _mm_setr_epi8(-1, 12, 13, 14, 9, 10, 11, 6, 7, 8, 3, 4, 5, 0, 1, 2);
        let (start, length) = (row.as_mut_ptr(), row.len());
        let ends = |step: usize| {
            // SAFETY: the caller's promise.
            unsafe {
                let left = start.add(STEP * step);
                let right = start.add(length - VECTOR - STEP * step);
                (left, right, _mm_loadu_si128(left.cast()), _mm_loadu_si128(right.cast()))
            }
        };
        let mut next = ends(0);
        for step in 0..steps {
            let (left, right, first, last) = next;
            // Read before the byte that both steps have in common is written: otherwise it would wait for that.
            next = ends((step + 1).min(steps - 1));
            // SAFETY: as for reading.
            unsafe {
                _mm_storeu_si128(left.cast(), _mm_blendv_epi8(_mm_shuffle_epi8(last, to_left), first, to_left));
                _mm_storeu_si128(right.cast(), _mm_blendv_epi8(_mm_shuffle_epi8(first, to_right), last, to_right));
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use std::arch::aarch64::*;

    /// Bytes of the 16 pixels that a step takes from each end.
    const STEP: usize = 48;

    /// Flips a row.
    pub fn flip_rows(row: &mut [u8]) {
        let bytes = row.len() / (2 * STEP) * STEP;
        let (left, rest) = row.split_at_mut(bytes);
        let (middle, right) = rest.split_at_mut(rest.len() - bytes);
        let steps = left.as_chunks_mut().0.iter_mut().zip(right.as_chunks_mut().0.iter_mut().rev());
        // SAFETY: every processor of the architecture has NEON.
        steps.for_each(|(left, right)| unsafe { exchange(left, right) });
        super::plain(middle);
    }

    #[target_feature(enable = "neon")]
    fn exchange(left: &mut [u8; STEP], right: &mut [u8; STEP]) {
        // One colour of all pixels.
        let turned = |color| {
            let halves = vrev64q_u8(color);
            vextq_u8::<8>(halves, halves)
        };
        let flipped = |uint8x16x3_t(r, g, b)| uint8x16x3_t(turned(r), turned(g), turned(b));
        // SAFETY: both arrays have as many bytes as three vectors.
        unsafe {
            let (first, last) = (vld3q_u8(left.as_ptr()), vld3q_u8(right.as_ptr()));
            vst3q_u8(left.as_mut_ptr(), flipped(last));
            vst3q_u8(right.as_mut_ptr(), flipped(first));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of every length around those of the vectors' steps.
    #[test]
    fn levels_agree() {
        for width in 1..200 {
            let row_bytes = 3 * width;
            let before: Vec<u8> = (0..3 * row_bytes).map(|at| (at % 251) as u8).collect();
            let flipped: Vec<u8> = before
                .chunks_exact(row_bytes)
                .flat_map(|row| row.chunks_exact(3).rev().flatten().copied().collect::<Vec<_>>())
                .collect();
            for level in SimdLevel::all() {
                let mut pixels = before.clone();
                mirror_at(level, &mut pixels, row_bytes);
                assert!(pixels == flipped, "{level:?}, {width} pixels");
            }
        }
    }
}
