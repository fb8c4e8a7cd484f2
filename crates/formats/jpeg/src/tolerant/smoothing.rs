//! Estimates of coefficients that no scan has told, from the blocks around (`jdcoefct.c`).
//!
//! libjpeg-turbo makes them for the first coefficients of progressive images, from the first coefficients of five by five
//! blocks. Where nothing but these is known, they are smoothed as well.

use super::Seen;
use crate::Error;
use crate::block::Zigzag;
use crate::buffer::fit;
use crate::coefficients::Field;
use crate::known::Known;
use crate::layout::Layout;
use crate::transform::{Block, PLACES};

/// Weights of the blocks around, row after row.
type Kernel = [i64; 25];

/// How a coefficient is estimated.
struct Estimate {
    /// Its place in zigzag order.
    k: usize,
    kernel: &'static Kernel,
    /// Whether the kernel's rows are columns.
    turned: bool,
}

const fn upright(k: usize, kernel: &'static Kernel) -> Estimate {
    Estimate { k, kernel, turned: false }
}

const fn turned(k: usize, kernel: &'static Kernel) -> Estimate {
    Estimate { k, kernel, turned: true }
}

/// Where other coefficients are known.
const WITH_OTHERS: [Estimate; 5] =
    [upright(1, &SLOPE), turned(2, &SLOPE), turned(3, &CURVE), upright(4, &TWIST), upright(5, &CURVE)];

#[rustfmt::skip]
const SLOPE: Kernel = [0, 0, 0, 0, 0,  0, 0, 0, 0, 0,  -7, 50, 0, -50, 7,  0, 0, 0, 0, 0,  0, 0, 0, 0, 0];
#[rustfmt::skip]
const CURVE: Kernel = [0, 0, 0, 0, 0,  0, 0, 0, 0, 0,  -1, 13, -24, 13, -1,  0, 0, 0, 0, 0,  0, 0, 0, 0, 0];
#[rustfmt::skip]
const TWIST: Kernel = [0, -1, 0, 1, 0,  -1, 10, 0, -10, 1,  0, 0, 0, 0, 0,  1, -10, 0, 10, -1,  0, 1, 0, -1, 0];

/// Where no other is known.
const ALONE: [Estimate; 10] = [
    upright(0, &MEAN_ALONE),
    upright(1, &SLOPE_ALONE),
    turned(2, &SLOPE_ALONE),
    turned(3, &CURVE_ALONE),
    upright(4, &TWIST_ALONE),
    upright(5, &CURVE_ALONE),
    upright(6, &THIRD_ALONE),
    upright(7, &MIXED_ALONE),
    turned(8, &MIXED_ALONE),
    turned(9, &THIRD_ALONE),
];

#[rustfmt::skip]
const MEAN_ALONE: Kernel = [
    -2, -6, -8, -6, -2,  -6, 6, 42, 6, -6,  -8, 42, 152, 42, -8,  -6, 6, 42, 6, -6,  -2, -6, -8, -6, -2,
];
#[rustfmt::skip]
const SLOPE_ALONE: Kernel = [
    -1, -1, 0, 1, 1,  -3, 13, 0, -13, 3,  -3, 38, 0, -38, 3,  -3, 13, 0, -13, 3,  -1, -1, 0, 1, 1,
];
#[rustfmt::skip]
const CURVE_ALONE: Kernel = [0, 0, 0, 0, 0,  0, 2, -5, 2, 0,  1, 7, -14, 7, 1,  0, 2, -5, 2, 0,  0, 0, 0, 0, 0];
#[rustfmt::skip]
const TWIST_ALONE: Kernel = [-1, 0, 0, 0, 1,  0, 9, 0, -9, 0,  0, 0, 0, 0, 0,  0, -9, 0, 9, 0,  1, 0, 0, 0, -1];
#[rustfmt::skip]
const THIRD_ALONE: Kernel = [0, 0, 0, 0, 0,  0, 1, 0, -1, 0,  0, 2, 0, -2, 0,  0, 1, 0, -1, 0,  0, 0, 0, 0, 0];
#[rustfmt::skip]
const MIXED_ALONE: Kernel = [0, 0, 0, 0, 0,  0, 1, -3, 1, 0,  0, 0, 0, 0, 0,  0, -1, 3, -1, 0,  0, 0, 0, 0, 0];

/// Estimates what is missing of all components.
pub(super) fn smooth(coefficients: &mut [Block], layout: &Layout, fields: &[Field], seen: &Seen) -> Result<(), Error> {
    let components = 0..layout.count;
    let can = |component: usize| {
        let factors = &seen.quantization[component][..Known::WATCHED];
        seen.known[component].has_begun() && factors.iter().all(|&factor| factor != 0)
    };
    let is_useful = components.clone().any(|component| !seen.known[component].is_complete());
    if !is_useful || !components.clone().all(can) {
        return Ok(());
    }
    let mut firsts = Vec::new();
    for component in components {
        let field = fields[component];
        let down = layout.planes[component].down;
        let blocks = &mut coefficients[field.start..][..field.stride * layout.mcus_down * down];
        fit(&mut firsts, blocks.len(), 0)?;
        firsts.iter_mut().zip(&*blocks).for_each(|(first, block)| *first = block[0]);
        let before = if seen.scans > 1 { seen.before[component] } else { Known::NOTHING };
        for mcu_row in 0..layout.mcus_down {
            // Rows that the last scan did not reach are as the scans before left them.
            let known = if mcu_row > seen.last_row { before } else { seen.known[component] };
            // libjpeg counts all rows of blocks as if they were as many in each row of MCUs.
            let rows = if mcu_row + 1 < layout.mcus_down { down } else { (field.height - 1) % down + 1 };
            for row in 0..rows {
                let place = mcu_row * rows + row;
                let end = rows * layout.mcus_down;
                let around = [-2, -1, 0, 1, 2].map(|away| {
                    let other = place.saturating_add_signed(away).min(end - 1);
                    (mcu_row * down + row + other - place) * field.stride
                });
                for column in 0..field.width {
                    let columns = [-2, -1, 0, 1, 2].map(|away| column.saturating_add_signed(away).min(field.width - 1));
                    let first = |row: usize, column: usize| i64::from(firsts[around[row] + columns[column]]);
                    let block = &mut blocks[around[2] + column];
                    estimate(&known, &seen.quantization[component], first, block);
                }
            }
        }
    }
    Ok(())
}

/// Estimates what is missing of a block, given the first coefficients of the blocks around.
fn estimate(known: &Known, factors: &Zigzag<i16>, first: impl Fn(usize, usize) -> i64, block: &mut Block) {
    let factor = |k: usize| i64::from(factors[k] as u16);
    let is_alone = known.0[1..].iter().all(|&missing| missing < 0);
    let estimates = if is_alone { &ALONE[..] } else { &WITH_OTHERS };
    for &Estimate { k, kernel, turned } in estimates {
        let missing = known.0[k];
        let coefficient = &mut block[usize::from(PLACES[k])];
        if k > 0 && (missing == 0 || *coefficient != 0) {
            continue;
        }
        let weighted = |(at, weight): (usize, &i64)| {
            let (row, column) = if turned { (at % 5, at / 5) } else { (at / 5, at % 5) };
            weight * first(row, column)
        };
        let sum = factor(0) * kernel.iter().enumerate().map(weighted).sum::<i64>();
        // In units of the coefficient, rounded.
        let mut size = ((factor(k) << 7) + sum.abs()) / (factor(k) << 8);
        // What is known is that it has no higher bits.
        if k > 0 && missing > 0 {
            size = size.min((1 << missing) - 1);
        }
        *coefficient = (size * sum.signum()) as i16;
    }
}
