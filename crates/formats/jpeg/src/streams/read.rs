//! From streams to pixels: only the blocks of the region are looked at.

use super::{Coded, Streams};
use crate::Error;
use crate::decoder::Memory;
use crate::header::{Jpeg, MAX_BLOCKS};
use crate::layout::Layout;
use crate::level::Level;
use crate::rows::Rows;
use crate::sequential::factors;
use crate::transform::{Block, PLACES, Transforms};

impl Memory {
    /// Decodes the region from streams, whose segment has this content.
    pub(crate) fn streams(
        &mut self,
        jpeg: &Jpeg,
        layout: &Layout,
        content: &[u8],
        data: &[u8],
        out: &mut [u8],
    ) -> Result<(), Error> {
        let mut quantization = [[0; 64]; 3];
        for (numbers, component) in quantization.iter_mut().zip(jpeg.components()) {
            let factors = factors(&jpeg.tables, component.quantization)?;
            PLACES.iter().zip(factors).for_each(|(place, factor)| numbers[usize::from(*place)] = factor);
        }
        let mut rows = Rows::new(layout, jpeg.color, self.level);
        self.strip.fit(&rows)?;
        let Memory { level, group, strip, .. } = self;
        // The components of the blocks of an MCU.
        let (mut components, mut count) = ([0; MAX_BLOCKS], 0);
        for (component, plane) in layout.planes().iter().enumerate() {
            let blocks = plane.across * plane.down;
            components[count..count + blocks].fill(component as u8);
            count += blocks;
        }
        let components = &components[..count];
        let streams = Streams::new(content, data, layout.mcus_down)?;
        let mut out = out.chunks_exact_mut(layout.region.width * 3);
        for row in layout.first_row..layout.end_row {
            level.with_bits(|| {
                let mut blocks = streams.row(row, layout.mcus_across * count)?;
                let mut previous = [0i16; 3];
                blocks.skip(layout.first_column, components, &mut previous)?;
                let mut transforms = Transforms::new(*level, group, &mut strip.samples);
                for mcu_column in layout.first_column..layout.end_column {
                    for (component, plane) in layout.planes().iter().enumerate() {
                        let (previous, factors) = (&mut previous[component], &quantization[component]);
                        for row in 0..plane.down {
                            for column in 0..plane.across {
                                let target = rows.target(component, mcu_column * plane.across + column, row);
                                let coded = blocks.next(previous)?;
                                let first = previous.wrapping_mul(factors[0]);
                                if plane.edge == 1 || coded.places == 0 {
                                    transforms.fill(first, target);
                                    continue;
                                }
                                let into = transforms.room(plane.edge);
                                put(*level, &coded, factors, into);
                                into[0] = first;
                                transforms.push(target);
                            }
                        }
                    }
                }
                transforms.flush();
                Ok::<(), Error>(())
            })?;
            rows.make(row, strip, &mut out);
        }
        Ok(())
    }
}

/// Sets the coefficients of a block of zeros, times their factors.
#[inline(always)]
pub(super) fn put(level: Level, coded: &Coded, factors: &Block, into: &mut Block) {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512(has) if !coded.wide => super::avx512::put(has, coded, factors, into),
        _ => coded.values(|k, value| {
            let place = usize::from(PLACES[k % 64] % 64);
            into[place] = value.wrapping_mul(factors[place]);
        }),
    }
}
