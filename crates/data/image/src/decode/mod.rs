//! Decodes files to RGB pixels, with the same result as Pillow. A file's content decides its format, not its name.
//!
//! Orientation tags are ignored, as by torchvision's loaders, unless [`ReadOptions`] asks for them. Nothing here panics on a
//! damaged file: even a panic of a decoder becomes an error that names the file.

mod bmp;
mod format;
mod gif;
mod jpeg;
mod orientation;
mod png;
mod webp;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use enmasse_system::files::read_regular;

pub use format::ImageFormat;

use crate::{Image, ImageError, ImageRegion, RegionRequest};
use orientation::Orientation;

/// Limit of an image's pixels (beyond it Pillow warns of a "decompression bomb").
const MAX_PIXELS: usize = 89_478_485;

/// Limit of an image file's bytes.
pub const MAX_FILE_BYTES: u64 = 512 << 20;

/// How image files become RGB pixels. The default converts images that are not RGB, as torchvision's loader does, and takes
/// them as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// Whether images that are not RGB are converted as by Pillow's `convert("RGB")`; otherwise they are errors.
    pub convert_rgb: bool,
    /// Whether images are turned and flipped by their EXIF orientation, as by Pillow's `ImageOps.exif_transpose`.
    pub exif_transpose: bool,
    /// Whether JPEG images are decoded at a smaller size where that would do ([`RegionRequest::shrink`]), instead of at full size.
    pub fast: bool,
}

impl Default for ReadOptions {
    fn default() -> Self {
        ReadOptions { convert_rgb: true, exif_transpose: false, fast: false }
    }
}

/// Pillow's name of the mode of an image that is not RGB.
type Mode = Option<&'static str>;

/// Reads and decodes one image file. See [`decode`].
///
/// # Errors
/// [`ImageError::Read`] if the file cannot be read, is no regular file, or there is no memory for its pixels;
/// [`ImageError::Image`] if it is no image that [`decode`] takes.
pub fn open(path: impl AsRef<Path>, options: ReadOptions) -> Result<Image, ImageError> {
    let mut view = ImageRegion::default();
    read_part(path.as_ref(), options, &RegionRequest::whole, &mut view)?;
    Ok(view.image)
}

/// [`open`] for an image file that lies in memory. `name` is for error messages.
///
/// # Errors
/// Those of [`open`].
pub fn open_bytes(bytes: &[u8], name: impl FnOnce() -> String, options: ReadOptions) -> Result<Image, ImageError> {
    let mut view = ImageRegion::default();
    read_part_of(bytes, name, options, &RegionRequest::whole, &mut view)?;
    Ok(view.image)
}

/// [`open`] for what is `wanted` of an image with this width and height. Only JPEG files are decoded in part.
///
/// # Errors
/// Those of [`open`]. The content of `view` is undefined then.
pub fn read_part(
    path: &Path,
    options: ReadOptions,
    wanted: &dyn Fn(usize, usize) -> RegionRequest,
    view: &mut ImageRegion,
) -> Result<(), ImageError> {
    let bytes = read_regular(path, MAX_FILE_BYTES).map_err(|source| ImageError::read(path, source))?;
    read_part_of(&bytes, || path.display().to_string(), options, wanted, view)
}

/// [`read_part`] of an image file that lies in memory. `name` is for error messages.
///
/// # Errors
/// Those of [`open`]. The content of `view` is undefined then.
pub fn read_part_of(
    bytes: &[u8],
    name: impl FnOnce() -> String,
    options: ReadOptions,
    wanted: &dyn Fn(usize, usize) -> RegionRequest,
    view: &mut ImageRegion,
) -> Result<(), ImageError> {
    decode_checked(bytes, options, wanted, view).map_err(|fault| match fault {
        Fault::Image(problem) => ImageError::image(name(), problem),
        Fault::Memory(source) => ImageError::read(name(), source),
    })
}

/// The reasons why an image cannot be decoded.
enum Fault {
    /// The image is at fault; the text does not name its file.
    Image(String),
    /// There is no memory for it here and now.
    Memory(io::Error),
}

impl From<String> for Fault {
    fn from(problem: String) -> Self {
        // Decoders end some of their messages with a line break.
        Fault::Image(problem.split_whitespace().collect::<Vec<_>>().join(" "))
    }
}

impl From<&str> for Fault {
    fn from(problem: &str) -> Self {
        Fault::Image(problem.to_owned())
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Fault::Memory(error)
    }
}

/// Decodes the bytes of a JPEG, PNG, WebP, BMP or GIF file to RGB; of an animation the first frame.
///
/// An image that is not RGB (grayscale, CMYK, palette, alpha) is converted.
///
/// Decoding P pixels takes 3 P bytes for the image and, while it lasts, at most 6 P for the coefficients of a JPEG of several
/// scans (8 P with CMYK's inks), 4 P for the samples of a PNG that is converted, 1 P for the numbers of a GIF's or BMP's
/// colours, 3 P to turn it, and for a WebP its file again with 4 P, or 7 P for an animation; P is at most 89,478,485. For a JPEG's
/// coefficients each side of the image counts as a multiple of 32.
///
/// # Errors
/// A sentence without the file's name: the bytes are damaged or of another format, the image is too large, or there is
/// no memory for it. Without [`ReadOptions::convert_rgb`] also if it is not RGB, with Pillow's name of its mode.
pub fn decode(bytes: &[u8], options: ReadOptions, image: &mut Image) -> Result<(), String> {
    let mut view = ImageRegion::default();
    std::mem::swap(&mut view.image, image);
    let result = decode_checked(bytes, options, &RegionRequest::whole, &mut view);
    *image = view.image;
    result.map_err(|fault| match fault {
        Fault::Image(problem) => problem,
        Fault::Memory(error) => error.to_string(),
    })
}

fn decode_checked(
    bytes: &[u8],
    options: ReadOptions,
    wanted: &dyn Fn(usize, usize) -> RegionRequest,
    view: &mut ImageRegion,
) -> Result<(), Fault> {
    let turn = if options.exif_transpose { orientation::orientation(bytes) } else { Orientation::default() };
    let format = ImageFormat::of(bytes).ok_or_else(|| unknown(bytes))?;
    let result = catch_unwind(AssertUnwindSafe(|| {
        let decode = match format {
            ImageFormat::Jpeg => return jpeg::decode(bytes, options, turn, wanted, view),
            ImageFormat::Png => png::decode,
            ImageFormat::WebP => webp::decode,
            ImageFormat::Bmp => bmp::decode,
            ImageFormat::Gif => gif::decode,
        };
        let mut mode = None;
        view.whole(|image| {
            mode = decode(bytes, options.convert_rgb, image)?;
            Ok::<(), Fault>(orientation::transpose(image, turn)?)
        })?;
        Ok(mode)
    }));
    view.mode = result.unwrap_or_else(|_| Err("the image is damaged (its decoder panicked)".into()))?;
    Ok(())
}

/// The error for what is no image, or of a format that is not read.
fn unknown(bytes: &[u8]) -> Fault {
    match bytes {
        [] => "the file is empty".into(),
        _ => format!("not a JPEG, PNG, WebP, BMP or GIF image{}", seems(bytes)).into(),
    }
}

/// The apparent format of a file that cannot be read.
fn seems(bytes: &[u8]) -> &'static str {
    match bytes {
        [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => ", but a TIFF",
        [b'P', b'1'..=b'6', space, ..] if space.is_ascii_whitespace() => ", but a PPM",
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => ", but an AVIF or HEIC",
        _ if bytes.iter().take(512).all(|b| b.is_ascii_graphic() || b.is_ascii_whitespace()) => ", but text",
        _ => "",
    }
}

/// Refuses unreasonable dimensions: too many pixels, or more than `bytes` of a file can hold in a format that has at most
/// `densest` pixels per byte. So a short file cannot make a loader take much memory.
fn check_dimensions(width: usize, height: usize, bytes: usize, densest: usize) -> Result<(), String> {
    match width.saturating_mul(height) {
        0 => Err(format!("its dimensions are {width}x{height}")),
        pixels if pixels > MAX_PIXELS => {
            Err(format!("its dimensions of {width}x{height} exceed the limit of {MAX_PIXELS} pixels"))
        }
        pixels if pixels / densest > bytes => {
            Err(format!("truncated: {bytes} bytes cannot hold {width}x{height} pixels"))
        }
        _ => Ok(()),
    }
}

/// The mode of an image that is not RGB, if it may be converted.
fn convertible(mode: &'static str, convert_rgb: bool) -> Result<Mode, Fault> {
    match (mode, convert_rgb) {
        ("RGB", _) => Ok(None),
        (_, true) => Ok(Some(mode)),
        (_, false) => {
            let problem =
                format!("not an RGB image but of mode {mode}; convert it, or leave out `convert_rgb = false`");
            Err(Fault::Image(problem))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some messages of the decoder of JPEG ended with an empty line.
    #[test]
    fn a_problem_is_one_line() {
        let check = |bytes: &[u8], expected: &str| {
            assert_eq!(decode(bytes, ReadOptions::default(), &mut Image::default()).unwrap_err(), expected);
        };
        let cut = "a damaged or truncated JPEG: the data end before the image";
        check(&[0xFF, 0xD8], cut);
        check(&[0xFF, 0xD8, 0xFF, 0xE0, 0], cut);
    }
}
