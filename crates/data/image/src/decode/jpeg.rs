//! JPEG: only what is wanted is decoded, unless the file is damaged.

use enmasse_jpeg::{Color, Error, Jpeg, Region, Scale};
use enmasse_system::files::no_memory;

use super::orientation::{Orientation, transpose};
use super::{Fault, Mode, ReadOptions, check_dimensions, convertible};
use crate::{ImageRegion, RegionRequest};

/// A block of 64 pixels takes at least one bit.
const DENSEST: usize = 8 * 64;

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match error {
            Error::Memory(bytes) => no_memory(bytes).into(),
            Error::Unsupported(_) => format!("a JPEG that is not read: {error}").into(),
            Error::Damaged(_) | Error::Truncated => format!("a damaged or truncated JPEG: {error}").into(),
        }
    }
}

/// Decodes to `view` what is `wanted` of the image as `turn` shows it.
pub(super) fn decode(
    bytes: &[u8],
    options: ReadOptions,
    turn: Orientation,
    wanted: &dyn Fn(usize, usize) -> RegionRequest,
    view: &mut ImageRegion,
) -> Result<Mode, Fault> {
    let jpeg = Jpeg::parse(bytes)?;
    check_dimensions(jpeg.width(), jpeg.height(), bytes.len(), DENSEST)?;
    let mode = match jpeg.color() {
        Color::Gray => "L (grayscale)",
        Color::YCbCr | Color::Rgb => "RGB",
        Color::Cmyk | Color::Ycck => "CMYK",
    };
    let mode = convertible(mode, options.convert_rgb)?;
    let (width, height) = turn.shown(jpeg.width(), jpeg.height());
    let RegionRequest { part, shrink } = wanted(width, height);
    // A side that is flipped would begin with the square that is not whole.
    let may_shrink = options.fast && turn == Orientation::default();
    let scale = Scale::ALL.into_iter().find(|scale| may_shrink && scale.denominator() == shrink).unwrap_or_default();
    let shrink = scale.denominator();
    let (left, top) = (part.left / shrink, part.top / shrink);
    let right = (part.left + part.width).div_ceil(shrink);
    let bottom = (part.top + part.height).div_ceil(shrink);
    let shown = Region { left, top, width: right - left, height: bottom - top };
    let stored = turn.stored(shown, width, height);
    let pixels = view.image.reshape(stored.width, stored.height)?;
    view.decoder.decode(&jpeg, stored, scale, pixels)?;
    transpose(&mut view.image, turn)?;
    (view.width, view.height, view.left, view.top, view.shrink) = (width, height, left, top, shrink);
    Ok(mode)
}
