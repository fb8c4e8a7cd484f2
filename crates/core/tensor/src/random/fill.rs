//! Random values for many elements at a time: the bits of [`RandomStream`], element by element, at a few nanoseconds
//! each.
//!
//! The loop below has no branch and no call, so that the compiler vectorises it. Its logarithm and cosine are not the
//! system's, and may differ from them in the last bits of an f64. That almost never affects the f32. Where it could,
//! the element is computed again by [`RandomStream`], so that the results are guaranteed to be the same.
//!
//! Sources: logarithm, sine and cosine are those of FreeBSD's msun (Sun Microsystems, 1993), each accurate to one unit
//! in the last place on its interval.

use super::{RandomStream, philox};

/// The distribution of values.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Distribution {
    /// Normal around 0.
    Normal {
        /// Standard deviation.
        std: f32,
    },
    /// Uniform in `[-bound, bound)`.
    Uniform {
        /// Half the width.
        bound: f32,
    },
}

impl Distribution {
    /// Sets `values[j]` to the first draw of element `first + j * stride` under a [key](super::key), at epoch 0.
    pub fn fill(self, key: [u32; 2], first: u64, stride: u64, values: &mut [f32]) {
        let elements = Elements { key, first, stride };
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq") {
            // SAFETY: the machine has the features.
            return unsafe { fill_avx512(self, elements, values) };
        } else if is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { fill_avx2(self, elements, values) };
        }
        fill(self, elements, values);
    }

    /// The first draw of an element, which [`Distribution::fill`] must equal.
    fn draw(self, key: [u32; 2], element: u64) -> f32 {
        let mut stream = RandomStream::with_key(key, 0, element);
        match self {
            Distribution::Normal { std } => (stream.normal() * f64::from(std)) as f32,
            Distribution::Uniform { bound } => stream.uniform(-f64::from(bound), f64::from(bound)) as f32,
        }
    }
}

/// Equally spaced elements.
#[derive(Clone, Copy)]
struct Elements {
    key: [u32; 2],
    first: u64,
    stride: u64,
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq")]
fn fill_avx512(distribution: Distribution, elements: Elements, values: &mut [f32]) {
    fill(distribution, elements, values);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn fill_avx2(distribution: Distribution, elements: Elements, values: &mut [f32]) {
    fill(distribution, elements, values);
}

#[inline(always)]
fn fill(distribution: Distribution, Elements { key, first, stride }: Elements, values: &mut [f32]) {
    /// Number of values that are computed again together.
    const BLOCK: usize = 64;
    /// Bound on the relative difference between [`normal`] and [`RandomStream::normal`]. The error of either is below
    /// eight units of 2^-53, so this leaves a wide margin.
    const MARGIN: f64 = 1.0 / (1u64 << 44) as f64;
    for (number, block) in values.chunks_mut(BLOCK).enumerate() {
        // Wrapping arithmetic, here and below, also because an overflow check would be a branch.
        let first = first.wrapping_add(stride.wrapping_mul((number * BLOCK) as u64));
        let element = |j: usize| first.wrapping_add(stride.wrapping_mul(j as u64));
        match distribution {
            Distribution::Uniform { bound } => {
                let bound = f64::from(bound);
                for (j, value) in block.iter_mut().enumerate() {
                    let [unit, _] = units(key, element(j));
                    *value = (-bound + (bound - -bound) * unit) as f32;
                }
            }
            Distribution::Normal { std } => {
                let std = f64::from(std);
                let mut unsure = 0;
                for (j, value) in block.iter_mut().enumerate() {
                    let near = normal(units(key, element(j))) * std;
                    let low = (near * (1.0 - MARGIN)) as f32;
                    let high = (near * (1.0 + MARGIN)) as f32;
                    // Rounding is monotonic: if both ends round alike, so does everything between them.
                    unsure |= low.to_bits() ^ high.to_bits();
                    *value = low;
                }
                if unsure != 0 {
                    for (j, value) in block.iter_mut().enumerate() {
                        *value = distribution.draw(key, element(j));
                    }
                }
            }
        }
    }
}

/// The first two draws of [`RandomStream::unit`] for an element.
#[inline(always)]
fn units(key: [u32; 2], element: u64) -> [f64; 2] {
    let [a, b, c, d] = philox(key, [0, 0, element as u32, (element >> 32) as u32]);
    let unit =
        |low: u32, high: u32| ((u64::from(low) | u64::from(high) << 32) >> 11) as f64 * (1.0 / (1u64 << 53) as f64);
    [unit(a, b), unit(c, d)]
}

/// [`RandomStream::normal`] to within a few units in the last place.
#[inline(always)]
fn normal([first, second]: [f64; 2]) -> f64 {
    (-2.0 * logarithm(1.0 - first)).sqrt() * cosine(std::f64::consts::TAU * second)
}

/// Adding it leaves the nearest integer in the low bits of the sum.
const ROUNDER: f64 = 1.5 * (1u64 << 52) as f64;

/// The natural logarithm of a normal number in `(0, 1]`.
#[inline(always)]
fn logarithm(x: f64) -> f64 {
    /// Makes a mantissa of sqrt(1/2) carry into the exponent.
    const CARRY: u64 = 0x3FF0_0000_0000_0000 - 0x3FE6_A09E_0000_0000;
    const LN2: [f64; 2] = [6.931_471_803_691_238e-1, 1.908_214_929_270_587_7e-10];
    const ODD: [f64; 4] =
        [6.666_666_666_666_735e-1, 2.857_142_874_366_239e-1, 1.818_357_216_161_805e-1, 1.479_819_860_511_658_6e-1];
    const EVEN: [f64; 3] = [3.999_999_999_940_942e-1, 2.222_219_843_214_978_4e-1, 1.531_383_769_920_937_3e-1];
    // x = 2^k (1 + f), sqrt(1/2) <= 1 + f < sqrt(2).
    let carried = x.to_bits().wrapping_add(CARRY);
    let k = f64::from_bits(carried >> 52 | 0x4330_0000_0000_0000) - ((1u64 << 52) as f64 + 1023.0);
    let f = f64::from_bits((carried & 0x000F_FFFF_FFFF_FFFF) + 0x3FE6_A09E_0000_0000) - 1.0;
    let half_square = 0.5 * f * f;
    let s = f / (2.0 + f);
    let z = s * s;
    let w = z * z;
    let even = w * (EVEN[0] + w * (EVEN[1] + w * EVEN[2]));
    let odd = z * (ODD[0] + w * (ODD[1] + w * (ODD[2] + w * ODD[3])));
    s * (half_square + even + odd) + k * LN2[1] - half_square + f + k * LN2[0]
}

/// The cosine of a number in `[0, 2 pi]`.
#[inline(always)]
fn cosine(x: f64) -> f64 {
    /// Half of pi. A small multiple of the first part is exact, and so is its difference from a nearby number.
    const HALF_PI: [f64; 2] = [std::f64::consts::FRAC_PI_2, 6.123_233_995_736_766e-17];
    const SINE: [f64; 6] = [
        -1.666_666_666_666_663_2e-1,
        8.333_333_333_322_49e-3,
        -1.984_126_982_985_795e-4,
        2.755_731_370_707_006_8e-6,
        -2.505_076_025_340_686_3e-8,
        1.589_690_995_211_55e-10,
    ];
    const COSINE: [f64; 6] = [
        4.166_666_666_666_66e-2,
        -1.388_888_888_887_411e-3,
        2.480_158_728_947_673e-5,
        -2.755_731_435_139_066_3e-7,
        2.087_572_321_298_175e-9,
        -1.135_964_755_778_819_5e-11,
    ];
    // x = quarters * pi/2 + r, |r| <= pi/4.
    let rounded = x * std::f64::consts::FRAC_2_PI + ROUNDER;
    let quarter = rounded.to_bits();
    let quarters = rounded - ROUNDER;
    let r = (x - quarters * HALF_PI[0]) - quarters * HALF_PI[1];
    let z = r * r;
    let polynomial = |c: [f64; 6]| c[0] + z * (c[1] + z * (c[2] + z * (c[3] + z * (c[4] + z * c[5]))));
    let sine = r + r * (z * polynomial(SINE));
    let half = 0.5 * z;
    let whole = 1.0 - half;
    let cosine = whole + (((1.0 - whole) - half) + z * z * polynomial(COSINE));
    let magnitude = if quarter & 1 == 0 { cosine } else { sine };
    // The second and third quarters flip the sign.
    f64::from_bits(magnitude.to_bits() ^ (quarter.wrapping_add(1) & 2) << 62)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISTRIBUTIONS: [Distribution; 3] = [
        Distribution::Normal { std: 1.0 },
        Distribution::Normal { std: 0.058_925_565 },
        Distribution::Uniform { bound: 0.044_194_173 },
    ];

    #[test]
    fn the_bits_of_the_stream() {
        let check = |key: [u32; 2], first: u64, stride: u64, len: usize| {
            for distribution in DISTRIBUTIONS {
                let drawn = |j: usize| distribution.draw(key, first.wrapping_add(stride * j as u64)).to_bits();
                let expected: Vec<u32> = (0..len).map(drawn).collect();
                let (mut found, mut portable) = (vec![0.0; len], vec![0.0; len]);
                distribution.fill(key, first, stride, &mut found);
                fill(distribution, Elements { key, first, stride }, &mut portable);
                for values in [found, portable] {
                    let bits: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
                    assert!(bits == expected, "{distribution:?}, {len} elements from {first} by {stride}");
                }
            }
        };
        check([0, 0], 0, 1, 0);
        check([1, 2], 0, 1, 1);
        check([3, 4], 5, 9, 15);
        check([5, 6], 7, 576, 64);
        check([7, 8], u64::from(u32::MAX) - 40, 1, 100);
        check([9, 10], u64::MAX - 300, 3, 129);
        check([11, 12], 1 << 40, 4608, 200_000);
    }

    /// The loop's arithmetic stays far inside the margin even if the logarithm or cosine is almost 0, or the argument
    /// is at an end of its range.
    #[test]
    fn near_the_system_mathematics() {
        let step = 1.0 / (1u64 << 53) as f64;
        let ends = |middle: f64| [-3.0, -1.0, 0.0, 1.0, 2.0].map(|steps| middle + steps * step);
        let mut units: Vec<f64> = [0.0, 0.125, 0.25, 0.2929, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0].map(ends).concat();
        units.extend((0..1000).map(|i| f64::from(i) / 1000.0));
        units.retain(|unit| (0.0..1.0).contains(unit));
        for &first in &units {
            for &second in &units {
                let expected = (-2.0 * (1.0 - first).ln()).sqrt() * (std::f64::consts::TAU * second).cos();
                let found = normal([first, second]);
                let relative = ((found - expected) / expected).abs();
                assert!(found == expected || relative < 1e-15, "{first:e} {second:e}: {found:e}, {expected:e}");
            }
        }
    }
}
