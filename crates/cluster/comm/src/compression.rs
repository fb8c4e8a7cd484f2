//! Sums whose values cross between nodes in 16 bits, with *error feedback*: what rounding loses is kept and added later.
//!
//! A node's values are added in f32, and rounded as they leave it: half the bytes. Before it rounds, a rank adds what it has
//! kept of these elements, and it keeps what it loses now. So nothing is lost for good: over all sums so far, the results and what all
//! ranks keep add up to what all ranks gave. A gradient that is too small beside others to change a rounded sum does so
//! once enough of it has been kept.
//!
//! Sources: F. Seide et al., "1-bit stochastic gradient descent and its application to data-parallel distributed training of
//! speech DNNs", 2014; S. P. Karimireddy et al., "Error feedback fixes SignSGD and other gradient compression schemes", 2019;
//! H. Tang et al., "DoubleSqueeze", 2019, which feeds back the errors of the rounded sums, too.

use std::fmt;
use std::sync::Arc;

use crate::algorithm::Algorithm;
use crate::cause::Cause;
use crate::engine::Handle;
use crate::group::Group;
use crate::operation::{Kind, Operation};

/// The 16-bit type in which values cross between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// The upper half of an f32: its range, and 8 bits of precision.
    Bf16,
    /// IEEE half precision: 11 bits of precision. Beyond 65504 values become infinite.
    F16,
}

impl Compression {
    /// All of them.
    pub const ALL: [Compression; 2] = [Compression::Bf16, Compression::F16];

    /// The name used in settings and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Compression::Bf16 => "bf16",
            Compression::F16 => "f16",
        }
    }

    /// Rounds values to the nearest, or the even one of two. What `residual` has kept is added before, and what is lost is kept there.
    pub(crate) fn compress(self, values: &[f32], residual: &mut [f32], rounded: &mut [u16]) {
        match self {
            Compression::Bf16 => compress(values, residual, rounded, to_bf16, from_bf16),
            Compression::F16 => compress(values, residual, rounded, to_f16, from_f16),
        }
    }

    /// The exact values in f32.
    pub(crate) fn expand(self, rounded: &[u16], values: &mut [f32]) {
        match self {
            Compression::Bf16 => expand(rounded, values, from_bf16),
            Compression::F16 => expand(rounded, values, from_f16),
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How an all-reduce is compressed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compressed {
    pub to: Compression,
    /// What this rank has kept, for each element.
    pub residual: *mut f32,
}

#[inline(always)]
fn compress(
    values: &[f32],
    residual: &mut [f32],
    rounded: &mut [u16],
    round: impl Fn(f32) -> u16,
    exact: impl Fn(u16) -> f32,
) {
    for ((value, residual), rounded) in values.iter().zip(residual).zip(rounded) {
        let value = value + *residual;
        *rounded = round(value);
        *residual = value - exact(*rounded);
    }
}

#[inline(always)]
fn expand(rounded: &[u16], values: &mut [f32], exact: impl Fn(u16) -> f32) {
    values.iter_mut().zip(rounded).for_each(|(value, &rounded)| *value = exact(rounded));
}

// Without branches, so that the compiler makes vector instructions of them; `half` has none without its `std`.

#[inline(always)]
fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    (if value.is_nan() { bits >> 16 | 0x40 } else { rounded }) as u16
}

#[inline(always)]
fn from_bf16(rounded: u16) -> f32 {
    f32::from_bits(u32::from(rounded) << 16)
}

#[inline(always)]
fn to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let magnitude = value.to_bits() & 0x7fff_ffff;
    // The exponent's bias changes from 127 to 15; the carry of the rounding may go into the exponent.
    let normal =
        magnitude.wrapping_add((15u32.wrapping_sub(127) << 23).wrapping_add(0xfff + (magnitude >> 13 & 1))) >> 13;
    // Added to 0.5, the last place of an f32 is that of a subnormal f16.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let infinite = if value.is_nan() { 0x7e00 } else { 0x7c00 };
    let rounded = if magnitude < 113 << 23 { subnormal } else { normal };
    let rounded = if magnitude >= 143 << 23 { infinite } else { rounded };
    (bits >> 16 & 0x8000 | rounded) as u16
}

#[inline(always)]
fn from_f16(rounded: u16) -> f32 {
    let magnitude = u32::from(rounded & 0x7fff) << 13;
    let sign = u32::from(rounded & 0x8000) << 16;
    let normal = magnitude + ((127 - 15) << 23);
    // Normal numbers alone, so that a thread that flushes subnormal ones to zero has the same bits.
    let least = f32::from_bits(113 << 23);
    let subnormal = (f32::from_bits(magnitude + (113 << 23)) - least).to_bits();
    let infinite = magnitude | 0x7f80_0000;
    let exact = if magnitude < 1 << 23 { subnormal } else { normal };
    f32::from_bits(sign | if magnitude >= 31 << 23 { infinite } else { exact })
}

impl Group {
    /// The sum over all ranks on every rank, whose values cross between nodes in 16 bits. A rank keeps what its roundings lose in
    /// `residual`, which is as long as `data`, has zeros at first, and is given again with the next sum of the same values.
    ///
    /// The values of a node's ranks are added in f32 in the fixed tree over them ([`crate::tree_fold`]) and rounded, those of all
    /// nodes are added in f32 in the tree over nodes, and the sum is rounded. So all ranks have the same bits, which depend on the
    /// ranks and on which of them share memory, and not on what connects them. Where all ranks share memory nothing is rounded,
    /// and the sum is that of [`Group::all_reduce`] in the tree.
    ///
    /// # Errors
    /// The group's [`Cause`]: `residual` has another length, a rank calls another operation, has failed or left, or comes too late.
    ///
    /// ```
    /// use enmasse_comm::{Compression, Group};
    /// let ranks = Group::threads(2)?.into_iter().map(|group| {
    ///     std::thread::spawn(move || {
    ///         let (mut gradients, mut residual) = ([0.1f32; 4], [0.0; 4]);
    ///         group.all_reduce_compressed(&mut gradients, Compression::Bf16, &mut residual).map(|()| gradients)
    ///     })
    /// });
    /// for rank in ranks.collect::<Vec<_>>() {
    ///     assert_eq!(rank.join().unwrap()?, [0.2; 4]);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn all_reduce_compressed(
        &self,
        data: &mut [f32],
        to: Compression,
        residual: &mut [f32],
    ) -> Result<(), Arc<Cause>> {
        let operation = self.sum_of(Kind::AllReduce, data.as_mut_ptr(), data.len());
        if residual.len() != data.len() {
            let message = format!("the residual has {} elements, and the data {}", residual.len(), data.len());
            return Err(self.misuse(&operation, message));
        }
        self.run(compressed(operation, Compressed { to, residual: residual.as_mut_ptr() }))
    }

    /// Starts the same sum over shards, whose partial sums are laid out as for [`Group::all_reduce_shards`], and returns. A rank first
    /// adds up its own partial sums, so the bits depend on the number of ranks, unless all of them share memory.
    ///
    /// # Safety
    /// As for [`Group::all_reduce_shards_start`], also for the `len` elements at `residual`.
    pub unsafe fn all_reduce_shards_compressed_start(
        &self,
        data: *mut f32,
        len: usize,
        stride: usize,
        shards: usize,
        to: Compression,
        residual: *mut f32,
    ) -> Handle {
        let operation = self.sum_of_shards(Kind::AllReduce, data, len, stride, shards);
        self.start_if(operation.map(|operation| compressed(operation, Compressed { to, residual })))
    }

    /// Whether all ranks share memory, so that no value crosses between nodes.
    pub fn shares_memory(&self) -> bool {
        self.core.engine.is_none() || self.core.group_shared.region.is_some()
    }
}

fn compressed(operation: Operation, by: Compressed) -> Operation {
    Operation { algorithm: Algorithm::Tree, compressed: Some(by), ..operation }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use proptest::prelude::*;

    use super::*;

    fn same(found: u16, expected: u16, is_nan: bool, of: f32) {
        assert!(
            if is_nan { f16::from_bits(found).is_nan() } else { found == expected },
            "{of}: {found:x} {expected:x}"
        );
    }

    fn check(value: f32) {
        assert!(!value.is_nan() || bf16::from_bits(to_bf16(value)).is_nan());
        if !value.is_nan() {
            assert_eq!(to_bf16(value), bf16::from_f32(value).to_bits(), "{value}");
        }
        same(to_f16(value), f16::from_f32(value).to_bits(), value.is_nan(), value);
    }

    #[test]
    fn every_16_bit_value_expands_exactly_and_comes_back() {
        for bits in 0..=u16::MAX {
            let narrow = from_f16(bits);
            let wide = f16::from_bits(bits).to_f32();
            assert!(narrow.to_bits() == wide.to_bits() || (narrow.is_nan() && wide.is_nan()), "{bits:x}");
            assert_eq!(from_bf16(bits).to_bits(), u32::from(bits) << 16);
            for value in [narrow, from_bf16(bits)] {
                check(value);
                // The neighbours, and the ties between this value and the next.
                for near in [1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001] {
                    check(f32::from_bits(value.to_bits().wrapping_add(near)));
                }
            }
        }
        assert_eq!((to_f16(65519.0), to_f16(65520.0), to_f16(-1e30)), (0x7bff, 0x7c00, 0xfc00));
    }

    proptest! {
        #[test]
        fn values_round_as_by_half(bits: u32) {
            check(f32::from_bits(bits));
        }
    }

    #[test]
    fn what_is_lost_is_kept_and_added_later() {
        for to in Compression::ALL {
            let mut residual = [0.0];
            let mut sum = 0.0;
            for step in 1..=1000 {
                let (mut rounded, mut value) = ([0], [0.0]);
                to.compress(&[1.001], &mut residual, &mut rounded);
                to.expand(&rounded, &mut value);
                sum += f64::from(value[0]);
                assert!((sum - 1.001 * f64::from(step)).abs() < 0.005, "{to}: {sum} after {step}");
            }
        }
    }
}
