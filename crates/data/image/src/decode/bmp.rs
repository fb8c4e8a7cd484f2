//! BMP: every header and bit depth that Pillow reads, and both forms of run lengths.

use enmasse_system::files::reserve;

use super::{Fault, Mode, check_dimensions, convertible};
use crate::Image;

/// A pixel takes at least one bit.
const DENSEST: usize = 8;

/// Among run lengths, a jump of four bytes passes 255 rows. Rows of more than 255 pixels are not counted.
const DENSEST_RUNS: usize = 255 * 255 / 4;

const CUT_SHORT: &str = "a damaged or truncated BMP: it is cut short";

/// How the pixels of a file are stored.
enum Pixels {
    /// Numbers of colours, of 1, 4 or 8 bits.
    Indexed,
    /// The same as run lengths.
    Runs,
    /// 16 bits: five each, or six for green.
    Words { green: u32 },
    /// Three or four bytes: the places of red, green and blue.
    Bytes([usize; 3]),
}

struct Header {
    width: usize,
    height: usize,
    bottom_up: bool,
    bits: usize,
    /// The colour of each number; empty beyond 8 bits.
    palette: Vec<[u8; 3]>,
    mode: &'static str,
    pixels: Pixels,
    /// Where the pixels begin.
    start: usize,
}

pub(super) fn decode(bytes: &[u8], convert_rgb: bool, image: &mut Image) -> Result<Mode, Fault> {
    let Header { width, height, bottom_up, bits, palette, mode, pixels, start } = header(bytes)?;
    let densest = if matches!(pixels, Pixels::Runs) { DENSEST_RUNS } else { DENSEST };
    check_dimensions(width, height, bytes.len(), densest)?;
    let mode = convertible(mode, convert_rgb)?;
    let data = bytes.get(start..).ok_or(CUT_SHORT)?;
    let unpacked = match pixels {
        Pixels::Runs => Some(runs(bytes, start, bits == 4, width, height)?),
        _ => None,
    };
    // Rows of pixels end at multiples of four bytes.
    let (data, bits, stride) = match &unpacked {
        Some(indices) => (indices.as_slice(), 8, width),
        None => (data, bits, (width * bits).div_ceil(32) * 4),
    };
    let data = data.get(..stride * height).ok_or(CUT_SHORT)?;
    let (lines, _) = image.reshape(width, height)?.as_chunks_mut::<3>();
    for (number, row) in data.chunks_exact(stride).enumerate() {
        let number = if bottom_up { height - 1 - number } else { number };
        let line = lines[number * width..][..width].iter_mut();
        match pixels {
            Pixels::Indexed | Pixels::Runs => line.enumerate().for_each(|(x, pixel)| {
                let byte = row[x * bits / 8];
                let shift = 8 - bits - x * bits % 8;
                *pixel = palette[usize::from(byte >> shift) & ((1 << bits) - 1)];
            }),
            Pixels::Words { green } => line.zip(row.as_chunks().0).for_each(|(pixel, &word)| {
                let word = u32::from(u16::from_le_bytes(word));
                let part = |shift: u32, bits: u32| ((word >> shift) % (1 << bits) * 255 / ((1 << bits) - 1)) as u8;
                *pixel = [part(5 + green, 5), part(5, green), part(0, 5)];
            }),
            Pixels::Bytes(places) => line.zip(row.chunks_exact(bits / 8)).for_each(|(pixel, stored)| {
                *pixel = places.map(|place| stored[place]);
            }),
        }
    }
    Ok(mode)
}

fn header(bytes: &[u8]) -> Result<Header, Fault> {
    let u16_at =
        |at: usize| bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map(u16::from_le_bytes).ok_or(CUT_SHORT);
    let u32_at =
        |at: usize| bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes).ok_or(CUT_SHORT);
    let (start, size) = (u32_at(10)? as usize, u32_at(14)? as usize);
    let end = 14 + size;
    let (width, height, bits, compression, colors) = match size {
        12 => (u32::from(u16_at(18)?), u32::from(u16_at(20)?), u16_at(24)?, 0, 0),
        40 | 52 | 56 | 64 | 108 | 124 => (u32_at(18)?, u32_at(22)?, u16_at(28)?, u32_at(30)?, u32_at(46)?),
        _ => return Err(format!("a BMP with a header of {size} bytes").into()),
    };
    // A negative height means that the first row is at the top.
    let (height, bottom_up) = match height >> 24 {
        0xFF if size != 12 => (height.wrapping_neg(), false),
        _ => (height, true),
    };
    let width = width as usize;
    let height = height as usize;
    let bits = usize::from(bits);
    let mut mode = "RGB";
    let mut palette = Vec::new();
    let mut after = end;
    let pixels = match (bits, compression) {
        (1 | 4 | 8, 0) => Pixels::Indexed,
        (4, 2) | (8, 1) => Pixels::Runs,
        (16, 0) => Pixels::Words { green: 5 },
        (24 | 32, 0) => Pixels::Bytes([2, 1, 0]),
        (16 | 24 | 32, 3) => {
            // A short header is followed by the masks.
            after = after.max(66);
            let alpha = if size >= 56 { u32_at(66)? } else { 0 };
            let (pixels, with_alpha) = masked(bits, [u32_at(54)?, u32_at(58)?, u32_at(62)?], alpha)
                .ok_or("a BMP whose colours are stored in an unknown order")?;
            if with_alpha {
                mode = "RGBA (with alpha)";
            }
            pixels
        }
        _ => return Err(format!("a BMP of {bits} bits a pixel and compression {compression}").into()),
    };
    if bits <= 8 {
        let entry = if size == 12 { 3 } else { 4 };
        let colors = if colors == 0 { 1 << bits } else { colors as usize };
        let stored = bytes.get(end..).unwrap_or(&[]).chunks_exact(entry);
        let found: Vec<[u8; 3]> = stored.take(colors.min(256)).map(|color| [color[2], color[1], color[0]]).collect();
        let gray = |number: usize| if colors == 2 { 255 * number as u8 } else { number as u8 };
        let is_gray = found.len() == colors && found.iter().enumerate().all(|(number, &c)| c == [gray(number); 3]);
        mode = match is_gray {
            true if colors <= 2 => "1 (black and white)",
            true => "L (grayscale)",
            false => "P (palette)",
        };
        // Of a grey image Pillow takes the numbers themselves; other numbers without a colour are black.
        let ramp = is_gray && colors > 2;
        let missing = (found.len()..256).map(|number| if ramp { [number as u8; 3] } else { [0; 3] });
        after = end.saturating_add(entry.saturating_mul(colors));
        palette = found.iter().copied().chain(missing).collect();
    }
    let start = if start == 0 || (bits <= 8 && start == end) { after } else { start };
    Ok(Header { width, height, bottom_up, bits, palette, mode, pixels, start })
}

/// The order of colours for the masks of red, green and blue and of alpha, and whether that is stored.
fn masked(bits: usize, masks: [u32; 3], alpha: u32) -> Option<(Pixels, bool)> {
    const LOW: u32 = 0xFF;
    Some(match (bits, masks, alpha) {
        (16, [0xF800, 0x7E0, 0x1F], _) => (Pixels::Words { green: 6 }, false),
        (16, [0x7C00, 0x3E0, 0x1F], _) => (Pixels::Words { green: 5 }, false),
        (24, [0xFF_0000, 0xFF00, LOW], _) => (Pixels::Bytes([2, 1, 0]), false),
        (32, [0xFF_0000, 0xFF00, LOW], 0 | 0xFF00_0000) => (Pixels::Bytes([2, 1, 0]), alpha != 0),
        (32, [0xFF00_0000, 0xFF_0000, 0xFF00], 0 | LOW) => (Pixels::Bytes([3, 2, 1]), alpha != 0),
        (32, [0xFF00_0000, 0xFF00, LOW], 0 | 0xFF_0000) => (Pixels::Bytes([3, 1, 0]), alpha != 0),
        (32, [LOW, 0xFF00, 0xFF_0000], 0xFF00_0000) => (Pixels::Bytes([0, 1, 2]), true),
        (32, [0, 0, 0], 0) => (Pixels::Bytes([2, 1, 0]), true),
        _ => return None,
    })
}

/// The numbers of colours that run lengths stand for, a byte each. As by Pillow, a run ends at the end of its row, and
/// an end of line at the beginning of a row has no effect.
fn runs(bytes: &[u8], start: usize, half_bytes: bool, width: usize, height: usize) -> Result<Vec<u8>, Fault> {
    let total = width * height;
    let mut found = Vec::new();
    reserve(&mut found, total)?;
    let (mut at, mut x) = (start, 0);
    while found.len() < total {
        let &[count, value] = bytes.get(at..at + 2).and_then(<[u8]>::as_array).ok_or(CUT_SHORT)?;
        at += 2;
        let left = total - found.len();
        match (count, value) {
            (0, 0) => {
                found.resize(found.len().next_multiple_of(width), 0);
                x = 0;
            }
            (0, 1) => return Err(CUT_SHORT.into()),
            (0, 2) => {
                let &[right, up] = bytes.get(at..at + 2).and_then(<[u8]>::as_array).ok_or(CUT_SHORT)?;
                at += 2;
                found.resize(found.len() + left.min(usize::from(right) + usize::from(up) * width), 0);
                x = found.len() % width;
            }
            (0, count) => {
                let taken = left.min(usize::from(count));
                let stored = if half_bytes { taken.div_ceil(2) } else { taken };
                let values = bytes.get(at..at + stored).ok_or(CUT_SHORT)?;
                match half_bytes {
                    true => found.extend(values.iter().flat_map(|value| [value >> 4, value & 15]).take(taken)),
                    false => found.extend(values),
                }
                // The next pair begins at an even place of the file.
                at = (at + stored).next_multiple_of(2);
                x += usize::from(count);
            }
            (count, value) => {
                let count = usize::from(count).min(width.saturating_sub(x)).min(left);
                let pair = if half_bytes { [value >> 4, value & 15] } else { [value; 2] };
                found.extend(pair.iter().cycle().take(count));
                x += count;
            }
        }
    }
    Ok(found)
}
