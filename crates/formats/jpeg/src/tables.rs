//! The tables that scans use, as the file defines them (ITU-T T.81, B.2.4).

use crate::Error;
use crate::segments::be16;
use crate::standard_codes;

/// A Huffman table as its file writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Codes<'a> {
    /// Number of codes of each length from 1 to 16.
    pub counts: [u8; 16],
    /// Their symbols, shortest codes first.
    pub symbols: &'a [u8],
}

/// The tables that are defined at a place of the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tables<'a> {
    /// Divisors in zigzag order.
    pub quantization: [Option<[u16; 64]>; 4],
    pub dc: [Option<Codes<'a>>; 4],
    pub ac: [Option<Codes<'a>>; 4],
    /// MCUs between two restart markers, or 0 without any.
    pub restart_interval: usize,
}

impl<'a> Tables<'a> {
    /// Takes the standard Huffman codes where there are none, as libjpeg does in sequential images.
    pub fn set_standard_codes(&mut self) {
        for (own, standard) in [(&mut self.dc, standard_codes::DC), (&mut self.ac, standard_codes::AC)] {
            own.iter_mut().zip(standard).for_each(|(own, standard)| *own = own.or(Some(standard)));
        }
    }

    /// Takes over what a segment defines. Segments that define no table are ignored.
    pub fn read(&mut self, marker: u8, content: &'a [u8]) -> Result<(), Error> {
        match marker {
            0xC4 => self.read_codes(content),
            0xDB => self.read_quantization(content),
            0xDD => match *content {
                [high, low] => {
                    self.restart_interval = be16(high, low);
                    Ok(())
                }
                _ => Err(Error::Damaged("its restart interval has a wrong length")),
            },
            // What arithmetic coding would need, which is checked like the rest (B.2.4.3).
            0xCC => match content.as_chunks() {
                (pairs, []) if pairs.iter().all(is_condition) => Ok(()),
                _ => Err(Error::Damaged("a condition of arithmetic coding is invalid")),
            },
            _ => Ok(()),
        }
    }

    fn read_codes(&mut self, mut content: &'a [u8]) -> Result<(), Error> {
        const SHORT: Error = Error::Damaged("a Huffman table has a wrong length");
        while let Some((&place, after)) = content.split_first() {
            let (&counts, after) = after.split_first_chunk::<16>().ok_or(SHORT)?;
            let total: usize = counts.iter().map(|&count| usize::from(count)).sum();
            let symbols = after.get(..total).filter(|symbols| symbols.len() <= 256).ok_or(SHORT)?;
            content = &after[total..];
            let kind = match place >> 4 {
                0 => &mut self.dc,
                1 => &mut self.ac,
                _ => return Err(Error::Damaged("a Huffman table is of no known kind")),
            };
            let table = kind.get_mut(usize::from(place & 15)).ok_or(Error::Damaged("it has a fifth Huffman table"))?;
            *table = Some(Codes { counts, symbols });
        }
        Ok(())
    }

    fn read_quantization(&mut self, mut content: &'a [u8]) -> Result<(), Error> {
        while let Some((&place, after)) = content.split_first() {
            let bytes = if place >> 4 == 0 { 1 } else { 2 };
            let values = after.get(..64 * bytes).ok_or(Error::Damaged("a quantization table is too short"))?;
            content = &after[64 * bytes..];
            let table = self.quantization.get_mut(usize::from(place & 15));
            let table = table.ok_or(Error::Damaged("it has a fifth quantization table"))?;
            let value = |at: usize| match bytes {
                1 => u16::from(values[at]),
                _ => u16::from_be_bytes([values[2 * at], values[2 * at + 1]]),
            };
            *table = Some(std::array::from_fn(value));
        }
        Ok(())
    }
}

/// Whether a table of arithmetic coding has a valid number and value.
fn is_condition(&[table, value]: &[u8; 2]) -> bool {
    match table {
        ..16 => value & 15 <= value >> 4,
        _ => table < 32,
    }
}
