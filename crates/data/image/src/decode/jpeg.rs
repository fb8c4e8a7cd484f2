//! JPEG: our own decoder where it can, which decodes only what is wanted; otherwise another one, which decodes all.
//!
//! The other one takes CMYK images and what damage leaves. So every file that was readable before there was a decoder
//! of our own still is.

use std::io;

use enmasse_jpeg::{Color, Decoder, Jpeg, Region, Scale};
use enmasse_system::files::{no_memory, require, reserve};
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::orientation::{Orientation, transpose};
use super::{Fault, Mode, ReadOptions, check_dimensions, convertible};
use crate::{Image, ImageRegion, RegionRequest};

/// A block of 64 pixels takes at least one bit.
const DENSEST: usize = 8 * 64;

/// Decodes to `view` what is `wanted` of the image as `turn` shows it.
pub(super) fn decode(
    bytes: &[u8],
    options: ReadOptions,
    turn: Orientation,
    wanted: &dyn Fn(usize, usize) -> RegionRequest,
    view: &mut ImageRegion,
) -> Result<Mode, Fault> {
    if let Ok(jpeg) = Jpeg::parse(bytes)
        && jpeg.color() != Color::Cmyk
    {
        check_dimensions(jpeg.width(), jpeg.height(), bytes.len(), DENSEST)?;
        let mode = if jpeg.color() == Color::Gray { "L (grayscale)" } else { "RGB" };
        let mode = convertible(mode, options.convert_rgb)?;
        if decode_part(&jpeg, options, turn, wanted, view)? {
            return Ok(mode);
        }
    }
    let mut mode = None;
    view.whole(|image| {
        mode = decode_whole(bytes, options.convert_rgb, image)?;
        Ok::<(), Fault>(transpose(image, turn)?)
    })?;
    Ok(mode)
}

/// The same by our own decoder. Returns whether it can.
fn decode_part(
    jpeg: &Jpeg,
    options: ReadOptions,
    turn: Orientation,
    wanted: &dyn Fn(usize, usize) -> RegionRequest,
    view: &mut ImageRegion,
) -> Result<bool, Fault> {
    let (width, height) = turn.shown(jpeg.width(), jpeg.height());
    let RegionRequest { part, shrink } = wanted(width, height);
    // A side that is flipped would begin with the square that is not whole.
    let may_shrink = options.fast && turn == Orientation::default();
    let scale = Scale::ALL.into_iter().find(|scale| may_shrink && scale.denominator() == shrink).unwrap_or_default();
    let shrink = scale.denominator();
    let (left, top) = (part.left / shrink, part.top / shrink);
    let (right, bottom) = ((part.left + part.width).div_ceil(shrink), (part.top + part.height).div_ceil(shrink));
    let shown = Region { left, top, width: right - left, height: bottom - top };
    let stored = turn.stored(shown, width, height);
    let pixels = view.image.reshape(stored.width, stored.height)?;
    match view.decoder.decode(jpeg, stored, scale, pixels) {
        Ok(()) => {}
        Err(enmasse_jpeg::Error::Memory(bytes)) => return Err(no_memory(bytes).into()),
        Err(_) => {
            // Room for what the other decoder takes.
            view.decoder = Decoder::new();
            return Ok(false);
        }
    }
    transpose(&mut view.image, turn)?;
    (view.width, view.height, view.left, view.top, view.shrink) = (width, height, left, top, shrink);
    Ok(true)
}

/// Decodes a whole image by the other decoder.
fn decode_whole(bytes: &[u8], convert_rgb: bool, image: &mut Image) -> Result<Mode, Fault> {
    match decode_with(bytes, true, convert_rgb, image) {
        // Cameras leave stray bytes between headers, which libjpeg skips with a warning. The lenient decoder skips them
        // too, but would also fill up a truncated image, so the end marker is required.
        Err(Failure::Decoder(DecodeErrors::FormatStatic(text))) if text.contains("Extra bytes between headers") => {
            if !ends(bytes) {
                return Err("a damaged or truncated JPEG: no end marker".into());
            }
            decode_with(bytes, false, convert_rgb, image)
        }
        result => result,
    }
    .map_err(|failure| match failure {
        Failure::Decoder(error) => format!("a damaged or truncated JPEG: {error}").into(),
        Failure::Refused(fault) => fault,
    })
}

enum Failure {
    Decoder(DecodeErrors),
    Refused(Fault),
}

impl From<DecodeErrors> for Failure {
    fn from(error: DecodeErrors) -> Self {
        Failure::Decoder(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Refused(error.into())
    }
}

fn decode_with(bytes: &[u8], strict: bool, convert_rgb: bool, image: &mut Image) -> Result<Mode, Failure> {
    let options = DecoderOptions::default()
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .set_strict_mode(strict)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers()?;
    let (Some(info), Some(space)) = (decoder.info(), decoder.input_colorspace()) else {
        return Err(Failure::Refused("a JPEG without an image".into()));
    };
    let refused = |problem: String| Failure::Refused(problem.into());
    let (width, height) = (usize::from(info.width), usize::from(info.height));
    check_dimensions(width, height, bytes.len(), DENSEST).map_err(refused)?;
    let mode = match info.components {
        1 => "L (grayscale)",
        3 => "RGB",
        4 => "CMYK",
        _ => return Err(refused(format!("a JPEG of {} components", info.components))),
    };
    let mode = convertible(mode, convert_rgb).map_err(Failure::Refused)?;
    // The decoder takes them without asking, unless all components are in one scan, where a row is enough.
    require(coefficient_bytes(width, height, usize::from(info.components)))?;
    if space == ColorSpace::CMYK && info.components == 4 {
        decoder.set_options(options.jpeg_set_out_colorspace(ColorSpace::CMYK));
        let mut cmyk = Vec::new();
        reserve(&mut cmyk, width * height * 4)?;
        cmyk.resize(width * height * 4, 0);
        decoder.decode_into(&mut cmyk)?;
        cmyk_to_rgb(&cmyk, has_adobe_marker(bytes), image.reshape(width, height)?);
        return Ok(mode);
    }
    decoder.decode_into(image.reshape(width, height)?)?;
    Ok(mode)
}

/// Bytes of an image's coefficients: two each, in blocks that four of a component may share along each side.
fn coefficient_bytes(width: usize, height: usize, components: usize) -> usize {
    const EDGE: usize = 8 * 4;
    width.next_multiple_of(EDGE) * height.next_multiple_of(EDGE) * components * 2
}

/// Like Pillow's conversion. Files with Adobe's marker store the inks inverted.
fn cmyk_to_rgb(cmyk: &[u8], inverted: bool, rgb: &mut [u8]) {
    let (pixels, _) = rgb.as_chunks_mut::<3>();
    let (cmyk, _) = cmyk.as_chunks::<4>();
    let paper = |ink: u8| if inverted { ink } else { 255 - ink };
    for (pixel, &[c, m, y, k]) in pixels.iter_mut().zip(cmyk) {
        let light = paper(k);
        *pixel = [c, m, y].map(|ink| light - divided_by_255(255 - paper(ink), light));
    }
}

/// a · b / 255, rounded.
fn divided_by_255(a: u8, b: u8) -> u8 {
    let product = u32::from(a) * u32::from(b) + 128;
    (((product >> 8) + product) >> 8) as u8
}

fn has_adobe_marker(bytes: &[u8]) -> bool {
    bytes.windows(9).any(|w| w[..2] == [0xFF, 0xEE] && w[4..] == *b"Adobe")
}

/// Whether an end marker follows the start of the last scan. Inside a scan, 0xFF is always followed by 0 or a restart
/// marker.
fn ends(bytes: &[u8]) -> bool {
    let last = |marker: u8| bytes.windows(2).rposition(|w| w == [0xFF, marker]);
    last(0xD9) > last(0xDA)
}
