//! The transforms with NEON, a block at a time.

use std::arch::aarch64::*;

use super::plain::{self, BITS};
use super::{Block, Group, Target};

/// Transforms the blocks of a group, and leaves zeros.
pub(super) fn inverse(group: &mut Group, targets: &[Target], samples: &mut [u8]) {
    for (block, target) in group.0.iter().zip(targets) {
        let rows = samples[target.at..target.end()].chunks_mut(target.stride);
        match target.edge {
            8 => {
                // SAFETY: every processor of the architecture has NEON.
                let block = unsafe { inverse_8(block) };
                rows.zip(block).for_each(|(row, block)| row[..8].copy_from_slice(&block));
            }
            4 => {
                // SAFETY: the same.
                let block = unsafe { inverse_4(block) };
                rows.zip(block).for_each(|(row, block)| row[..4].copy_from_slice(&block));
            }
            _ => return plain::inverse(group, targets, samples),
        }
    }
    *group = Group::ZERO;
}

/// Rows 0, 4, 2, 6, 1, 7, 5 and 3, which have their columns in this order, or such columns.
type Lines = [int16x8_t; 8];

#[inline]
#[target_feature(enable = "neon")]
fn load(block: &Block) -> Lines {
    // SAFETY: eight numbers follow.
    let eight = |at: usize| unsafe { vld1q_s16(block[at * 8..][..8].as_ptr()) };
    let pair = |at: usize| {
        let left = eight(at);
        let right = eight(at + 4);
        [vuzp1q_s16(left, right), vuzp2q_s16(left, right)]
    };
    let [x0, x4] = pair(0);
    let [x2, x6] = pair(1);
    let [x1, x7] = pair(2);
    let [x5, x3] = pair(3);
    [x0, x4, x2, x6, x1, x7, x5, x3]
}

/// `x · a + y · b`.
#[inline]
#[target_feature(enable = "neon")]
fn mix(x: int16x4_t, a: i16, y: int16x4_t, b: i16) -> int32x4_t {
    vmlal_n_s16(vmull_n_s16(x, a), y, b)
}

/// Adds `x · a + y · b` to `sums`.
#[inline]
#[target_feature(enable = "neon")]
fn add(sums: int32x4_t, x: int16x4_t, a: i16, y: int16x4_t, b: i16) -> int32x4_t {
    vmlal_n_s16(vmlal_n_s16(sums, x, a), y, b)
}

/// What rounds a sum before it is divided by 2^SHIFT.
#[inline]
#[target_feature(enable = "neon")]
fn rounding<const SHIFT: i32>() -> int32x4_t {
    vdupq_n_s32(1 << (SHIFT - 1))
}

/// Sums and differences, divided by 2^SHIFT and saturated.
#[inline]
#[target_feature(enable = "neon")]
fn butterfly<const SHIFT: i32>(even: int32x4_t, odd: int32x4_t) -> (int16x4_t, int16x4_t) {
    let divided = |sums| vqmovn_s32(vshrq_n_s32::<SHIFT>(sums));
    (divided(vaddq_s32(even, odd)), divided(vsubq_s32(even, odd)))
}

/// `plain::full`, for four numbers at once.
#[inline]
#[target_feature(enable = "neon")]
fn full<const SHIFT: i32>([x0, x4, x2, x6, x1, x7, x5, x3]: [int16x4_t; 8]) -> [int16x4_t; 8] {
    let first = |x| vaddq_s32(rounding::<SHIFT>(), vshll_n_s16::<{ BITS as i32 }>(x));
    let (sum, difference) = (first(vadd_s16(x0, x4)), first(vsub_s16(x0, x4)));
    let outer = mix(x2, 10_703, x6, 4433);
    let inner = mix(x2, 4433, x6, -10_704);
    let (z3, z4) = (vadd_s16(x3, x7), vadd_s16(x1, x5));
    let a = mix(z3, -6436, z4, 9633);
    let b = mix(z3, 9633, z4, 6437);
    let (y0, y7) = butterfly::<SHIFT>(vaddq_s32(sum, outer), add(b, x1, 4926, x7, -7373));
    let (y1, y6) = butterfly::<SHIFT>(vaddq_s32(difference, inner), add(a, x3, 4177, x5, -20_995));
    let (y2, y5) = butterfly::<SHIFT>(vsubq_s32(difference, inner), add(b, x5, -4176, x3, -20_995));
    let (y3, y4) = butterfly::<SHIFT>(vsubq_s32(sum, outer), add(a, x7, -4927, x1, -7373));
    [y0, y1, y2, y3, y4, y5, y6, y7]
}

/// `plain::half`, for four numbers at once.
#[inline]
#[target_feature(enable = "neon")]
fn half<const SHIFT: i32>([x0, _, x2, x6, x1, x7, x5, x3]: [int16x4_t; 8]) -> [int16x4_t; 4] {
    let first = vaddq_s32(rounding::<SHIFT>(), vshll_n_s16::<{ BITS as i32 + 1 }>(x0));
    let second = mix(x2, 15_137, x6, -6270);
    let outer = add(mix(x7, -4176, x5, -4926), x3, 7373, x1, 20_995);
    let inner = add(mix(x7, -1730, x5, 11_893), x3, -17_799, x1, 8697);
    let (y0, y3) = butterfly::<SHIFT>(vaddq_s32(first, second), outer);
    let (y1, y2) = butterfly::<SHIFT>(vsubq_s32(first, second), inner);
    [y0, y1, y2, y3]
}

/// A transform of four numbers at once, of eight at once.
#[inline]
#[target_feature(enable = "neon")]
fn eight<const N: usize>(lines: Lines, transform: impl Fn([int16x4_t; 8]) -> [int16x4_t; N]) -> [int16x8_t; N] {
    let low = transform(lines.map(|x| vget_low_s16(x)));
    let high = transform(lines.map(|x| vget_high_s16(x)));
    std::array::from_fn(|at| vcombine_s16(low[at], high[at]))
}

/// Swaps rows and columns: after three steps each number has gone from place `line`, `lane` to place `lane`, `line`.
#[inline]
#[target_feature(enable = "neon")]
fn transpose(lines: Lines) -> Lines {
    let step = |[a, b, c, d, e, f, g, h]: Lines| {
        let low = [vzip1q_s16(a, e), vzip1q_s16(b, f), vzip1q_s16(c, g), vzip1q_s16(d, h)];
        let high = [vzip2q_s16(a, e), vzip2q_s16(b, f), vzip2q_s16(c, g), vzip2q_s16(d, h)];
        [low[0], high[0], low[1], high[1], low[2], high[2], low[3], high[3]]
    };
    step(step(step(lines)))
}

#[target_feature(enable = "neon")]
fn inverse_8(block: &Block) -> [[u8; 8]; 8] {
    let columns = transpose(eight(load(block), |lines| full::<11>(lines)));
    transpose(eight(columns, |lines| full::<18>(lines))).map(|row| {
        let mut samples = [0; 8];
        let row = veor_u8(vreinterpret_u8_s8(vqmovn_s16(row)), vdup_n_u8(0x80));
        // SAFETY: the array has eight bytes.
        unsafe { vst1_u8(samples.as_mut_ptr(), row) };
        samples
    })
}

#[target_feature(enable = "neon")]
fn inverse_4(block: &Block) -> [[u8; 4]; 4] {
    let [a, b, c, d] = eight(load(block), |lines| half::<12>(lines));
    let columns = transpose([a, b, c, d, a, b, c, d]).map(|column| vget_low_s16(column));
    let [a, b, c, d] = half::<19>(columns).map(|column| vqmovn_s16(vcombine_s16(column, column)));
    let columns = [a, b, c, d].map(|column| vget_lane_u32::<0>(vreinterpret_u32_s8(column)).to_le_bytes());
    std::array::from_fn(|row| columns.map(|column| column[row] ^ 0x80))
}
