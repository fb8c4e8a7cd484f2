//! JPEG for training: parts of images, at full size or scaled, with the bits of libjpeg-turbo.
//!
//! [`Jpeg::parse`] reads a header. [`Decoder::decode`] decodes any [`Region`] of the image at any [`Scale`] to RGB. What lies
//! outside the region is skipped as far as the format allows, and rows below it are not looked at. The pixels are those that
//! libjpeg-turbo gives by default (`JDCT_ISLOW`, fancy upsampling), as Pillow and torchvision use it; scaled ones are those of
//! its `scale_denom`, as Pillow's `draft` uses it.
//!
//! Sequential and progressive Huffman coding with 8 bits are supported, for grey, three components and CMYK, of any sampling
//! that libjpeg supports. Inks become colours as by Pillow's `convert("RGB")`. Where libjpeg warns of damage and goes on, the
//! pixels are its own as well. What it refuses is an [`Error`], and so is an image that is cut off. Nothing panics, and memory is
//! bounded by the header's dimensions.
//!
//! Use it where a part of many large photographs is needed, as training's random crops are.
//!
//! ```
//! use enmasse_jpeg::{Decoder, Jpeg, Region, Scale};
//! # let mut bytes = Vec::new();
//! # jpeg_encoder::Encoder::new(&mut bytes, 90).encode(&[128; 64 * 48 * 3], 64, 48, jpeg_encoder::ColorType::Rgb)?;
//! let jpeg = Jpeg::parse(&bytes)?;
//! let region = Region { left: 10, top: 20, width: 16, height: 8 };
//! let mut pixels = vec![0; region.width * region.height * 3];
//! Decoder::default().decode(&jpeg, region, Scale::Full, &mut pixels)?;
//! # assert!(pixels.iter().all(|pixel| pixel.abs_diff(128) < 3));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bits;
mod block;
mod buffer;
mod coefficients;
mod decoder;
mod error;
mod header;
mod huffman;
mod known;
mod layout;
mod progressive;
mod rows;
mod scan;
mod segments;
mod sequential;
mod standard_codes;
mod symbol;
mod tables;
mod tolerant;
mod transform;

pub use decoder::Decoder;
pub use error::Error;
pub use header::{Color, Jpeg};

/// A rectangle of pixels of an image at a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Columns to its left.
    pub left: usize,
    /// Rows above it.
    pub top: usize,
    /// Number of columns.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
}

impl Region {
    /// Whether it has pixels and lies inside an image of `width` × `height`.
    fn fits(&self, width: usize, height: usize) -> bool {
        let inside = |start: usize, length: usize, all: usize| length > 0 && length <= all && start <= all - length;
        inside(self.left, self.width, width) && inside(self.top, self.height, height)
    }
}

/// The size at which an image is decoded. A smaller one takes less time, because the inverse transforms are shorter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// As stored.
    #[default]
    Full,
    /// A pixel for each two by two.
    Half,
    /// A pixel for each four by four.
    Quarter,
    /// A pixel for each block of eight by eight.
    Eighth,
}

impl Scale {
    /// All of them, the largest first.
    pub const ALL: [Scale; 4] = [Scale::Full, Scale::Half, Scale::Quarter, Scale::Eighth];

    /// Pixels of the image along the edge of one of these.
    pub fn denominator(self) -> usize {
        8 / self.edge()
    }

    /// Pixels along the edge of a block.
    pub(crate) fn edge(self) -> usize {
        match self {
            Scale::Full => 8,
            Scale::Half => 4,
            Scale::Quarter => 2,
            Scale::Eighth => 1,
        }
    }
}
