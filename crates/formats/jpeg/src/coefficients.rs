//! Coefficients in memory, and pixels from them.

use std::slice::ChunksExactMut;

use crate::Error;
use crate::block::{Zigzag, overflows};
use crate::decoder::Memory;
use crate::header::{Jpeg, MAX_COMPONENTS};
use crate::layout::Layout;
use crate::rows::Rows;
use crate::transform::{Block, PLACES, Transforms};

/// The blocks of one component.
#[derive(Clone, Copy, Default)]
pub(crate) struct Field {
    /// Place of the first one.
    pub start: usize,
    /// Blocks of a row, those that fill up the last MCU among them.
    pub stride: usize,
    /// Blocks of a row and of a column, without those.
    pub width: usize,
    pub height: usize,
}

/// The fields of all components, one after another, with room for so many rows of MCUs; and the number of blocks.
pub(crate) fn fields(jpeg: &Jpeg, layout: &Layout, rows: usize) -> ([Field; MAX_COMPONENTS], usize) {
    let mut fields = [Field::default(); MAX_COMPONENTS];
    let mut blocks = 0;
    for (field, component) in fields.iter_mut().zip(jpeg.components()) {
        let stride = layout.mcus_across * component.across;
        let across = |pixels: usize, own: usize, mcu_edge: usize| (pixels * own).div_ceil(mcu_edge);
        let (mcu_width, mcu_height) = layout.mcu_edges();
        let width = across(jpeg.width, component.across, mcu_width);
        let height = across(jpeg.height, component.down, mcu_height).min(rows * component.down);
        *field = Field { start: blocks, stride, width, height };
        blocks += stride * rows * component.down;
    }
    (fields, blocks)
}

/// Turns coefficients into the pixels of a region.
pub(crate) struct Painter<'a> {
    layout: &'a Layout,
    rows: Rows<'a>,
    /// Of each component in the order of a block.
    factors: [Block; MAX_COMPONENTS],
    out: ChunksExactMut<'a, u8>,
    /// Whether a first coefficient [`overflows`].
    pub overflowed: bool,
}

impl<'a> Painter<'a> {
    pub fn new(
        memory: &mut Memory,
        jpeg: &Jpeg,
        layout: &'a Layout,
        quantization: &[Zigzag<i16>; MAX_COMPONENTS],
        out: &'a mut [u8],
    ) -> Result<Self, Error> {
        let rows = Rows::new(layout, jpeg.color, memory.level);
        memory.strip.fit(&rows)?;
        let in_order = |factors: &Zigzag<i16>| {
            let mut in_order = [0; 64];
            PLACES.iter().zip(factors).for_each(|(place, factor)| in_order[usize::from(*place)] = *factor);
            in_order
        };
        let out = out.chunks_exact_mut(layout.region.width * 3);
        Ok(Painter { layout, rows, factors: quantization.each_ref().map(in_order), out, overflowed: false })
    }

    /// Makes the pixels of row `mcu_row` of the MCUs, which is row `stored_row` of those in memory. To be called for all rows of
    /// the region.
    pub fn row(&mut self, memory: &mut Memory, fields: &[Field], mcu_row: usize, stored_row: usize) {
        let Memory { level, group, strip, coefficients, .. } = memory;
        let layout = self.layout;
        let mut transforms = Transforms::new(*level, group, &mut strip.samples);
        for (component, plane) in layout.planes().iter().enumerate() {
            let field = &fields[component];
            let factors = &self.factors[component];
            for row in 0..plane.down {
                let start = field.start + (stored_row * plane.down + row) * field.stride;
                for column in layout.first_column * plane.across..layout.end_column * plane.across {
                    let block = &coefficients[start + column];
                    let target = self.rows.target(component, column, row);
                    let first = block[0].wrapping_mul(factors[0]);
                    self.overflowed |= overflows(first);
                    if plane.edge == 1 || block[1..].iter().all(|&coefficient| coefficient == 0) {
                        transforms.fill(first, target);
                        continue;
                    }
                    let into = transforms.room(plane.edge);
                    for (into, (coefficient, factor)) in into.iter_mut().zip(block.iter().zip(factors)) {
                        *into = coefficient.wrapping_mul(*factor);
                    }
                    transforms.push(target);
                }
            }
        }
        transforms.flush();
        self.rows.make(mcu_row, strip, &mut self.out);
    }
}
