//! Huffman codes made for a picture: as short as 16 bits allow (ITU-T T.81, annex K.2 has a procedure that comes near).

/// Symbols there are, and the one that gets the code of ones only, which must not be used.
const SYMBOLS: usize = 256 + 1;
const RESERVED: usize = 256;

/// The longest code.
const LONGEST: usize = 16;

/// How often each symbol occurs.
#[derive(Clone, Debug)]
pub(crate) struct Frequencies([u64; SYMBOLS]);

impl Default for Frequencies {
    fn default() -> Self {
        Frequencies([0; SYMBOLS])
    }
}

impl Frequencies {
    /// Counts a symbol once more.
    pub fn count(&mut self, symbol: u8) {
        self.0[usize::from(symbol)] += 1;
    }

    /// The code with which all symbols together are shortest.
    pub fn code(&self) -> Code {
        let lengths = self.lengths();
        let mut order: Vec<usize> = (0..RESERVED).filter(|&symbol| lengths[symbol] > 0).collect();
        order.sort_by_key(|&symbol| lengths[symbol]);
        let mut code = Code { counts: [0; LONGEST], symbols: Vec::with_capacity(order.len()), words: [(0, 0); 256] };
        let (mut next, mut before) = (0u32, 0);
        for symbol in order {
            let length = lengths[symbol];
            next <<= length - before;
            before = length;
            code.counts[length as usize - 1] += 1;
            code.symbols.push(symbol as u8);
            code.words[symbol] = (next, length);
            next += 1;
        }
        code
    }

    /// The length of each symbol's code, 0 for one that does not occur, by the package-merge algorithm of Larmore and Hirschberg.
    fn lengths(&self) -> [u32; SYMBOLS] {
        let frequency = |symbol: usize| self.0[symbol];
        // The reserved symbol is the rarest, so that its code is among the longest.
        let mut used: Vec<usize> = (0..SYMBOLS).filter(|&symbol| frequency(symbol) > 0 || symbol == RESERVED).collect();
        used.sort_by_key(|&symbol| frequency(symbol));
        let mut packages: Vec<(u64, Vec<usize>)> = Vec::new();
        for _ in 0..LONGEST {
            let pairs =
                packages.as_chunks::<2>().0.iter().map(|[(a, some), (b, more)]| (a + b, [&some[..], more].concat()));
            let mut merged: Vec<_> =
                used.iter().map(|&symbol| (frequency(symbol), vec![symbol])).chain(pairs).collect();
            merged.sort_by_key(|(sum, _)| *sum);
            packages = merged;
        }
        let mut lengths = [0; SYMBOLS];
        for (_, symbols) in &packages[..2 * (used.len() - 1)] {
            symbols.iter().for_each(|&symbol| lengths[symbol] += 1);
        }
        lengths
    }
}

/// A Huffman code.
#[derive(Clone, Debug)]
pub(crate) struct Code {
    /// Number of codes of each length from 1 to 16.
    pub counts: [u8; LONGEST],
    /// Their symbols, shortest codes first.
    pub symbols: Vec<u8>,
    /// The code of each symbol, and its length, which is 0 for one without a code.
    pub words: [(u32, u32); 256],
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn code(frequencies: &[u64]) -> Code {
        let mut all = Frequencies::default();
        all.0[..frequencies.len()].copy_from_slice(frequencies);
        all.code()
    }

    #[test]
    fn lengths_are_optimal() {
        let check = |frequencies: &[u64], expected: &[u32]| {
            let found: Vec<u32> = code(frequencies).words[..frequencies.len()].iter().map(|word| word.1).collect();
            assert_eq!(found, expected, "{frequencies:?}");
        };
        check(&[], &[]);
        check(&[5], &[1]);
        check(&[5, 5], &[2, 1]);
        check(&[0, 8, 4, 2, 1], &[0, 1, 2, 3, 4]);
        check(&[1, 1, 1, 1, 1, 1, 1], &[3; 7]);
        // Without the limit, the rarest of these would have 23 bits.
        let powers: Vec<u64> = (0..24).map(|exponent| 1 << exponent).collect();
        let lengths: Vec<u32> = code(&powers).words[..24].iter().map(|word| word.1).collect();
        assert_eq!(lengths[0], 16);
        assert_eq!(lengths[16..], [8, 7, 6, 5, 4, 3, 2, 1]);
    }

    proptest! {
        /// No code begins another one, and none consists of ones.
        #[test]
        fn codes_are_a_prefix_code(frequencies in prop::collection::vec(0u64..1 << 40, 1..256)) {
            let code = code(&frequencies);
            let used: Vec<(u32, u32)> = code.words.iter().copied().filter(|word| word.1 > 0).collect();
            prop_assert_eq!(used.len(), frequencies.iter().filter(|&&frequency| frequency > 0).count());
            prop_assert_eq!(code.symbols.len(), used.len());
            let mut ranges: Vec<(u32, u32)> =
                used.iter().map(|&(word, length)| (word << (16 - length), (word + 1) << (16 - length))).collect();
            ranges.sort_unstable();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0));
            prop_assert!(ranges.last().is_none_or(|last| last.1 < 1 << 16));
        }
    }
}
