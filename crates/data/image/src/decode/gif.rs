//! GIF: the first frame, on a canvas of the size that the file states.

use enmasse_system::files::reserve;
use gif::{ColorOutput, DecodeOptions, DecodingError, MemoryLimit};

use super::{Fault, Mode, check_dimensions, convertible};
use crate::Image;

/// A code of 12 bits stands for at most 4096 pixels, and a shorter code for fewer per bit.
const DENSEST: usize = 4096 * 8 / 12;

pub(super) fn decode(bytes: &[u8], convert_rgb: bool, image: &mut Image) -> Result<Mode, Fault> {
    let damaged = |error: DecodingError| format!("a damaged or truncated GIF: {error}");
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    // The decoder takes no more than the file has; the pixels are reserved here.
    options.set_memory_limit(MemoryLimit::Unlimited);
    let mut decoder = options.read_info(bytes).map_err(damaged)?;
    let width = usize::from(decoder.width());
    let height = usize::from(decoder.height());
    let frame = decoder.next_frame_info().map_err(damaged)?.ok_or("a GIF without an image")?;
    let [left, top, columns, rows] = [frame.left, frame.top, frame.width, frame.height].map(usize::from);
    // Pillow leaves what the frame does not cover to the transparent colour, and otherwise to the first one.
    let background = frame.transparent.unwrap_or(0);
    let own = frame.palette.clone();
    // A frame that lies partly outside makes the canvas larger.
    let (width, height) = (width.max(left + columns), height.max(top + rows));
    check_dimensions(columns, rows, bytes.len(), DENSEST)?;
    check_dimensions(width, height, bytes.len(), DENSEST)?;
    let palette = own.as_deref().or(decoder.global_palette()).ok_or("a GIF without colours")?;
    let (entries, _) = palette.as_chunks::<3>();
    // Pillow drops a palette whose entries are their own numbers.
    let is_gray = entries.iter().zip(0..=u8::MAX).all(|(&entry, gray)| entry == [gray; 3]);
    let mode = convertible(if is_gray { "L (grayscale)" } else { "P (palette)" }, convert_rgb)?;
    let mut colors = [[0; 3]; 256];
    if is_gray {
        colors = std::array::from_fn(|gray| [gray as u8; 3]);
    } else {
        colors.iter_mut().zip(entries).for_each(|(color, entry)| *color = *entry);
    }
    let mut indices = Vec::new();
    reserve(&mut indices, columns * rows)?;
    indices.resize(columns * rows, 0);
    decoder.read_into_buffer(&mut indices).map_err(damaged)?;
    let (pixels, _) = image.reshape(width, height)?.as_chunks_mut::<3>();
    if (columns, rows) != (width, height) {
        pixels.fill(colors[usize::from(background)]);
    }
    for (line, indices) in pixels.chunks_exact_mut(width).skip(top).zip(indices.chunks_exact(columns)) {
        for (pixel, &index) in line[left..].iter_mut().zip(indices) {
            *pixel = colors[usize::from(index)];
        }
    }
    Ok(mode)
}
