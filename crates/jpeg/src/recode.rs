//! Writes a picture's coefficients again, in the form that is decoded fastest. No pixel changes.

use crate::codes::{Code, Frequencies};
use crate::decoder::Decoder;
use crate::header::Jpeg;
use crate::layout::Layout;
use crate::progressive::Field;
use crate::segments::Segments;
use crate::sequential::factors;
use crate::transform::{Block, PLACES};
use crate::{Color, Error, Region, Scale};

/// Most bits of a coefficient of 8-bit samples, and of the difference of two first ones (F.1.2).
const MOST_BITS: u32 = 10;

/// What a symbol of a block belongs to.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Dc,
    Ac,
}

impl Decoder {
    /// The same picture as a sequential JPEG of one scan, with codes of its own and a restart marker after each row of MCUs. So a
    /// region is decoded without the codes above it and to its right, and memory is needed for a row of MCUs alone.
    ///
    /// The coefficients stay as they are, and so do all segments before the first scan but those with codes: orientation, colour
    /// profile, comments. What follows the end of the picture is left out. The same picture always gives the same bytes. Fails for
    /// a picture that [`decode`](Self::decode) refuses, and for coefficients that no picture has.
    ///
    /// It takes memory for two bytes for each coefficient, and for the result.
    pub fn recode(&mut self, bytes: &[u8]) -> Result<Vec<u8>, Error> {
        let jpeg = Jpeg::parse(bytes)?;
        if jpeg.color == Color::Inks {
            return Err(Error::Unsupported("decoding a picture of four inks"));
        }
        let all = Region { left: 0, top: 0, width: jpeg.width, height: jpeg.height };
        let layout = Layout::new(&jpeg, all, Scale::Full)?;
        let (fields, quantization) = self.memory.coefficients(&jpeg, &layout)?;
        for (component, found) in jpeg.components().iter().zip(&quantization) {
            if factors(&jpeg.tables, component.quantization)? != *found {
                return Err(Error::Unsupported("a quantization table after the first scan"));
            }
        }
        let picture = Picture { layout: &layout, fields: &fields, coefficients: &self.memory.coefficients };
        let codes = picture.codes()?;
        let mut out = Vec::with_capacity(bytes.len());
        write_header(bytes, &jpeg, &layout, &codes, &mut out)?;
        picture.write(&codes, &mut out)?;
        out.extend([0xFF, 0xD9]);
        Ok(out)
    }
}

/// Coefficients in memory.
struct Picture<'a> {
    layout: &'a Layout,
    fields: &'a [Field; 3],
    coefficients: &'a [Block],
}

/// The codes of the first and the other coefficients: of the first component, and of the others.
type Codes = [[Code; 2]; 2];

/// The number of a component's codes.
fn place(component: usize) -> usize {
    component.min(1)
}

impl Picture<'_> {
    /// Calls `emit` with the component, and with kind, symbol and value of each symbol, in the order of a scan with all components. The
    /// value's lowest bits follow the symbol, as many as its lowest four bits say. Calls `end_row` after each row of MCUs but the
    /// last.
    fn walk<T>(
        &self,
        state: &mut T,
        mut emit: impl FnMut(&mut T, usize, Kind, u8, i32),
        mut end_row: impl FnMut(&mut T, usize),
    ) -> Result<(), Error> {
        for row in 0..self.layout.end_row {
            if row > 0 {
                end_row(state, row - 1);
            }
            let mut previous = [0; 3];
            for column in 0..self.layout.mcus_across {
                for (component, plane) in self.layout.planes().iter().enumerate() {
                    let field = &self.fields[component];
                    for down in 0..plane.down {
                        let start = field.start + (row * plane.down + down) * field.stride + column * plane.across;
                        for block in &self.coefficients[start..][..plane.across] {
                            symbols(block, &mut previous[component], |kind, symbol, value| {
                                emit(state, component, kind, symbol, value);
                            })?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn codes(&self) -> Result<Codes, Error> {
        let mut counts: [[Frequencies; 2]; 2] = Default::default();
        let count = |counts: &mut [[Frequencies; 2]; 2], component: usize, kind: Kind, symbol: u8, _: i32| {
            counts[place(component)][kind as usize].count(symbol);
        };
        self.walk(&mut counts, count, |_, _| {})?;
        Ok(counts.map(|counts| counts.map(|counts| counts.code())))
    }

    fn write(&self, codes: &Codes, out: &mut Vec<u8>) -> Result<(), Error> {
        let mut bits = Bits { out, waiting: 0, count: 0 };
        let emit = |bits: &mut Bits, component: usize, kind: Kind, symbol: u8, value: i32| {
            let (word, length) = codes[place(component)][kind as usize].words[usize::from(symbol)];
            let size = u32::from(symbol & 15);
            bits.put(word << size | value as u32 & ((1 << size) - 1), length + size);
        };
        let end_row = |bits: &mut Bits, row: usize| {
            bits.finish();
            bits.out.extend([0xFF, 0xD0 | (row % 8) as u8]);
        };
        self.walk(&mut bits, emit, end_row)?;
        bits.finish();
        Ok(())
    }
}

/// Calls `emit` with the symbols of a block (F.1.2), each with the value whose lowest bits follow it.
fn symbols(block: &Block, previous: &mut i32, mut emit: impl FnMut(Kind, u8, i32)) -> Result<(), Error> {
    const TOO_LARGE: Error = Error::Unsupported("a coefficient of more than eight bits of precision");
    let size = |value: i32| 32 - value.unsigned_abs().leading_zeros();
    // Numbers below 0 are stored less one.
    let stored = |value: i32| value - i32::from(value < 0);
    let first = i32::from(block[0]);
    let difference = first - std::mem::replace(previous, first);
    if size(difference) > MOST_BITS + 1 {
        return Err(TOO_LARGE);
    }
    emit(Kind::Dc, size(difference) as u8, stored(difference));
    let mut zeros = 0;
    for place in &PLACES[1..] {
        let value = i32::from(block[usize::from(*place)]);
        if value == 0 {
            zeros += 1;
            continue;
        }
        if size(value) > MOST_BITS {
            return Err(TOO_LARGE);
        }
        for _ in 0..zeros / 16 {
            emit(Kind::Ac, 0xF0, 0);
        }
        emit(Kind::Ac, (zeros % 16) << 4 | size(value) as u8, stored(value));
        zeros = 0;
    }
    if zeros > 0 {
        emit(Kind::Ac, 0, 0);
    }
    Ok(())
}

/// Writes what comes before the scan.
fn write_header(bytes: &[u8], jpeg: &Jpeg, layout: &Layout, codes: &Codes, out: &mut Vec<u8>) -> Result<(), Error> {
    out.extend([0xFF, 0xD8]);
    let mut segments = Segments::new(bytes)?;
    loop {
        let (marker, content) = segments.next()?;
        match marker {
            0xDA => break,
            0xC4 | 0xDD => {}
            // A baseline picture has divisors of eight bits.
            0xC0..=0xC2 if jpeg.has_small_divisors() => write_segment(0xC0, &[content], out),
            0xC0..=0xC2 => write_segment(0xC1, &[content], out),
            _ => write_segment(marker, &[content], out),
        }
    }
    let used = layout.count.min(2);
    for (number, codes) in (0..).zip(&codes[..used]) {
        for (kind, Code { counts, symbols, .. }) in (0..).zip(codes) {
            write_segment(0xC4, &[&[kind << 4 | number], counts, symbols], out);
        }
    }
    write_segment(0xDD, &[&(layout.mcus_across as u16).to_be_bytes()], out);
    let mut scan = vec![layout.count as u8];
    for (at, component) in jpeg.components().iter().enumerate() {
        scan.extend([component.id, 0x11 * place(at) as u8]);
    }
    write_segment(0xDA, &[&scan, &[0, 63, 0]], out);
    Ok(())
}

fn write_segment(marker: u8, parts: &[&[u8]], out: &mut Vec<u8>) {
    let length = 2 + parts.iter().map(|part| part.len()).sum::<usize>();
    out.extend([0xFF, marker]);
    out.extend((length as u16).to_be_bytes());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// Writes bits from the highest on.
struct Bits<'a> {
    out: &'a mut Vec<u8>,
    /// The lowest `count` bits are not yet written: fewer than 32.
    waiting: u64,
    count: u32,
}

impl Bits<'_> {
    /// Writes the lowest `count` bits of `bits`, at most 32, of which the others are 0.
    fn put(&mut self, bits: u32, count: u32) {
        self.waiting = self.waiting << count | u64::from(bits);
        self.count += count;
        if self.count >= 32 {
            self.count -= 32;
            let bytes = ((self.waiting >> self.count) as u32).to_be_bytes();
            if bytes.contains(&0xFF) {
                self.stuff(&bytes);
            } else {
                self.out.extend_from_slice(&bytes);
            }
        }
    }

    /// Writes bytes, and a zero after each 0xFF.
    fn stuff(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.out.push(byte);
            self.out.extend((byte == 0xFF).then_some(0));
        }
    }

    /// Fills up the last byte with ones, and writes what is left.
    fn finish(&mut self) {
        let missing = (8 - self.count % 8) % 8;
        self.put((1 << missing) - 1, missing);
        let left = (self.waiting as u32).to_be_bytes();
        self.stuff(&left[4 - self.count as usize / 8..]);
        self.count = 0;
    }
}
