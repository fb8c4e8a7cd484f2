//! What a file says before its first scan: dimensions, components, tables (ITU-T T.81, annex B).

use crate::segments::{Segments, be16};
use crate::tables::Tables;
use crate::{Error, Scale};

/// Most components of a frame that is read.
pub(crate) const MAX_COMPONENTS: usize = 4;

/// How an image's components stand for colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Color {
    /// One component.
    Gray,
    /// Brightness and two differences of colour, by JFIF's formulas.
    YCbCr,
    /// Red, green and blue.
    Rgb,
    /// Cyan, magenta, yellow and black, each less than 255.
    Cmyk,
    /// The same with the first three as brightness and two differences of colour.
    Ycck,
}

/// One component of a frame.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Component {
    pub id: u8,
    /// Blocks of an MCU along a row and a column.
    pub across: usize,
    pub down: usize,
    /// Number of its quantization table.
    pub quantization: usize,
}

/// A JPEG whose header has been read. Nothing of its pixels has been looked at.
///
/// ```
/// # let mut bytes = Vec::new();
/// # jpeg_encoder::Encoder::new(&mut bytes, 90).encode(&[128; 16 * 8 * 3], 16, 8, jpeg_encoder::ColorType::Rgb).unwrap();
/// use enmasse_jpeg::{Decoder, Jpeg, Region, Scale};
/// let jpeg = Jpeg::parse(&bytes)?;
/// let (width, height) = jpeg.scaled(Scale::Half);
/// assert_eq!((width, height), (8, 4));
/// let mut pixels = vec![0; 3 * 2 * 3];
/// Decoder::new().decode(&jpeg, Region { left: 5, top: 1, width: 3, height: 2 }, Scale::Half, &mut pixels)?;
/// # Ok::<(), enmasse_jpeg::Error>(())
/// ```
#[derive(Debug)]
pub struct Jpeg<'a> {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) color: Color,
    pub(crate) progressive: bool,
    pub(crate) components: [Component; MAX_COMPONENTS],
    pub(crate) count: usize,
    /// The tables before the first scan.
    pub(crate) tables: Tables<'a>,
    /// The segments from the first scan on.
    pub(crate) scans: Segments<'a>,
}

impl<'a> Jpeg<'a> {
    /// Reads the segments before the first scan.
    ///
    /// # Errors
    /// [`Error::Damaged`] or [`Error::Truncated`] if they contradict the standard or end early, [`Error::Unsupported`]
    /// for a process that this decoder lacks.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let mut segments = Segments::new(bytes)?;
        let mut tables = Tables::default();
        let mut frame: Option<Frame> = None;
        let mut hints = Hints::default();
        loop {
            let before = segments;
            let marker = segments.marker()?.ok_or(Error::Damaged("it ends before its first scan"))?;
            let content = segments.content()?;
            match marker {
                0xC0..=0xC2 if frame.is_some() => return Err(Error::Damaged("it has two frames")),
                0xC0..=0xC2 => frame = Some(Frame::parse(marker == 0xC2, content)?),
                0xC3 => return Err(Error::Unsupported("lossless coding")),
                0xC5..=0xC7 => return Err(Error::Unsupported("hierarchical coding")),
                0xC9..=0xCB | 0xCD..=0xCF => return Err(Error::Unsupported("arithmetic coding")),
                0xDA => {
                    let frame = frame.ok_or(Error::Damaged("it has no frame before its first scan"))?;
                    let color = hints.color(&frame);
                    let Frame { width, height, progressive, components, count } = frame;
                    if !progressive {
                        tables.set_standard_codes();
                    }
                    return Ok(Jpeg { width, height, color, progressive, components, count, tables, scans: before });
                }
                0xE0 => hints.is_jfif |= content.len() >= 14 && content.starts_with(b"JFIF\0"),
                0xEE if content.len() >= 12 && content.starts_with(b"Adobe") => hints.adobe = Some(content[11]),
                _ => tables.read(marker, content)?,
            }
        }
    }

    /// Pixels of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Number of rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Width and height at a scale; what is left over makes a pixel.
    pub fn scaled(&self, scale: Scale) -> (usize, usize) {
        let denominator = scale.denominator();
        (self.width.div_ceil(denominator), self.height.div_ceil(denominator))
    }

    /// What its components mean.
    pub fn color(&self) -> Color {
        self.color
    }

    /// Whether its coefficients come in several scans over the whole image, so that decoding must keep them all.
    pub fn progressive(&self) -> bool {
        self.progressive
    }

    pub(crate) fn components(&self) -> &[Component] {
        &self.components[..self.count]
    }
}

struct Frame {
    width: usize,
    height: usize,
    progressive: bool,
    components: [Component; MAX_COMPONENTS],
    count: usize,
}

impl Frame {
    fn parse(progressive: bool, content: &[u8]) -> Result<Self, Error> {
        let [precision, h1, h0, w1, w0, count, listed @ ..] = content else {
            return Err(Error::Damaged("its frame is too short"));
        };
        if *precision != 8 {
            return Err(Error::Unsupported("a precision other than 8 bits"));
        }
        let width = be16(*w1, *w0);
        let height = be16(*h1, *h0);
        let count = usize::from(*count);
        if width == 0 || height == 0 {
            return Err(Error::Unsupported("a frame without dimensions"));
        }
        if !matches!(count, 1 | 3 | 4) {
            return Err(Error::Unsupported("an image of neither one, three nor four components"));
        }
        if listed.len() != 3 * count {
            return Err(Error::Damaged("its frame has a wrong length"));
        }
        let mut components = [Component::default(); MAX_COMPONENTS];
        for (component, entry) in components.iter_mut().zip(listed.as_chunks::<3>().0) {
            let [id, factors, quantization] = *entry;
            let across = usize::from(factors >> 4);
            let down = usize::from(factors & 15);
            if !(1..=4).contains(&across) || !(1..=4).contains(&down) || quantization > 3 {
                return Err(Error::Damaged("a component of its frame is invalid"));
            }
            *component = Component { id, across, down, quantization: usize::from(quantization) };
        }
        let listed = &mut components[..count];
        // The blocks of a single component are not grouped, whatever its factors.
        if let [alone] = listed {
            (alone.across, alone.down) = (1, 1);
        }
        Ok(Frame { width, height, progressive, components, count })
    }
}

/// Application segments that say what the components mean.
#[derive(Default)]
struct Hints {
    is_jfif: bool,
    /// The transform that Adobe's marker names.
    adobe: Option<u8>,
}

impl Hints {
    /// Decides as libjpeg does.
    fn color(&self, frame: &Frame) -> Color {
        let ids = || frame.components[..3].iter().map(|component| component.id);
        match (frame.count, self.adobe) {
            (1, _) => Color::Gray,
            (4, None | Some(0)) => Color::Cmyk,
            (4, Some(_)) => Color::Ycck,
            _ if self.is_jfif => Color::YCbCr,
            (_, Some(0)) => Color::Rgb,
            (_, Some(_)) => Color::YCbCr,
            (_, None) if ids().eq(*b"RGB") => Color::Rgb,
            (_, None) => Color::YCbCr,
        }
    }
}
