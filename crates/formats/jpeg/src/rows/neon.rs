//! Upsampling and conversion of colours with NEON.
//!
//! Upsampling is the plain code, which the compiler turns into vectors well. Storing three bytes a pixel it does not.

use std::arch::aarch64::*;

use super::plain;
pub(super) use super::plain::{both, columns, rows};

/// Pixels of a step.
const STEP: usize = 8;

pub(super) fn ycc_to_rgb(rows: [&[u8]; 3], out: &mut [u8]) {
    // SAFETY: every processor of the architecture has NEON.
    unsafe { in_steps(rows, out, |rows| convert(rows), plain::ycc_to_rgb) }
}

pub(super) fn interleave(rows: [&[u8]; 3], out: &mut [u8]) {
    // SAFETY: the same.
    unsafe { in_steps(rows, out, |rows| rows, plain::interleave) }
}

/// Makes pixels eight at a time. The last step overlaps the one before it; fewer than eight pixels are `plain`'s.
#[inline]
#[target_feature(enable = "neon")]
fn in_steps(
    rows: [&[u8]; 3],
    out: &mut [u8],
    step: impl Fn([uint8x8_t; 3]) -> [uint8x8_t; 3],
    plain: impl Fn([&[u8]; 3], &mut [u8]),
) {
    let width = out.len() / 3;
    if width < STEP {
        return plain(rows, out);
    }
    let rows = rows.map(|row| &row[..width]);
    for at in (0..width - STEP).step_by(STEP).chain([width - STEP]) {
        // SAFETY: eight samples follow `at` in each row.
        let [r, g, b] = step(rows.map(|row| unsafe { vld1_u8(row[at..at + STEP].as_ptr()) }));
        // SAFETY: eight pixels are three times as many bytes.
        unsafe { vst3_u8(out[at * 3..][..STEP * 3].as_mut_ptr(), uint8x8x3_t(r, g, b)) };
    }
}

/// The plain formulas. A product with a factor of 15 bits is rounded to the same number, as there are only 256 differences.
#[inline]
#[target_feature(enable = "neon")]
fn convert([y, cb, cr]: [uint8x8_t; 3]) -> [uint8x8_t; 3] {
    let twice = |x| vshll_n_s8::<1>(vreinterpret_s8_u8(veor_u8(x, vdup_n_u8(0x80))));
    let y = vreinterpretq_s16_u16(vmovl_u8(y));
    let b = twice(cb);
    let r = twice(cr);
    let mixed = |b, r| vrshrn_n_s32::<16>(vmlal_n_s16(vmull_n_s16(b, -11_277), r, -23_401));
    let green = vcombine_s16(mixed(vget_low_s16(b), vget_low_s16(r)), mixed(vget_high_s16(b), vget_high_s16(r)));
    let (red, blue) = (vqrdmulhq_n_s16(r, 22_971), vqrdmulhq_n_s16(b, 29_033));
    [red, green, blue].map(|part| vqmovun_s16(vaddq_s16(y, part)))
}
