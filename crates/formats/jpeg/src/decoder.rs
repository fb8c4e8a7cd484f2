//! Decodes regions, and keeps the memory for the next image.

use enmasse_system::simd::SimdLevel;

use crate::huffman::Huffman;
use crate::layout::Layout;
use crate::rows::Strip;
use crate::scan::Scan;
use crate::symbol::Kind;
use crate::tables::Tables;
use crate::transform::Group;
use crate::{Error, Jpeg, Region, Scale};

/// Decodes images one after the other, in the same memory. A thread should have one of its own.
#[derive(Debug)]
pub struct Decoder {
    memory: Memory,
}

/// What serves all images.
#[derive(Debug)]
pub(crate) struct Memory {
    pub level: SimdLevel,
    pub dc: [Huffman; 4],
    pub ac: [Huffman; 4],
    pub group: Box<Group>,
    pub strip: Strip,
    /// Of images whose scans must all be read before the first pixel.
    pub coefficients: Vec<[i16; 64]>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// A decoder without memory for images so far.
    pub fn new() -> Self {
        Self::at(SimdLevel::default())
    }

    fn at(level: SimdLevel) -> Self {
        let tables = || std::array::from_fn(|_| Huffman::default());
        let group = Box::new(Group::ZERO);
        let strip = Strip::default();
        Decoder { memory: Memory { level, dc: tables(), ac: tables(), group, strip, coefficients: Vec::new() } }
    }

    /// Decodes `region` of the image at `scale` to RGB: rows from the top, three bytes a pixel. The bytes are those of the
    /// region in an image decoded as a whole. Grey images give three equal bytes.
    ///
    /// Beside `out` it takes memory for one row of MCUs; for an image of several scans also two bytes for each coefficient down
    /// to the end of the region, or of the image if it is damaged.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a process that this decoder lacks, [`Error::Memory`] if its own memory cannot be had,
    /// and [`Error::Damaged`] or [`Error::Truncated`] for scans that are damaged beyond what is tolerated. The content
    /// of `out` is undefined then.
    ///
    /// # Panics
    /// If the region is empty or leaves the image ([`Jpeg::scaled`]), or if `out` does not have three bytes for each of
    /// its pixels.
    pub fn decode(&mut self, jpeg: &Jpeg, region: Region, scale: Scale, out: &mut [u8]) -> Result<(), Error> {
        assert_eq!(out.len(), region.width * region.height * 3);
        let layout = Layout::new(jpeg, region, scale)?;
        // An earlier image's error may have left an unfinished block.
        *self.memory.group = Group::ZERO;
        match self.memory.decode(jpeg, &layout, out) {
            Err(Error::Damaged(_) | Error::Truncated) => {
                *self.memory.group = Group::ZERO;
                self.memory.tolerant(jpeg, &layout, out)
            }
            result => result,
        }
    }

    /// Bytes that it holds for the next image.
    pub fn held_bytes(&self) -> usize {
        self.memory.strip.held() + self.memory.coefficients.capacity() * size_of::<[i16; 64]>()
    }
}

impl Memory {
    fn decode(&mut self, jpeg: &Jpeg, layout: &Layout, out: &mut [u8]) -> Result<(), Error> {
        let mut segments = jpeg.scans;
        segments.marker()?;
        let scan = Scan::parse(jpeg, segments.content()?)?;
        if jpeg.progressive || scan.count < jpeg.count {
            return self.buffered(jpeg, layout, out);
        }
        let read = self.sequential(jpeg, layout, &jpeg.tables, &scan, segments.rest(), out)?;
        segments.skip(read);
        // A file that was cut is as good as any where its end is not needed. Whether it is an error must not depend on the
        // region.
        let is_read = (layout.end_row, layout.end_column) == (layout.mcus_down, layout.mcus_across);
        let ends = if is_read { segments.marker()?.is_none() } else { segments.has_end() };
        if ends { Ok(()) } else { Err(Error::Truncated) }
    }

    /// Makes the Huffman tables that a scan uses.
    pub fn set_tables(&mut self, tables: &Tables, scan: &Scan) -> Result<(), Error> {
        const MISSING: Error = Error::Damaged("a Huffman table is missing");
        for part in scan.components() {
            if scan.first == 0 && !scan.refines {
                self.dc[part.dc].set(tables.dc[part.dc].as_ref().ok_or(MISSING)?, Kind::Dc)?;
            }
            if scan.last > 0 {
                let kind = if scan.first == 0 { Kind::Ac } else { Kind::Band };
                self.ac[part.ac].set(tables.ac[part.ac].as_ref().ok_or(MISSING)?, kind)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "../tests/suite/images.rs"]
mod images;

#[cfg(test)]
mod tests {
    use super::images::{Coding, NUMBER, NUMBER_DAMAGED, damaged};
    use super::*;

    /// The plain way for damaged images has the pixels of the fast one where that goes through, and is needed nowhere else.
    #[test]
    fn both_ways_agree() {
        let mut memory = Decoder::new().memory;
        let files = (0..NUMBER).map(|number| Coding::of(number).encode()).chain((0..NUMBER_DAMAGED).map(damaged));
        for (number, bytes) in files.enumerate() {
            let Ok(jpeg) = Jpeg::parse(&bytes) else { continue };
            for scale in Scale::ALL {
                let (width, height) = jpeg.scaled(scale);
                let layout = Layout::new(&jpeg, Region { left: 0, top: 0, width, height }, scale).unwrap();
                let mut fast = vec![0; width * height * 3];
                let mut plain = vec![0; width * height * 3];
                *memory.group = Group::ZERO;
                let result = memory.decode(&jpeg, &layout, &mut fast);
                assert!(result.is_ok() || number >= NUMBER, "{number}: {result:?}");
                if result.is_ok() {
                    memory.tolerant(&jpeg, &layout, &mut plain).unwrap();
                    assert!(fast == plain, "{number} at {scale:?}");
                }
            }
        }
    }
}
