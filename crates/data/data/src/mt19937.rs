//! The Mersenne Twister MT19937, and the draws of PyTorch and CPython from it. Used only for options that promise their
//! order.
//!
//! Source: M. Matsumoto and T. Nishimura, "Mersenne Twister", ACM TOMACS 8 (1998), with the seeding of 2002.

const N: usize = 624;
const M: usize = 397;

/// From this number of elements on, PyTorch draws a permutation in another way.
pub(crate) const RANDPERM_END: usize = u32::MAX as usize / 20;

/// The generator's state.
pub(crate) struct Mt19937 {
    words: [u32; N],
    next: usize,
}

impl Mt19937 {
    /// Seeded with one word (`init_genrand`).
    pub fn new(seed: u32) -> Self {
        let mut words = [seed; N];
        for i in 1..N {
            let before = words[i - 1];
            words[i] = (before ^ (before >> 30)).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        Mt19937 { words, next: N }
    }

    /// Seeded with several words, at least one (`init_by_array`).
    pub fn from_key(key: &[u32]) -> Self {
        let mut words = Self::new(19_650_218).words;
        let mut i = 1;
        for (j, word) in key.iter().enumerate().cycle().take(N.max(key.len())) {
            words[i] = mixed(&words, i, 1_664_525).wrapping_add(*word).wrapping_add(j as u32);
            i = advance(&mut words, i);
        }
        for _ in 1..N {
            words[i] = mixed(&words, i, 1_566_083_941).wrapping_sub(i as u32);
            i = advance(&mut words, i);
        }
        words[0] = 1 << 31;
        Mt19937 { words, next: N }
    }

    /// The next 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.next == N {
            self.renew();
        }
        let mut word = self.words[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9D2C_5680;
        word ^= (word << 15) & 0xEFC6_0000;
        word ^ (word >> 18)
    }

    fn renew(&mut self) {
        for i in 0..N {
            let mixed = (self.words[i] & 0x8000_0000) | (self.words[(i + 1) % N] & 0x7FFF_FFFF);
            let twist = if mixed & 1 == 1 { 0x9908_B0DF } else { 0 };
            self.words[i] = self.words[(i + M) % N] ^ (mixed >> 1) ^ twist;
        }
        self.next = 0;
    }
}

/// Word `i` mixed with the one before it.
fn mixed(words: &[u32; N], i: usize, multiplier: u32) -> u32 {
    words[i] ^ (words[i - 1] ^ (words[i - 1] >> 30)).wrapping_mul(multiplier)
}

/// The position after `i`. Position 0 is skipped: it holds a copy of the last word when the walk wraps around.
fn advance(words: &mut [u32; N], i: usize) -> usize {
    if i + 1 < N {
        return i + 1;
    }
    words[0] = words[N - 1];
    1
}

/// `torch.randperm(n, generator=torch.Generator().manual_seed(seed))`, for `n` below [`RANDPERM_END`].
///
/// PyTorch keeps the low 32 bits of the seed, and takes remainders, which makes small numbers slightly likelier.
pub(crate) fn torch_randperm(n: usize, seed: u64) -> Vec<u32> {
    let mut random = Mt19937::new(seed as u32);
    let mut order: Vec<u32> = (0..n as u32).collect();
    for i in 0..n.saturating_sub(1) {
        order.swap(i, i + random.next_u32() as usize % (n - i));
    }
    order
}

/// CPython's `random.Random(seed)`.
pub struct PythonRandom(Mt19937);

impl PythonRandom {
    /// `random.seed(seed)`.
    pub fn new(seed: u64) -> Self {
        let low = seed as u32;
        let high = (seed >> 32) as u32;
        let key = if high == 0 { vec![low] } else { vec![low, high] };
        PythonRandom(Mt19937::from_key(&key))
    }

    /// `random.sample(range(n), k)` of CPython 3.2 and later; `k` must not exceed `n`, nor `n` 2^32.
    pub fn sample(&mut self, n: usize, k: usize) -> Vec<usize> {
        // CPython interprets the draws differently when it uses a list and when it uses a set.
        let table = (0..).map(|power| 4u64.pow(power)).find(|&table| table >= 3 * k as u64).filter(|_| k > 5);
        if n as u64 <= 21 + table.unwrap_or(0) {
            let mut pool: Vec<usize> = (0..n).collect();
            return (0..k).map(|_| pool.swap_remove(self.below(pool.len()))).collect();
        }
        let mut taken = vec![false; n];
        let mut draw = || {
            loop {
                let index = self.below(n);
                if !std::mem::replace(&mut taken[index], true) {
                    return index;
                }
            }
        };
        (0..k).map(|_| draw()).collect()
    }

    /// `_randbelow`: draws as many bits as `bound` has, until they are below it.
    fn below(&mut self, bound: usize) -> usize {
        let bits = usize::BITS - bound.leading_zeros();
        loop {
            let drawn = (self.0.next_u32() >> (32 - bits.clamp(1, 32))) as usize;
            if drawn < bound {
                return drawn;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// The draws of PyTorch and CPython (`tests/fixtures/orders.py`).
    fn cases(kind: &str) -> Vec<Value> {
        let document: Value = serde_json::from_str(include_str!("../tests/fixtures/orders.json")).unwrap();
        document[kind].as_array().unwrap().clone()
    }

    fn number(case: &Value, key: &str) -> usize {
        case[key].as_u64().unwrap() as usize
    }

    #[test]
    fn permutations_are_pytorch_s() {
        let cases = cases("randperm");
        assert_eq!(cases.len(), 26);
        for case in cases {
            let order = torch_randperm(number(&case, "n"), case["seed"].as_u64().unwrap());
            let sum: usize = order.iter().enumerate().map(|(at, &number)| (at + 1) * number as usize).sum();
            let ends = [&order[..order.len().min(10)], &order[order.len().saturating_sub(10)..]];
            assert_eq!(serde_json::json!([order.len(), ends[0], ends[1], sum]), case["order"], "{case}");
        }
        assert!(torch_randperm(0, 1).is_empty());
    }

    #[test]
    fn samples_are_cpython_s() {
        for case in cases("sample") {
            let mut random = PythonRandom::new(case["seed"].as_u64().unwrap());
            for draw in case["draws"].as_array().unwrap() {
                let sample = random.sample(number(draw, "n"), number(draw, "k"));
                assert_eq!(serde_json::json!(sample), draw["sample"], "{case}");
            }
        }
    }

    /// The first and the ten-thousandth word, according to the C++ standard and the authors' own output.
    #[test]
    fn known_answers() {
        let mut random = Mt19937::new(5489);
        assert_eq!(random.next_u32(), 3_499_211_612);
        assert_eq!((1..10_000).map(|_| random.next_u32()).last(), Some(4_123_659_995));
        let mut random = Mt19937::from_key(&[0x123, 0x234, 0x345, 0x456]);
        let first: Vec<u32> = (0..5).map(|_| random.next_u32()).collect();
        assert_eq!(first, [1_067_595_299, 955_945_823, 477_289_528, 4_107_218_783, 4_228_976_476]);
    }
}
