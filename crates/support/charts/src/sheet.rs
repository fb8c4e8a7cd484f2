//! A sheet of labelled images: the model's input, before normalising.

use crate::ChartError;
use crate::page::{Label, MARGIN, Page, TEXT, TOP};

/// Gap between images, in pixels.
const GAP: f64 = 12.0;
/// Space for a label below its image.
const LABEL: f64 = 22.0;
/// Images whose longest side is shorter are enlarged by a whole factor up to about this size. Those whose longest side
/// exceeds `MAX` keep their pixels, and are shown smaller.
const MIN: f64 = 128.0;
const MAX: f64 = 256.0;

/// An image and the name of its class.
#[derive(Clone, Copy, Debug)]
pub struct LabelledImage<'a> {
    /// Pixels per row.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
    /// RGB bytes, row by row: `width * height * 3` of them.
    pub pixels: &'a [u8],
    /// Shown below the image.
    pub label: &'a str,
}

/// An SVG of `images` in a grid, row by row, each with its label below. The images are embedded as PNG, all at the
/// scale of the largest one.
///
/// # Errors
/// There are no images, or the number of bytes of one does not match its dimensions.
pub fn image_sheet(title: &str, images: &[LabelledImage]) -> Result<String, ChartError> {
    let longest = |side: fn(&LabelledImage) -> usize| images.iter().map(side).max().ok_or(ChartError::NoImages);
    let widest = longest(|image| image.width)?;
    let tallest = longest(|image| image.height)?;
    let scale = scale_of(widest.max(tallest) as f64);
    let cell_width = widest as f64 * scale + GAP;
    let cell_height = tallest as f64 * scale + LABEL + GAP;

    let columns = (images.len() as f64).sqrt().ceil() as usize;
    let rows = images.len().div_ceil(columns);
    let width = columns as f64 * cell_width - GAP + 2.0 * MARGIN;
    let mut page = Page::new(title, width, TOP + rows as f64 * cell_height - GAP + MARGIN);
    // A page may be wider than a few small images.
    let left = MARGIN.max((page.width() - width) / 2.0 + MARGIN);
    for (index, image) in images.iter().enumerate() {
        let x = left + (index % columns) as f64 * cell_width;
        let y = TOP + (index / columns) as f64 * cell_height;
        let png = encode(index, image, scale.max(1.0) as usize)?;
        let shown_width = image.width as f64 * scale;
        let shown_height = image.height as f64 * scale;
        let middle = x + (cell_width - GAP) / 2.0;
        let start = middle - shown_width / 2.0;
        // A frame, so that white images have visible edges.
        page.bar(start - 1.0, y - 1.0, shown_width + 2.0, shown_height + 2.0, "frame");
        page.image(start, y, shown_width, shown_height, &png);
        let label = Label::at(middle, y + shown_height + TEXT + 3.0);
        page.text(Label { anchor: "middle", room: cell_width - 4.0, ..label }, image.label);
    }
    Ok(page.end())
}

/// A PNG of an RGB image, of `width * height * 3` bytes.
///
/// # Errors
/// There is another number of bytes, or there are no pixels.
pub fn png(width: usize, height: usize, pixels: &[u8]) -> Result<Vec<u8>, ChartError> {
    encode(0, &LabelledImage { width, height, pixels, label: "" }, 1)
}

/// Page pixels per pixel of an image whose longest side is `longest`.
fn scale_of(longest: f64) -> f64 {
    if longest > MAX { MAX / longest } else { (MIN / longest.max(1.0)).floor().max(1.0) }
}

/// An image as PNG, enlarged here by `factor`, because some viewers smooth the images that they enlarge.
fn encode(index: usize, image: &LabelledImage, factor: usize) -> Result<Vec<u8>, ChartError> {
    check(index, image)?;
    let &LabelledImage { width, height, pixels, label } = image;
    let wrong = || wrong(index, image);
    let side = |pixels: usize| u32::try_from(pixels * factor).map_err(|_| wrong());
    let failed = |source| ChartError::Png { index, label: label.to_string(), source };
    write_png(side(width)?, side(height)?, &enlarge(pixels, width, factor)).map_err(failed)
}

/// Fails if the number of an image's bytes does not match its dimensions.
pub(crate) fn check(index: usize, image: &LabelledImage) -> Result<(), ChartError> {
    let &LabelledImage { width, height, pixels, .. } = image;
    let expected = width.checked_mul(height).and_then(|pixels| pixels.checked_mul(3)).filter(|&bytes| bytes > 0);
    if expected == Some(pixels.len()) { Ok(()) } else { Err(wrong(index, image)) }
}

fn wrong(index: usize, image: &LabelledImage) -> ChartError {
    let &LabelledImage { width, height, pixels, label } = image;
    ChartError::Pixels { index, label: label.to_string(), width, height, bytes: pixels.len() }
}

/// RGB pixels as a PNG file.
pub(crate) fn write_png(width: u32, height: u32, pixels: &[u8]) -> Result<Vec<u8>, png::EncodingError> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(file)
}

/// RGB rows of `width` pixels with each pixel, and each row, repeated `factor` times.
pub(crate) fn enlarge(pixels: &[u8], width: usize, factor: usize) -> Vec<u8> {
    let wide = |row: &[u8]| row.chunks_exact(3).flat_map(|pixel| pixel.repeat(factor)).collect::<Vec<_>>();
    pixels.chunks_exact(width * 3).flat_map(|row| wide(row).repeat(factor)).collect()
}
