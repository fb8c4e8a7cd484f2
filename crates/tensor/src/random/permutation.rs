//! Permutations: that of Fisher and Yates, in an order of work that suits a processor.
//!
//! The numbers are those of a plain loop over [`RandomStream::below`]. They are drawn in blocks, which the compiler
//! vectorises, and places are read before they are exchanged: a million samples do not fit into a cache.

use super::{RandomStream, philox};

/// Blocks of four words that are computed together.
const BLOCKS: usize = 32;
/// Exchanges whose places are known in advance.
const AHEAD: usize = 64;

impl RandomStream {
    /// A permutation of `0..n` by Fisher and Yates, from the start of the stream. `n` must be below 2^32.
    pub fn permutation(self, n: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..n).map(|i| u32::try_from(i).expect("fewer than 2^32 places")).collect();
        let mut numbers = Numbers { key: self.key, counter: self.counter, values: [0; 2 * BLOCKS], used: 2 * BLOCKS };
        let mut places = [0; AHEAD];
        let mut end = order.len();
        while end > 1 {
            let count = AHEAD.min(end - 1);
            for (k, place) in places[..count].iter_mut().enumerate() {
                *place = super::below((end - k) as u64, || numbers.next()) as usize;
            }
            // These reads do not wait for each other; exchanges may.
            std::hint::black_box(places[..count].iter().fold(0, |sum: u32, &place| sum.wrapping_add(order[place])));
            for (k, &place) in places[..count].iter().enumerate() {
                order.swap(end - 1 - k, place);
            }
            end -= count;
        }
        order
    }
}

/// The words of a stream in pairs, as [`RandomStream::next_u64`] gives them.
struct Numbers {
    key: [u32; 2],
    counter: [u32; 4],
    values: [u64; 2 * BLOCKS],
    used: usize,
}

impl Numbers {
    #[inline(always)]
    fn next(&mut self) -> u64 {
        if self.used == self.values.len() {
            self.refill();
        }
        self.used += 1;
        self.values[self.used - 1]
    }

    fn refill(&mut self) {
        let [first, epoch, low, high] = self.counter;
        for (block, pair) in self.values.chunks_exact_mut(2).enumerate() {
            let [a, b, c, d] = philox(self.key, [first.wrapping_add(block as u32), epoch, low, high]).map(u64::from);
            (pair[0], pair[1]) = (a | b << 32, c | d << 32);
        }
        (self.counter[0], self.used) = (first.wrapping_add(BLOCKS as u32), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutations_are_those_of_a_plain_loop() {
        let check = |n: usize| {
            let stream = || RandomStream::new(3, "order", 2, 9);
            let (mut plain, mut numbers): (Vec<u32>, _) = ((0..n as u32).collect(), stream());
            for i in (1..n).rev() {
                plain.swap(i, numbers.below(i as u64 + 1) as usize);
            }
            assert_eq!(stream().permutation(n), plain, "{n}");
            plain.sort_unstable();
            assert!(plain.into_iter().eq(0..n as u32));
        };
        [0, 1, 2, 17, 63, 64, 65, 66, 129, 1000, 10_007].into_iter().for_each(check);
    }
}
