//! Random numbers as pure functions: Philox4x32-10, keyed by their purpose.
//!
//! Initial weights, order, augmentation and dropout draw from them. There is no generator whose
//! state could differ between ranks, threads or a resumed run, and none to save. A number is a
//! function of (seed, purpose, epoch, index, position), so any rank can compute any sample's
//! numbers. The epoch is an argument, so nobody can forget to set it.
//!
//! Source: J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011; checked
//! against its known answers.

mod fill;
mod permutation;

pub use fill::Distribution;

/// One block of Philox4x32-10: four random words from a 128-bit counter and a 64-bit key.
// Always inlined, because the compiler vectorises only a loop without calls.
#[inline(always)]
pub fn philox(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    const MULTIPLIER: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    let [mut k0, mut k1] = key;
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    for _ in 0..10 {
        let (p0, p1) = (MULTIPLIER[0] * u64::from(c0), MULTIPLIER[1] * u64::from(c2));
        (c0, c1, c2, c3) = ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
        (k0, k1) = (k0.wrapping_add(WEYL[0]), k1.wrapping_add(WEYL[1]));
    }
    [c0, c1, c2, c3]
}

/// The key of a purpose: a 64-bit mix of the user's seed and a name such as `"dropout classifier.1"`.
pub fn key(seed: u64, purpose: &str) -> [u32; 2] {
    // FNV-1a over the name, then the finaliser of SplitMix64 over both: nearby seeds and names give unrelated keys.
    let name = purpose.bytes().fold(0xCBF2_9CE4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3));
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    let mixed = mix(mix(seed.wrapping_add(0x9E37_79B9_7F4A_7C15)) ^ name);
    [mixed as u32, (mixed >> 32) as u32]
}

/// A word in `[0, 1)` with 24 random bits, exactly representable in f32.
pub fn unit_f32(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// The random numbers of one purpose, epoch and index, read in order.
///
/// ```
/// use enmasse_tensor::RandomStream;
/// let draw = |index| RandomStream::new(7, "augment crop", 3, index).next_u32();
/// assert_eq!(draw(5), draw(5));
/// assert_ne!(draw(5), draw(6));
/// ```
#[derive(Clone, Debug)]
pub struct RandomStream {
    key: [u32; 2],
    counter: [u32; 4],
    block: [u32; 4],
    used: usize,
}

impl RandomStream {
    /// The stream for `purpose` under the user's `seed`, at `epoch`, for sample or element `index`.
    /// Epochs beyond 2^32 repeat.
    pub fn new(seed: u64, purpose: &str, epoch: u64, index: u64) -> Self {
        Self::with_key(key(seed, purpose), epoch, index)
    }

    /// The same with a precomputed [`key`] of seed and purpose.
    pub(crate) fn with_key(key: [u32; 2], epoch: u64, index: u64) -> Self {
        let counter = [0, epoch as u32, index as u32, (index >> 32) as u32];
        RandomStream { key, counter, block: [0; 4], used: 4 }
    }

    /// The epoch of this stream.
    pub fn epoch(&self) -> u32 {
        self.counter[1]
    }

    /// The stream of another epoch, from its beginning.
    pub fn at_epoch(&self, epoch: u32) -> Self {
        let [_, _, low, high] = self.counter;
        RandomStream { key: self.key, counter: [0, epoch, low, high], block: [0; 4], used: 4 }
    }

    /// The next 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.used == 4 {
            self.block = philox(self.key, self.counter);
            self.counter[0] = self.counter[0].wrapping_add(1);
            self.used = 0;
        }
        self.used += 1;
        self.block[self.used - 1]
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        u64::from(self.next_u32()) | u64::from(self.next_u32()) << 32
    }

    /// Uniform in `[0, 1)`, 53 random bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform in `[low, high)`.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Uniform in `0..bound` without bias (Lemire's method). `bound` must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        below(bound, || self.next_u64())
    }

    /// Standard normal, by Box and Muller's transform (the cosine half).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// See [`RandomStream::below`].
#[inline(always)]
fn below(bound: u64, mut next: impl FnMut() -> u64) -> u64 {
    debug_assert!(bound > 0);
    loop {
        let wide = u128::from(next()) * u128::from(bound);
        let low = wide as u64;
        // The low half falls below 2^64 mod bound exactly for the draws that would favour some results. Few draws need the
        // division to know.
        if low >= bound || low >= bound.wrapping_neg() % bound {
            return (wide >> 64) as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers published with Random123.
    #[test]
    fn philox_known_answers() {
        let check = |key, counter, expected: [u32; 4]| assert_eq!(philox(key, counter), expected);
        check([0; 2], [0; 4], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        check([!0; 2], [!0; 4], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        check(
            [0xa409_3822, 0x299f_31d0],
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        );
    }

    #[test]
    fn moments() {
        let n = 20_000;
        let mut stream = RandomStream::new(1, "test", 0, 0);
        let normals: Vec<f64> = (0..n).map(|_| stream.normal()).collect();
        let mean = normals.iter().sum::<f64>() / n as f64;
        let variance = normals.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
        assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
        let hits = (0..n).filter(|_| stream.below(3) == 2).count();
        assert!(hits.abs_diff(n / 3) < n / 50, "{hits}");
    }
}
