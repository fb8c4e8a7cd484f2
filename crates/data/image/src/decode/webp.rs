//! WebP: lossy and lossless. Transparency is left out, as by Pillow's `convert("RGB")`; of an animation the first frame
//! is read.
//!
//! The container is read here, and the decoder gets a file of the bitstream alone. So it never decodes transparency, and
//! takes no memory for other chunks.

use std::io::Cursor;

use enmasse_system::files::{require, reserve};
use image_webp::{DecodingError, WebPDecoder};

use super::{Fault, Mode, check_dimensions, convertible};
use crate::Image;

/// A lossy image takes at least one bit for each block of 16 by 16 pixels. A lossless one of a single colour takes none.
const DENSEST_LOSSY: usize = 16 * 16 * 8;

/// A chunk's name and content.
type Chunk<'a> = ([u8; 4], &'a [u8]);

/// What the file holds of its first image.
struct Parts<'a> {
    /// Width and height that the file states; a plain file leaves that to the bitstream.
    canvas: Option<(usize, usize)>,
    /// Place and dimensions of an animation's frame on the canvas: left, top, width, height.
    frame: Option<[usize; 4]>,
    /// Whether a chunk says that there is transparency.
    alpha: bool,
    /// The chunk `VP8 ` or `VP8L`.
    bitstream: Chunk<'a>,
}

pub(super) fn decode(bytes: &[u8], convert_rgb: bool, image: &mut Image) -> Result<Mode, Fault> {
    let damaged = |error: DecodingError| format!("a damaged or truncated WebP: {error}");
    let parts = parts(bytes)?;
    let alone = alone(parts.bitstream)?;
    let mut decoder = WebPDecoder::new(Cursor::new(alone.as_slice())).map_err(damaged)?;
    let (columns, rows) = decoder.dimensions();
    let (columns, rows) = (columns as usize, rows as usize);
    let (width, height) = parts.canvas.unwrap_or((columns, rows));
    let [left, top, ..] = parts.frame.unwrap_or([0, 0, width, height]);
    let stated = parts.frame.unwrap_or([0, 0, width, height]);
    if stated != [left, top, columns, rows] || left + columns > width || top + rows > height {
        return Err(
            format!("a damaged WebP: {columns}x{rows} pixels for a place of {}x{}", stated[2], stated[3]).into()
        );
    }
    let densest = if decoder.is_lossy() { DENSEST_LOSSY } else { usize::MAX };
    check_dimensions(columns, rows, bytes.len(), densest)?;
    check_dimensions(width, height, bytes.len(), usize::MAX)?;
    let mode = if parts.alpha || decoder.has_alpha() { "RGBA (with alpha)" } else { "RGB" };
    let mode = convertible(mode, convert_rgb)?;
    // Lossless pixels with alpha, or a lossy image's three planes.
    require(columns * rows * 4)?;
    if !decoder.has_alpha() && (columns, rows) == (width, height) {
        decoder.read_image(image.reshape(width, height)?).map_err(damaged)?;
        return Ok(mode);
    }
    let samples = if decoder.has_alpha() { 4 } else { 3 };
    let mut raw = Vec::new();
    reserve(&mut raw, columns * rows * samples)?;
    raw.resize(columns * rows * samples, 0);
    decoder.read_image(&mut raw).map_err(damaged)?;
    let (pixels, _) = image.reshape(width, height)?.as_chunks_mut::<3>();
    // The canvas is transparent black.
    pixels.fill([0; 3]);
    for (line, raw) in pixels.chunks_exact_mut(width).skip(top).zip(raw.chunks_exact(columns * samples)) {
        for (pixel, sample) in line[left..].iter_mut().zip(raw.chunks_exact(samples)) {
            pixel.copy_from_slice(&sample[..3]);
        }
    }
    Ok(mode)
}

fn parts(bytes: &[u8]) -> Result<Parts<'_>, Fault> {
    let (mut canvas, mut frame, mut alpha) = (None, None, false);
    let mut rest = content(bytes)?;
    while let Some((name, data)) = next_chunk(&mut rest)? {
        match (&name, data) {
            (b"VP8X", [flags, _, _, _, size @ ..]) if size.len() >= 6 => {
                alpha = flags & 0x10 != 0;
                canvas = Some((u24(size) + 1, u24(&size[3..]) + 1));
            }
            (b"ANMF", data) if data.len() >= 16 && frame.is_none() => {
                frame = Some([2 * u24(data), 2 * u24(&data[3..]), u24(&data[6..]) + 1, u24(&data[9..]) + 1]);
                rest = &data[16..];
            }
            (b"ALPH", _) => alpha = true,
            (b"VP8 " | b"VP8L", data) => return Ok(Parts { canvas, frame, alpha, bitstream: (name, data) }),
            _ => {}
        }
    }
    Err("a WebP without an image".into())
}

/// The chunks of a file, without what follows the length that it states.
pub(super) fn content(bytes: &[u8]) -> Result<&[u8], Fault> {
    let stated = bytes.get(4..8).and_then(|size| size.try_into().ok()).map_or(0, u32::from_le_bytes);
    bytes.get(12..8 + stated as usize).ok_or_else(|| "a damaged or truncated WebP: it is cut short".into())
}

/// Takes the first chunk.
pub(super) fn next_chunk<'a>(rest: &mut &'a [u8]) -> Result<Option<Chunk<'a>>, Fault> {
    let Some((&[a, b, c, d, size @ ..], after)) = rest.split_first_chunk::<8>() else { return Ok(None) };
    let size = u32::from_le_bytes(size) as usize;
    let data = after.get(..size).ok_or("a damaged or truncated WebP: a chunk is cut short")?;
    // Chunks begin at even places.
    *rest = &after[size.next_multiple_of(2).min(after.len())..];
    Ok(Some(([a, b, c, d], data)))
}

/// A file that holds a bitstream only.
fn alone((name, data): Chunk) -> Result<Vec<u8>, Fault> {
    let mut file = Vec::new();
    reserve(&mut file, 20 + data.len())?;
    file.extend(b"RIFF");
    file.extend((data.len() as u32 + 12).to_le_bytes());
    file.extend(b"WEBP");
    file.extend(name);
    file.extend((data.len() as u32).to_le_bytes());
    file.extend(data);
    Ok(file)
}

/// A number of three bytes, of which there are enough.
fn u24(bytes: &[u8]) -> usize {
    usize::from(bytes[0]) | usize::from(bytes[1]) << 8 | usize::from(bytes[2]) << 16
}
