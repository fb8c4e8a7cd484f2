//! A scan's header, and the place that its decoding has reached (ITU-T T.81, B.2.3, E.2.4).

use crate::Error;
use crate::bits::Bits;
use crate::header::{Jpeg, MAX_COMPONENTS};
use crate::segments::{Segments, is_frame};
use crate::tables::Tables;

/// Most blocks of one MCU (B.2.3).
const MAX_BLOCKS: usize = 10;

/// What a scan holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan {
    /// Components with the numbers of their Huffman tables, in the order of their blocks.
    pub components: [Part; MAX_COMPONENTS],
    pub count: usize,
    /// The first and the last coefficient, in zigzag order.
    pub first: usize,
    pub last: usize,
    /// Whether earlier scans had the coefficients without their lowest bits.
    pub refines: bool,
    /// Number of their lowest bits that this scan does not have.
    pub low: u32,
}

/// A component of a scan.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {
    /// Its place in the frame.
    pub component: usize,
    pub dc: usize,
    pub ac: usize,
}

impl Scan {
    /// Reads the segments up to the data of the next scan. `None` at the end of the image.
    pub fn next<'a>(jpeg: &Jpeg, segments: &mut Segments<'a>, tables: &mut Tables<'a>) -> Result<Option<Self>, Error> {
        while let Some(marker) = segments.marker()? {
            match marker {
                _ if is_frame(marker) => return Err(Error::Damaged("it has two frames")),
                0xDA => return Scan::parse(jpeg, segments.content()?).map(Some),
                _ => tables.read(marker, segments.content()?)?,
            }
        }
        Ok(None)
    }

    pub fn parse(jpeg: &Jpeg, content: &[u8]) -> Result<Self, Error> {
        const INVALID: Error = Error::Damaged("the header of a scan is invalid");
        let (&count, rest) = content.split_first().ok_or(INVALID)?;
        let count = usize::from(count);
        if !(1..=MAX_COMPONENTS).contains(&count) || rest.len() != 2 * count + 3 {
            return Err(INVALID);
        }
        let (listed, [first, last, bits]) = rest.split_at(2 * count) else { return Err(INVALID) };
        // The numbers of tables that are not used mean nothing.
        let uses_dc = !jpeg.progressive || *first == 0 && bits >> 4 == 0;
        let uses_ac = !jpeg.progressive || *first > 0;
        let mut components = [Part::default(); MAX_COMPONENTS];
        for (place, entry) in listed.as_chunks::<2>().0.iter().enumerate() {
            let [id, tables] = *entry;
            // Of components with the same name libjpeg takes one that is no earlier in the frame than here.
            let is_named = |&component: &usize| jpeg.components[component].id == id;
            let component = (place..jpeg.count).find(is_named).ok_or(INVALID)?;
            let dc = if uses_dc { usize::from(tables >> 4) } else { 0 };
            let ac = if uses_ac { usize::from(tables & 15) } else { 0 };
            if dc > 3 || ac > 3 || components[..place].iter().any(|part| part.component == component) {
                return Err(INVALID);
            }
            components[place] = Part { component, dc, ac };
        }
        let blocks = |part: &Part| jpeg.components[part.component].across * jpeg.components[part.component].down;
        if count > 1 && components[..count].iter().map(blocks).sum::<usize>() > MAX_BLOCKS {
            return Err(Error::Unsupported("an MCU of more than ten blocks"));
        }
        let first = usize::from(*first);
        let last = usize::from(*last);
        let high = bits >> 4;
        let low = bits & 15;
        if jpeg.progressive {
            let band = if first == 0 { last == 0 } else { count == 1 && last <= 63 && first <= last };
            if !band || low > 13 || high > 0 && high != low + 1 {
                return Err(INVALID);
            }
            return Ok(Scan { components, count, first, last, refines: high > 0, low: u32::from(low) });
        }
        // Some encoders leave the fields that only progressive scans use at zero.
        Ok(Scan { components, count, first: 0, last: 63, refines: false, low: 0 })
    }

    pub fn components(&self) -> &[Part] {
        &self.components[..self.count]
    }
}

/// Where decoding is in a scan.
pub(crate) struct Progress<'a> {
    pub bits: Bits<'a>,
    /// The first coefficient of each component's block before.
    pub previous: [i32; MAX_COMPONENTS],
    /// Blocks to come without further coefficients in a progressive scan.
    pub ended: u32,
    /// MCUs between two restart markers, and those left before the next one. Without restart markers there is no end of both.
    interval: usize,
    left: usize,
    /// Number of the next restart marker.
    number: usize,
}

impl<'a> Progress<'a> {
    pub fn new(data: &'a [u8], restart_interval: usize) -> Self {
        let interval = if restart_interval == 0 { usize::MAX } else { restart_interval };
        Progress { bits: Bits::new(data), previous: [0; MAX_COMPONENTS], ended: 0, interval, left: interval, number: 0 }
    }

    /// To be called before each MCU: takes the restart marker if there is to be one, and fails if the data have ended.
    #[inline(always)]
    pub fn next(&mut self) -> Result<(), Error> {
        if self.left == 0 {
            self.restart()?;
        }
        self.left -= 1;
        self.bits.check()
    }

    #[cold]
    fn restart(&mut self) -> Result<(), Error> {
        self.bits.restart(self.number)?;
        (self.previous, self.ended, self.left) = ([0; MAX_COMPONENTS], 0, self.interval);
        self.number += 1;
        Ok(())
    }

    /// Leaves out `count` MCUs. Those up to a restart marker are not decoded, the others are by `skip`.
    #[inline(always)]
    pub fn skip(
        &mut self,
        mut count: usize,
        mut skip: impl FnMut(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        while count > 0 {
            if self.left == 0 {
                self.restart()?;
            }
            if count >= self.left {
                // The next restart looks for its marker from here.
                count -= std::mem::take(&mut self.left);
                continue;
            }
            self.next()?;
            skip(self)?;
            count -= 1;
        }
        Ok(())
    }
}
