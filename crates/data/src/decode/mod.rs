//! Decodes files to RGB pixels, with the same result as Pillow. A file's content decides its format, not its name.
//!
//! JPEG pictures differ from Pillow's by at most a few levels (photographs: 0.013 on average, 3 at most). libjpeg
//! smooths colours less if they are stored at half the resolution and the picture has fewer than five columns. The pixels
//! of all other formats are the same.
//!
//! Orientation tags are ignored, as by torchvision's loaders, unless [`ReadOptions`] asks for them. Nothing here panics on a damaged file: even a panic of a
//! decoder becomes an error that names the file.

mod bmp;
mod gif;
mod jpeg;
mod orientation;
mod png;
mod webp;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use enmasse_files::read_regular;

use crate::{DataError, Picture};

/// Limit of a picture's pixels (beyond it Pillow warns of a "decompression bomb").
const MAX_PIXELS: usize = 89_478_485;

/// Limit of a picture file's bytes.
const MAX_FILE_BYTES: u64 = 512 << 20;

/// How picture files become RGB pixels. The default refuses pictures that are not RGB, and takes them as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Whether pictures that are not RGB are converted as by Pillow's `convert("RGB")`; otherwise they are errors.
    pub convert_rgb: bool,
    /// Whether pictures are turned and mirrored by their EXIF orientation, as by Pillow's `ImageOps.exif_transpose`.
    pub exif_transpose: bool,
}

/// Reads and decodes one picture file. See [`decode`].
pub fn open(path: impl AsRef<Path>, options: ReadOptions) -> Result<Picture, DataError> {
    let mut picture = Picture::default();
    read_file(path.as_ref(), options, &mut picture)?;
    Ok(picture)
}

/// [`open`] into a picture whose memory is reused.
pub(crate) fn read_file(path: &Path, options: ReadOptions, picture: &mut Picture) -> Result<(), DataError> {
    let bytes = read_regular(path, MAX_FILE_BYTES).map_err(|source| DataError::read(path, source))?;
    decode_checked(&bytes, options, picture).map_err(|fault| match fault {
        Fault::Picture(problem) => DataError::picture(path.display().to_string(), problem),
        Fault::Memory(source) => DataError::read(path, source),
    })
}

/// The reasons why a picture cannot be decoded.
enum Fault {
    /// The picture is at fault; the text does not name its file.
    Picture(String),
    /// There is no memory for it here and now.
    Memory(io::Error),
}

impl From<String> for Fault {
    fn from(problem: String) -> Self {
        // Decoders end some of their messages with a line break.
        Fault::Picture(problem.split_whitespace().collect::<Vec<_>>().join(" "))
    }
}

impl From<&str> for Fault {
    fn from(problem: &str) -> Self {
        Fault::Picture(problem.to_owned())
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Fault::Memory(error)
    }
}

/// Decodes the bytes of a JPEG, PNG, WebP, BMP or GIF file to RGB; of an animation the first frame.
///
/// A picture that is not RGB (grayscale, CMYK, palette, alpha) is an error with Pillow's name of its mode, unless
/// [`ReadOptions::convert_rgb`] asks to convert it. The error is a sentence without the file's name.
///
/// Decoding P pixels takes 3 P bytes for the picture and, while it lasts, at most 6 P for the coefficients of a progressive
/// JPEG (12 P with CMYK's inks), 4 P for the samples of a PNG that is converted, 1 P for the numbers of a GIF's or BMP's
/// colours, 3 P to turn it, and for a WebP its file again with 4 P, or 7 P for an animation; P is at most 89,478,485.
pub fn decode(bytes: &[u8], options: ReadOptions, picture: &mut Picture) -> Result<(), String> {
    decode_checked(bytes, options, picture).map_err(|fault| match fault {
        Fault::Picture(problem) => problem,
        Fault::Memory(error) => error.to_string(),
    })
}

fn decode_checked(bytes: &[u8], options: ReadOptions, picture: &mut Picture) -> Result<(), Fault> {
    let decoder = match bytes {
        [] => return Err("the file is empty".into()),
        [0xFF, 0xD8, ..] => jpeg::decode,
        [0x89, b'P', b'N', b'G', ..] => png::decode,
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => webp::decode,
        [b'G', b'I', b'F', b'8', ..] => gif::decode,
        [b'B', b'M', ..] => bmp::decode,
        _ => return Err(format!("not a JPEG, PNG, WebP, BMP or GIF picture{}", seems(bytes)).into()),
    };
    let result = catch_unwind(AssertUnwindSafe(|| decoder(bytes, options.convert_rgb, picture)));
    result.unwrap_or_else(|_| Err("the picture is damaged (its decoder panicked)".into()))?;
    if options.exif_transpose {
        orientation::transpose(picture, orientation::orientation(bytes))?;
    }
    Ok(())
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

/// The error for a picture of another mode.
fn not_rgb(mode: &str) -> Fault {
    Fault::Picture(format!("not an RGB picture but of mode {mode}; convert it, or pass --convert-rgb"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some messages of the decoder of JPEG ended with an empty line.
    #[test]
    fn a_problem_is_one_line() {
        let check = |bytes: &[u8], expected: &str| {
            assert_eq!(decode(bytes, ReadOptions::default(), &mut Picture::default()).unwrap_err(), expected);
        };
        let cut = "a damaged or truncated JPEG: I/O errors Not enough bytes, expected";
        check(&[0xFF, 0xD8], &format!("{cut} 1 but found 0"));
        check(&[0xFF, 0xD8, 0xFF, 0xE0, 0], &format!("{cut} 2 but found 1"));
    }
}
