//! The transforms in plain Rust.

use super::order::place;
use super::{Group, Target};

/// Fractional bits of the constants.
pub(super) const BITS: u32 = 13;

/// The sample of a block whose other coefficients are zero.
pub(super) fn flat(first: i16) -> u8 {
    to_sample((i32::from(first) + 4) >> 3)
}

/// Transforms the blocks of a group, and leaves zeros.
pub(super) fn inverse(group: &mut Group, targets: &[Target], samples: &mut [u8]) {
    for (block, &target) in group.0.iter().zip(targets) {
        let block = |row: usize, column: usize| block[place(row, column)];
        match target.edge {
            8 => passes(block, full, 11, 18, target, samples),
            4 => passes(block, half, 12, 19, target, samples),
            2 => passes(block, quarter, 13, 20, target, samples),
            _ => samples[target.at] = flat(block(0, 0)),
        }
    }
    *group = Group::ZERO;
}

/// One transform of columns, then one of rows, each of which divides by a power of two.
fn passes<const N: usize>(
    block: impl Fn(usize, usize) -> i16,
    transform: impl Fn([i16; 8]) -> [i32; N],
    first_shift: u32,
    second_shift: u32,
    target: Target,
    samples: &mut [u8],
) {
    let shifted = |sum: i32, shift: u32| sum.wrapping_add(1 << (shift - 1)) >> shift;
    let columns: [[i32; N]; 8] = std::array::from_fn(|column| transform(std::array::from_fn(|row| block(row, column))));
    for row in 0..N {
        let between = std::array::from_fn(|column| saturate(shifted(columns[column][row], first_shift)));
        let sums = transform(between);
        let out = &mut samples[target.at + row * target.stride..][..N];
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = to_sample(shifted(sum, second_shift));
        }
    }
}

fn saturate(sum: i32) -> i16 {
    sum.clamp(i32::from(i16::MIN), i32::from(i16::MAX)) as i16
}

fn to_sample(sum: i32) -> u8 {
    (sum.clamp(-128, 127) + 128) as u8
}

/// Wrapping sums of products.
fn mix<const N: usize>(terms: [(i16, i32); N]) -> i32 {
    terms.into_iter().fold(0, |sum: i32, (x, factor)| sum.wrapping_add(i32::from(x).wrapping_mul(factor)))
}

/// Sums and differences of the even and the odd part.
fn butterflies<const H: usize, const N: usize>(even: [i32; H], odd: [i32; H]) -> [i32; N] {
    std::array::from_fn(|at| match at {
        at if at < H => even[at].wrapping_add(odd[at]),
        at => even[N - 1 - at].wrapping_sub(odd[N - 1 - at]),
    })
}

/// `jpeg_idct_islow`: 8 samples.
fn full(x: [i16; 8]) -> [i32; 8] {
    let (sum, difference) = (x[0].wrapping_add(x[4]), x[0].wrapping_sub(x[4]));
    let outer = mix([(x[2], 10_703), (x[6], 4433)]);
    let inner = mix([(x[2], 4433), (x[6], -10_704)]);
    let (sum, difference) = (i32::from(sum) << BITS, i32::from(difference) << BITS);
    let even = [
        sum.wrapping_add(outer),
        difference.wrapping_add(inner),
        difference.wrapping_sub(inner),
        sum.wrapping_sub(outer),
    ];
    let (z3, z4) = (x[3].wrapping_add(x[7]), x[1].wrapping_add(x[5]));
    let a = mix([(z3, -6436), (z4, 9633)]);
    let b = mix([(z3, 9633), (z4, 6437)]);
    let odd = [
        mix([(x[1], 4926), (x[7], -7373)]).wrapping_add(b),
        mix([(x[3], 4177), (x[5], -20_995)]).wrapping_add(a),
        mix([(x[5], -4176), (x[3], -20_995)]).wrapping_add(b),
        mix([(x[7], -4927), (x[1], -7373)]).wrapping_add(a),
    ];
    butterflies(even, odd)
}

/// `jpeg_idct_4x4`: 4 samples.
fn half(x: [i16; 8]) -> [i32; 4] {
    let first = i32::from(x[0]) << (BITS + 1);
    let second = mix([(x[2], 15_137), (x[6], -6270)]);
    let odd = [
        mix([(x[7], -4176), (x[5], -4926), (x[3], 7373), (x[1], 20_995)]),
        mix([(x[7], -1730), (x[5], 11_893), (x[3], -17_799), (x[1], 8697)]),
    ];
    butterflies([first.wrapping_add(second), first.wrapping_sub(second)], odd)
}

/// `jpeg_idct_2x2`: 2 samples.
fn quarter(x: [i16; 8]) -> [i32; 2] {
    let first = i32::from(x[0]) << (BITS + 2);
    butterflies([first], [mix([(x[7], -5906), (x[5], 6967), (x[3], -10_426), (x[1], 29_692)])])
}
