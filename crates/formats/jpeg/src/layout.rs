//! Where the parts of an image lie: which MCUs a region needs at a scale, and how large their samples are.
//!
//! libjpeg scales by shorter inverse transforms, and gives a component of half the resolution a transform of twice the
//! length if that makes up for it (`jdmaster.c`).

use crate::header::{Jpeg, MAX_COMPONENTS};
use crate::{Error, Region, Scale};

/// How a component's samples become those of the image (`jdsample.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upsampling {
    /// They are the image's.
    None,
    /// Each stands for a rectangle of `across` × `down` pixels.
    Replicate { across: usize, down: usize },
    /// Twice as many columns, each from the two nearest ones.
    Columns,
    /// Twice as many rows, each from the two nearest ones.
    Rows,
    /// Both.
    Both,
}

impl Upsampling {
    /// Pixels of a row and of a column for each sample.
    pub fn factors(self) -> (usize, usize) {
        match self {
            Upsampling::None => (1, 1),
            Upsampling::Replicate { across, down } => (across, down),
            Upsampling::Columns => (2, 1),
            Upsampling::Rows => (1, 2),
            Upsampling::Both => (2, 2),
        }
    }

    /// Whether a row of pixels depends on two rows of samples.
    pub fn mixes_rows(self) -> bool {
        matches!(self, Upsampling::Rows | Upsampling::Both)
    }
}

/// A component's samples at a scale.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plane {
    /// Blocks of an MCU along a row and a column.
    pub across: usize,
    pub down: usize,
    /// Samples along the edge of a block: 8, 4, 2 or 1.
    pub edge: usize,
    /// Samples of the whole image.
    pub width: usize,
    pub height: usize,
    pub upsampling: Upsampling,
}

/// The parts of an image that a region needs.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub planes: [Plane; MAX_COMPONENTS],
    pub count: usize,
    /// MCUs of a row of the image.
    pub mcus_across: usize,
    /// Rows of MCUs of the image.
    pub mcus_down: usize,
    /// Blocks that an MCU is wide and high where there are most.
    most_across: usize,
    most_down: usize,
    /// Pixels of an MCU at this scale.
    pub mcu_width: usize,
    pub mcu_height: usize,
    /// The MCUs that are needed: those of columns `first_column..end_column`, rows `first_row..end_row`.
    pub first_column: usize,
    pub end_column: usize,
    pub first_row: usize,
    pub end_row: usize,
    pub region: Region,
}

impl Layout {
    /// For a region of the image at a scale.
    ///
    /// # Panics
    /// If the region is empty or leaves the image.
    pub fn new(jpeg: &Jpeg, region: Region, scale: Scale) -> Result<Self, Error> {
        let components = jpeg.components();
        let (width, height) = jpeg.scaled(scale);
        assert!(region.fits(width, height), "{region:?} leaves {width}x{height}");
        let edge = scale.edge();
        let most_across = components.iter().map(|component| component.across).max().unwrap_or(1);
        let most_down = components.iter().map(|component| component.down).max().unwrap_or(1);
        let mut planes =
            [Plane { across: 0, down: 0, edge, width, height, upsampling: Upsampling::None }; MAX_COMPONENTS];
        for (plane, component) in planes.iter_mut().zip(components) {
            let (across, down) = (component.across, component.down);
            let fills = |most: usize, own: usize, twice: usize| (most * edge).is_multiple_of(own * twice);
            while plane.edge < 8 && fills(most_across, across, plane.edge * 2) && fills(most_down, down, plane.edge * 2)
            {
                plane.edge *= 2;
            }
            (plane.across, plane.down) = (across, down);
            plane.width = (jpeg.width * across * plane.edge).div_ceil(most_across * 8);
            plane.height = (jpeg.height * down * plane.edge).div_ceil(most_down * 8);
            let whole = |most: usize, own: usize| {
                let pixels = most * edge;
                let samples = own * plane.edge;
                let error = Error::Unsupported("a component whose samples do not stand for whole numbers of pixels");
                if pixels.is_multiple_of(samples) { Ok(pixels / samples) } else { Err(error) }
            };
            let (across, down) = (whole(most_across, across)?, whole(most_down, down)?);
            plane.upsampling = match (across, down) {
                (1, 1) => Upsampling::None,
                (2, 1) if edge > 1 && plane.width > 2 => Upsampling::Columns,
                (2, 2) if edge > 1 && plane.width > 2 => Upsampling::Both,
                (1, 2) if edge > 1 => Upsampling::Rows,
                _ => Upsampling::Replicate { across, down },
            };
        }
        let (mcu_width, mcu_height) = (most_across * edge, most_down * edge);
        // Pixels beyond the region whose samples have an influence.
        let planes_used = &planes[..components.len()];
        let has =
            |upsamplings: [Upsampling; 2]| planes_used.iter().any(|plane| upsamplings.contains(&plane.upsampling));
        let beside = if has([Upsampling::Columns, Upsampling::Both]) { 2 } else { 0 };
        let above = if has([Upsampling::Rows, Upsampling::Both]) { 2 } else { 0 };
        let mcus_across = jpeg.width.div_ceil(most_across * 8);
        let mcus_down = jpeg.height.div_ceil(most_down * 8);
        let right = region.left + region.width + beside;
        let bottom = region.top + region.height + above;
        Ok(Layout {
            planes,
            count: components.len(),
            mcus_across,
            mcus_down,
            most_across,
            most_down,
            mcu_width,
            mcu_height,
            first_column: region.left.saturating_sub(beside) / mcu_width,
            end_column: right.div_ceil(mcu_width).min(mcus_across),
            first_row: region.top.saturating_sub(above) / mcu_height,
            end_row: bottom.div_ceil(mcu_height).min(mcus_down),
            region,
        })
    }

    /// Number of MCUs that are not needed and must be decoded to reach those that are, given the number between two restart markers,
    /// or 0 without any.
    pub fn skipped(&self, restart_interval: usize) -> usize {
        let of_row = |row: usize| {
            let start = row * self.mcus_across + self.first_column;
            let reached = if row == self.first_row { 0 } else { (row - 1) * self.mcus_across + self.end_column };
            start - start.checked_rem(restart_interval).map_or(reached, |after| reached.max(start - after))
        };
        (self.first_row..self.end_row).map(of_row).sum()
    }

    /// Pixels of an MCU in the image as stored.
    pub fn mcu_edges(&self) -> (usize, usize) {
        (self.most_across * 8, self.most_down * 8)
    }

    pub fn planes(&self) -> &[Plane] {
        &self.planes[..self.count]
    }
}
