//! PNG: every colour type and bit depth.

use std::io::Cursor;

use enmasse_system::files::reserve;
use png::{ColorType, Decoder, Limits, Transformations};

use super::{Fault, MAX_PIXELS, Mode, check_dimensions, convertible};
use crate::Image;

/// A pixel takes at least one bit, and Deflate makes 258 bytes from two bits at most.
const DENSEST: usize = 8 * 1032;

pub(super) fn decode(bytes: &[u8], convert_rgb: bool, image: &mut Image) -> Result<Mode, Fault> {
    let damaged = |error: png::DecodingError| format!("a damaged or truncated PNG: {error}");
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), Limits { bytes: MAX_PIXELS * 8 });
    // Colour profiles and comments are not used, and some decompress to hundreds of times their size.
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_ignore_text_chunk(true);
    // Palettes and low bit depths become 8-bit samples; of 16 bits the upper eight are kept, as in Pillow.
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    let header = decoder.read_header_info().map_err(damaged)?;
    let (width, height) = (header.width as usize, header.height as usize);
    let color = header.color_type;
    let depth = header.bit_depth as u8;
    check_dimensions(width, height, bytes.len(), DENSEST)?;
    let wide_gray = color == ColorType::Grayscale && depth == 16;
    if wide_gray {
        decoder.set_transformations(Transformations::IDENTITY);
    }
    let mode = match color {
        ColorType::Rgb => "RGB",
        ColorType::Rgba => "RGBA (with alpha)",
        ColorType::Indexed => "P (palette)",
        ColorType::GrayscaleAlpha => "LA (grayscale with alpha)",
        ColorType::Grayscale if wide_gray => "I;16 (16-bit grayscale)",
        ColorType::Grayscale if depth == 1 => "1 (black and white)",
        ColorType::Grayscale => "L (grayscale)",
    };
    let mode = convertible(mode, convert_rgb)?;
    let mut reader = decoder.read_info().map_err(damaged)?;
    let samples = reader.output_color_type().0.samples();
    let bytes = reader.output_buffer_size().ok_or("its dimensions overflow")?;
    if samples == 3 {
        reader.next_frame(image.reshape(width, height)?).map_err(damaged)?;
        return Ok(mode);
    }
    let mut raw = Vec::new();
    reserve(&mut raw, bytes)?;
    raw.resize(bytes, 0);
    reader.next_frame(&mut raw).map_err(damaged)?;
    let (pixels, _) = image.reshape(width, height)?.as_chunks_mut::<3>();
    match samples {
        // Pillow clips 16-bit grays rather than scaling them.
        1 if wide_gray => convert::<2>(pixels, &raw, |[high, low]| [if high > 0 { 255 } else { low }; 3]),
        1 => convert::<1>(pixels, &raw, |[gray]| [gray; 3]),
        2 => convert::<2>(pixels, &raw, |[gray, _]| [gray; 3]),
        _ => convert::<4>(pixels, &raw, |[r, g, b, _]| [r, g, b]),
    }
    Ok(mode)
}

fn convert<const N: usize>(pixels: &mut [[u8; 3]], raw: &[u8], rgb: impl Fn([u8; N]) -> [u8; 3]) {
    for (pixel, &sample) in pixels.iter_mut().zip(raw.as_chunks::<N>().0) {
        *pixel = rgb(sample);
    }
}
