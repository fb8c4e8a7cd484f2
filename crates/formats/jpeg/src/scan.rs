//! A scan's header, and the place that its decoding has reached (ITU-T T.81, B.2.3, E.2.4).

use crate::Error;
use crate::bits::Bits;
use crate::header::Jpeg;

/// What a scan holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan {
    /// Components in the order of the frame, with the numbers of their Huffman tables.
    pub components: [Part; 3],
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
    pub fn parse(jpeg: &Jpeg, content: &[u8]) -> Result<Self, Error> {
        const INVALID: Error = Error::Damaged("the header of a scan is invalid");
        let (&count, rest) = content.split_first().ok_or(INVALID)?;
        let count = usize::from(count);
        if !(1..=3).contains(&count) || rest.len() != 2 * count + 3 {
            return Err(INVALID);
        }
        let (listed, [first, last, bits]) = rest.split_at(2 * count) else { return Err(INVALID) };
        let mut components = [Part::default(); 3];
        let mut from = 0;
        for (part, entry) in components.iter_mut().zip(listed.as_chunks::<2>().0) {
            let [id, tables] = *entry;
            // Scans have components in the order of the frame (B.2.3), each once.
            let place = jpeg.components()[from..].iter().position(|component| component.id == id).ok_or(INVALID)?;
            let (dc, ac) = (usize::from(tables >> 4), usize::from(tables & 15));
            if dc > 3 || ac > 3 {
                return Err(INVALID);
            }
            *part = Part { component: from + place, dc, ac };
            from += place + 1;
        }
        let (first, last, high, low) = (usize::from(*first), usize::from(*last), bits >> 4, bits & 15);
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
    pub previous: [i32; 3],
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
        Progress { bits: Bits::new(data), previous: [0; 3], ended: 0, interval, left: interval, number: 0 }
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
        (self.previous, self.ended, self.left) = ([0; 3], 0, self.interval);
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
