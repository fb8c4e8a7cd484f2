//! Writes an image's coefficients again, in the form that is decoded fastest. No pixel changes.

use crate::buffer::fit;
use crate::decoder::Decoder;
use crate::header::Jpeg;
use crate::layout::Layout;
use crate::progressive::Field;
use crate::segments::Segments;
use crate::sequential::factors;
use crate::streams::{MARKER, SIGNATURE, Writer};
use crate::transform::{Block, PLACES};
use crate::{Color, Error, Region, Scale};

/// Most bits of a coefficient of 8-bit samples, and of the difference of two first ones (F.1.2).
const MAX_BITS: u32 = 10;

impl Decoder {
    /// The same image in the form that is decoded fastest (`streams`). [`Jpeg::parse`] and [`decode`](Self::decode) read it like a
    /// JPEG, and no other program does. It takes about a third more bytes.
    ///
    /// The coefficients stay as they are, and so do all segments before the first scan but those with codes: orientation, colour
    /// profile, comments. What follows the end of the image is left out. The same image always gives the same bytes, and a
    /// image in this form stays as it is. Fails for an image that [`decode`](Self::decode) refuses, and for coefficients that no
    /// image has.
    ///
    /// It takes memory for two bytes for each coefficient, and for the result.
    pub fn recode(&mut self, bytes: &[u8]) -> Result<Vec<u8>, Error> {
        let jpeg = Jpeg::parse(bytes)?;
        if jpeg.color == Color::Cmyk {
            return Err(Error::Unsupported("decoding a CMYK image"));
        }
        if jpeg.has_streams()? {
            // Decoding looks at every block, at any scale.
            let (width, height) = jpeg.scaled(Scale::Eighth);
            let mut pixels = Vec::new();
            fit(&mut pixels, width * height * 3, 0)?;
            self.decode(&jpeg, Region { left: 0, top: 0, width, height }, Scale::Eighth, &mut pixels)?;
            return Ok(bytes.to_vec());
        }
        let all = Region { left: 0, top: 0, width: jpeg.width, height: jpeg.height };
        let layout = Layout::new(&jpeg, all, Scale::Full)?;
        let (fields, quantization) = self.memory.coefficients(&jpeg, &layout)?;
        for (component, found) in jpeg.components().iter().zip(&quantization) {
            if factors(&jpeg.tables, component.quantization)? != *found {
                return Err(Error::Unsupported("a quantization table after the first scan"));
            }
        }
        let image = Image { layout: &layout, fields: &fields, coefficients: &self.memory.coefficients };
        let mut out = Vec::with_capacity(bytes.len() * 3 / 2);
        write_header(bytes, &jpeg, &mut out)?;
        image.write()?.finish(&mut out);
        out.extend([0xFF, 0xD9]);
        Ok(out)
    }
}

/// Coefficients in memory.
struct Image<'a> {
    layout: &'a Layout,
    fields: &'a [Field; 3],
    coefficients: &'a [Block],
}

impl Image<'_> {
    fn write(&self) -> Result<Writer, Error> {
        let mut writer = Writer::new();
        for row in 0..self.layout.end_row {
            let mut previous = [0; 3];
            for column in 0..self.layout.mcus_across {
                for (component, plane) in self.layout.planes().iter().enumerate() {
                    let field = &self.fields[component];
                    for down in 0..plane.down {
                        let start = field.start + (row * plane.down + down) * field.stride + column * plane.across;
                        for block in &self.coefficients[start..][..plane.across] {
                            writer.push(&coded(block, &mut previous[component])?);
                        }
                    }
                }
            }
            writer.end_row();
        }
        Ok(writer)
    }
}

/// A block in zigzag order, with the difference of its first coefficient from that of the block before.
fn coded(block: &Block, previous: &mut i16) -> Result<Block, Error> {
    let mut coded = PLACES.map(|place| block[usize::from(place)]);
    coded[0] = block[0].wrapping_sub(std::mem::replace(previous, block[0]));
    let fits = |value: i16, most: u32| 16 - value.unsigned_abs().leading_zeros() <= most;
    match coded.split_first() {
        Some((&first, rest)) if fits(first, MAX_BITS + 1) && rest.iter().all(|&value| fits(value, MAX_BITS)) => {
            Ok(coded)
        }
        _ => Err(Error::Unsupported("a coefficient of more than eight bits of precision")),
    }
}

/// Writes what comes before the streams.
fn write_header(bytes: &[u8], jpeg: &Jpeg, out: &mut Vec<u8>) -> Result<(), Error> {
    out.extend([0xFF, 0xD8]);
    let mut segments = Segments::new(bytes)?;
    loop {
        let (marker, content) = segments.next()?;
        match marker {
            0xDA => break,
            0xC4 | 0xDD => {}
            // A baseline image has divisors of eight bits.
            0xC0..=0xC2 if jpeg.has_small_divisors() => write_segment(0xC0, content, out),
            0xC0..=0xC2 => write_segment(0xC1, content, out),
            _ => write_segment(marker, content, out),
        }
    }
    write_segment(MARKER, &SIGNATURE, out);
    Ok(())
}

fn write_segment(marker: u8, content: &[u8], out: &mut Vec<u8>) {
    out.extend([0xFF, marker]);
    out.extend((2 + content.len() as u16).to_be_bytes());
    out.extend_from_slice(content);
}
