//! Permutations: that of Fisher and Yates, in an order of work that suits a processor.
//!
//! The numbers are those of a plain loop over [`RandomStream::below`]. They are drawn in groups without a branch, which the
//! compiler vectorises. Since the places of a group are known before its exchanges, these wait for memory together.

use super::{RandomStream, philox};

/// Blocks of four words in a group. A block has two numbers.
const BLOCKS: usize = 16;
/// Exchanges of a group.
const GROUP: usize = 2 * BLOCKS;

impl RandomStream {
    /// A permutation of `0..n` by Fisher and Yates, from the start of the stream. `n` must be below 2^32.
    pub fn permutation(self, n: usize) -> Vec<u32> {
        shuffled(self, n, exchange_groups)
    }
}

/// The permutation, most of whose exchanges `exchange_groups` makes.
fn shuffled(
    mut stream: RandomStream,
    n: usize,
    exchange_groups: impl Fn(&mut RandomStream, &mut [u32]) -> usize,
) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n).map(|i| u32::try_from(i).expect("fewer than 2^32 places")).collect();
    let left = exchange_groups(&mut stream, &mut order);
    for i in (1..left).rev() {
        order.swap(i, stream.below(i as u64 + 1) as usize);
    }
    order
}

/// Makes the exchanges of whole groups, from the end on, and takes their numbers from the stream. Returns how many places are left:
/// fewer than a group has, or more where a number must be drawn again.
fn exchange_groups(stream: &mut RandomStream, order: &mut [u32]) -> usize {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq") {
        // SAFETY: the machine has the features.
        return unsafe { exchange_groups_avx512(stream, order) };
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: as above.
        return unsafe { exchange_groups_avx2(stream, order) };
    }
    exchange_groups_portable(stream, order)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq")]
fn exchange_groups_avx512(stream: &mut RandomStream, order: &mut [u32]) -> usize {
    exchange_groups_portable(stream, order)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn exchange_groups_avx2(stream: &mut RandomStream, order: &mut [u32]) -> usize {
    exchange_groups_portable(stream, order)
}

#[inline(always)]
fn exchange_groups_portable(stream: &mut RandomStream, order: &mut [u32]) -> usize {
    let mut left = order.len();
    while left > GROUP {
        let Some([firsts, seconds]) = places(stream.key, stream.counter, left as u64) else { break };
        for (block, (first, second)) in firsts.into_iter().zip(seconds).enumerate() {
            order.swap(left - 1 - 2 * block, first as usize);
            order.swap(left - 2 - 2 * block, second as usize);
        }
        stream.counter[0] = stream.counter[0].wrapping_add(BLOCKS as u32);
        left -= GROUP;
    }
    left
}

/// The numbers of a group, below `bound`, `bound - 1`, and so on: the first ones of its blocks, and the second ones. `bound` is above
/// [`GROUP`], and below 2^32. `None` if one may have to be drawn again: hardly ever.
#[inline(always)]
fn places(key: [u32; 2], [first, epoch, low, high]: [u32; 4], bound: u64) -> Option<[[u32; BLOCKS]; 2]> {
    let mut places = [[0; BLOCKS]; 2];
    let mut again = false;
    for block in 0..BLOCKS {
        let words = philox(key, [first.wrapping_add(block as u32), epoch, low, high]).map(u64::from);
        for (number, places) in places.iter_mut().enumerate() {
            // That it has 32 bits makes the products cheap.
            let bound = u64::from((bound - (2 * block + number) as u64) as u32);
            // As in `below`: the upper third of a product of 96 bits, and the rest of it.
            let lower = words[2 * number] * bound;
            let upper = words[2 * number + 1] * bound + (lower >> 32);
            places[block] = (upper >> 32) as u32;
            again |= (upper << 32 | lower & u64::from(u32::MAX)) < bound;
        }
    }
    (!again).then_some(places)
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
            assert_eq!(shuffled(stream(), n, exchange_groups_portable), plain, "{n}");
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the machine has the feature.
                let exchange = |stream: &mut _, order: &mut _| unsafe { exchange_groups_avx2(stream, order) };
                assert_eq!(shuffled(stream(), n, exchange), plain, "{n}");
            }
            plain.sort_unstable();
            assert!(plain.into_iter().eq(0..n as u32));
        };
        [0, 1, 2, 17, 31, 32, 33, 34, 63, 64, 65, 66, 129, 1000, 10_007].into_iter().for_each(check);
    }

    /// A group with a number that [`RandomStream::below`] looks at twice, and its neighbours. A search has found it: about one in 2^32 numbers
    /// is such, for the largest bounds.
    #[test]
    fn a_number_that_may_be_drawn_again_is_left_to_the_plain_loop() {
        const BOUND: u64 = u32::MAX as u64;
        let check = |block: u32, expected: bool| {
            let mut stream = RandomStream { counter: [block, 0, 0, 0], ..RandomStream::with_key([1, 2], 0, 0) };
            let found = places(stream.key, stream.counter, BOUND);
            assert_eq!(found.is_some(), expected, "{block}");
            for (number, place) in found.into_iter().flat_map(interleaved).enumerate() {
                assert_eq!(u64::from(place), stream.below(BOUND - number as u64), "{block}, {number}");
            }
        };
        check(834_940_880 - BLOCKS as u32, true);
        check(834_940_880, false);
        check(834_940_880 + BLOCKS as u32, true);
    }

    /// The places in the order of their use.
    fn interleaved([firsts, seconds]: [[u32; BLOCKS]; 2]) -> impl Iterator<Item = u32> {
        firsts.into_iter().zip(seconds).flat_map(|(first, second)| [first, second])
    }
}
