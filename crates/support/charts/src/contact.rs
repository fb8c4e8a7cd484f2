//! A contact sheet: each sample beside its augmented versions, as one PNG that every viewer and mail program shows.

use crate::ChartError;
use crate::sheet::{enlarge, write_png};

/// Gap between the images of a group, between groups, and around the sheet, in pixels.
const GAP: usize = 4;
const MARGIN: usize = 16;
/// Width of the frame around a group's first image.
const FRAME: usize = 2;
/// Smaller images are enlarged by a whole factor up to about this size.
const MIN: usize = 96;

const PAPER: [u8; 3] = [0xF4, 0xF4, 0xF2];
/// The blue of the charts' training bars.
const INK: [u8; 3] = [0x44, 0x77, 0xAA];

/// A PNG of groups of square RGB images with edges of `size` pixels. The first image of each group has a frame, and the others
/// follow in its row. Groups are in reading order, in as many columns as make the sheet about as wide as high.
///
/// # Errors
/// There are no images, or an image has another number of bytes.
pub fn contact_sheet(size: usize, groups: &[Vec<Vec<u8>>]) -> Result<Vec<u8>, ChartError> {
    let each = groups.iter().map(Vec::len).max().unwrap_or(0);
    if each == 0 || size == 0 {
        return Err(ChartError::NoImages);
    }
    for (index, image) in groups.iter().flatten().enumerate() {
        if image.len() != size * size * 3 {
            let bytes = image.len();
            return Err(ChartError::Pixels { index, label: String::new(), width: size, height: size, bytes });
        }
    }
    let factor = (MIN / size).max(1);
    let edge = size * factor;
    let group_width = each * (edge + GAP) - GAP;
    let group_height = edge;
    let cell = (group_width + MARGIN, group_height + MARGIN);
    let columns = ((groups.len() * cell.1) as f64 / cell.0 as f64).sqrt().round().max(1.0) as usize;
    let columns = columns.min(groups.len());
    let width = columns * cell.0 + MARGIN;
    let height = groups.len().div_ceil(columns) * cell.1 + MARGIN;
    let mut sheet = PAPER.repeat(width * height);
    let mut put = |left: usize, top: usize, across: usize, rows: &[u8]| {
        for (row, pixels) in rows.chunks_exact(across * 3).enumerate() {
            let start = ((top + row) * width + left) * 3;
            sheet[start..start + pixels.len()].copy_from_slice(pixels);
        }
    };
    for (number, group) in groups.iter().enumerate() {
        let left = MARGIN + number % columns * cell.0;
        let top = MARGIN + number / columns * cell.1;
        let frame = edge + 2 * FRAME;
        put(left - FRAME, top - FRAME, frame, &INK.repeat(frame * frame));
        for (place, image) in group.iter().enumerate() {
            put(left + place * (edge + GAP), top, edge, &enlarge(image, size, factor));
        }
    }
    let failed = |source| ChartError::Png { index: 0, label: "contact sheet".to_owned(), source };
    let side = |pixels: usize| u32::try_from(pixels).unwrap_or(u32::MAX);
    write_png(side(width), side(height), &sheet).map_err(failed)
}
