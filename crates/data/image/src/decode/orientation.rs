//! The orientation that cameras record in EXIF (CIPA DC-008, 4.6.4), and images turned by it.
//!
//! Only the first directory of the EXIF data of a JPEG, PNG or WebP file is read, in one pass without allocation. Data that are
//! cut short or make no sense count as no orientation, as in Pillow. An orientation that is in XMP alone is not read.

use std::io;

use enmasse_jpeg::Region;

use super::webp;
use crate::Image;
use crate::flip_rows::flip_rows;

/// The tag of the orientation.
const ORIENTATION: u16 = 0x0112;

/// An orientation from 1 to 8: where the first row and the first column of an image's pixels belong. The default is 1: as shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Orientation(u8);

impl Default for Orientation {
    fn default() -> Self {
        Orientation(1)
    }
}

impl Orientation {
    /// Width and height of an image of `width` × `height` when it has been turned.
    pub fn shown(self, width: usize, height: usize) -> (usize, usize) {
        if self.0 >= 5 { (height, width) } else { (width, height) }
    }

    /// Where a part of the turned image of `width` × `height` is stored.
    pub fn stored(self, part: Region, width: usize, height: usize) -> Region {
        let Region { mut left, mut top, .. } = part;
        if matches!(self.0, 2 | 3 | 6 | 7) {
            left = width - left - part.width;
        }
        if matches!(self.0, 3 | 4 | 7 | 8) {
            top = height - top - part.height;
        }
        let Region { width, height, .. } = part;
        if self.0 >= 5 {
            return Region { left: top, top: left, width: height, height: width };
        }
        Region { left, top, width, height }
    }
}

/// The orientation that an image file states.
pub(super) fn orientation(bytes: &[u8]) -> Orientation {
    let exif = match bytes {
        [0xFF, 0xD8, ..] => of_jpeg(bytes),
        [0x89, b'P', b'N', b'G', ..] => of_png(bytes),
        [b'R', b'I', b'F', b'F', ..] => of_webp(bytes),
        _ => None,
    };
    exif.and_then(of_exif).map_or(Orientation::default(), Orientation)
}

/// The first segment with EXIF data before the pixels.
fn of_jpeg(bytes: &[u8]) -> Option<&[u8]> {
    let mut rest = &bytes[2..];
    loop {
        match rest {
            // The pixels, or the end.
            [0xFF, 0xDA | 0xD9, ..] => return None,
            // Fill bytes, markers without content, and stray bytes.
            [0xFF, 0xFF | 0x00 | 0x01 | 0xD0..=0xD8, ..] => rest = &rest[1..],
            [0xFF, marker, high, low, after @ ..] => {
                let length = usize::from(u16::from_be_bytes([*high, *low])).checked_sub(2)?;
                let content = after.get(..length)?;
                if *marker == 0xE1 && content.starts_with(b"Exif\0\0") {
                    return Some(content);
                }
                rest = &after[length..];
            }
            [_, ..] => rest = &rest[1..],
            [] => return None,
        }
    }
}

/// The content of the chunk `eXIf`, which may follow the pixels.
fn of_png(bytes: &[u8]) -> Option<&[u8]> {
    let mut rest = bytes.get(8..)?;
    loop {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (name, after) = after.split_first_chunk::<4>()?;
        let content = after.get(..u32::from_be_bytes(*length) as usize)?;
        match name {
            b"eXIf" => return Some(content),
            b"IEND" => return None,
            _ => rest = after.get(content.len() + 4..)?,
        }
    }
}

fn of_webp(bytes: &[u8]) -> Option<&[u8]> {
    let mut rest = webp::content(bytes).ok()?;
    while let Some((name, content)) = webp::next_chunk(&mut rest).ok()? {
        if &name == b"EXIF" {
            return Some(content);
        }
    }
    None
}

/// The orientation in EXIF data, which are a TIFF file with or without a title.
fn of_exif(exif: &[u8]) -> Option<u8> {
    let tiff = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    let is_little = match tiff.get(..4)? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let u16_at = |bytes: &[u8], at: usize| {
        let stored = bytes.get(at..at + 2)?.try_into().ok()?;
        Some(if is_little { u16::from_le_bytes(stored) } else { u16::from_be_bytes(stored) })
    };
    let u32_at = |bytes: &[u8], at: usize| {
        let stored = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(if is_little { u32::from_le_bytes(stored) } else { u32::from_be_bytes(stored) })
    };
    let directory = tiff.get(u32_at(tiff, 4)? as usize..)?;
    let count = usize::from(u16_at(directory, 0)?);
    // An entry has a tag, a type, a number of values and, if it is as short as this one, the value.
    let entry = directory[2..].chunks_exact(12).take(count).find(|entry| u16_at(entry, 0) == Some(ORIENTATION))?;
    let value = match (u16_at(entry, 2)?, u32_at(entry, 4)?) {
        (3, 1) => u32::from(u16_at(entry, 8)?),
        (4, 1) => u32_at(entry, 8)?,
        _ => return None,
    };
    u8::try_from(value).ok().filter(|value| (1..=8).contains(value))
}

/// Turns and flips an image as Pillow's `ImageOps.exif_transpose` does. Where rows become columns, the image gets other
/// memory, and for a moment has both.
pub(super) fn transpose(image: &mut Image, Orientation(orientation): Orientation) -> io::Result<()> {
    let (width, height) = (image.width(), image.height());
    if orientation >= 5 {
        let stored = std::mem::take(image);
        let (stored, _) = stored.pixels().as_chunks::<3>();
        let (pixels, _) = image.reshape(height, width)?.as_chunks_mut::<3>();
        for (column, line) in pixels.chunks_exact_mut(height).enumerate() {
            let column = if orientation >= 7 { width - 1 - column } else { column };
            for (row, pixel) in line.iter_mut().enumerate() {
                let row = if matches!(orientation, 6 | 7) { height - 1 - row } else { row };
                *pixel = stored[row * width + column];
            }
        }
        return Ok(());
    }
    let pixels = image.pixels_mut();
    let row_bytes = width * 3;
    match orientation {
        2 => flip_rows(pixels, row_bytes),
        // Both 2 and 4: every pixel in reverse order, as in one row of them all.
        3 => flip_rows(pixels, pixels.len()),
        4 => {
            let (upper, lower) = pixels.split_at_mut(height / 2 * row_bytes);
            let lower = lower.chunks_exact_mut(row_bytes).rev();
            upper.chunks_exact_mut(row_bytes).zip(lower).for_each(|(a, b)| a.swap_with_slice(b));
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EXIF data with one entry: its tag, type, number of values and value.
    fn exif(entry: [u8; 12]) -> Vec<u8> {
        [b"MM\0*\0\0\0\x08\0\x01".as_slice(), &entry, &[0; 4]].concat()
    }

    const SIX: [u8; 12] = [0x01, 0x12, 0, 3, 0, 0, 0, 1, 0, 6, 0, 0];

    fn jpeg(exif: &[u8]) -> Vec<u8> {
        let length = (exif.len() as u16 + 8).to_be_bytes();
        [b"\xFF\xD8\xFF\xE0\0\x04ab\xFF\xFF\xE1".as_slice(), &length, b"Exif\0\0", exif, b"\xFF\xDA"].concat()
    }

    #[test]
    fn orientations_of_exif_data() {
        let check = |exif: &[u8], expected: u8| assert_eq!(orientation(&jpeg(exif)), Orientation(expected), "{exif:?}");
        check(&exif(SIX), 6);
        let with = |place: usize, byte: u8| {
            let mut entry = SIX;
            entry[place] = byte;
            exif(entry)
        };
        check(&with(9, 8), 8);
        check(&with(9, 9), 1);
        check(&with(9, 0), 1);
        check(&with(8, 1), 1);
        // Another tag, a type that is none, two values.
        check(&with(1, 0x13), 1);
        check(&with(3, 2), 1);
        check(&with(7, 2), 1);
        // As a long number.
        check(&exif([0x01, 0x12, 0, 4, 0, 0, 0, 1, 0, 0, 0, 5]), 5);
        // The other order of bytes, a second entry.
        check(b"II*\0\x08\0\0\0\x02\0\x0F\x01\x02\0\x03\0\0\0abc\0\x12\x01\x03\0\x01\0\0\0\x03\0\0\0", 3);
        // A directory elsewhere, more entries than there are, no TIFF.
        let mut data = exif(SIX);
        data[7] = 0xFF;
        check(&data, 1);
        data[4..8].fill(0xFF);
        check(&data, 1);
        let mut data = exif(SIX);
        data[8..10].fill(0xFF);
        check(&data, 6);
        data[10] = 2;
        check(&data, 1);
        check(b"Motorola", 1);
        check(b"", 1);
    }

    /// Data that end at any place state an orientation only where the entry is whole.
    #[test]
    fn truncated_data_have_no_orientation() {
        let data = exif(SIX);
        for end in 0..data.len() {
            let expected = if end >= 22 { 6 } else { 1 };
            assert_eq!(orientation(&jpeg(&data[..end])), Orientation(expected), "{end} bytes");
        }
        let whole = jpeg(&data);
        let end_of_exif = whole.len() - 2;
        for end in 0..end_of_exif {
            assert_eq!(orientation(&whole[..end]), Orientation(1), "{end} bytes");
        }
        assert_eq!(orientation(&whole[..end_of_exif]), Orientation(6));
        for bytes in
            [b"\xFF\xD8\xFF\xE1\0\x01".as_slice(), b"\x89PNG\r\n\x1A\n\xFF\xFF\xFF\xFFeXIf", b"RIFF\xFF\xFF\xFF\xFF"]
        {
            assert_eq!(orientation(bytes), Orientation(1), "{bytes:?}");
        }
    }
}
