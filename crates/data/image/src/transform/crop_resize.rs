//! A crop that is resized: the part of an image that it needs, and at which scale.

use crate::resize::span;
use crate::{CropBox, RegionRequest, Resampling};

/// The part `crop` of an image, resized to `full`, and of the result the part `part`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CropResize {
    /// Inside the image.
    pub crop: CropBox,
    /// Width and height to which the crop is resized.
    pub full: (usize, usize),
    /// Inside the resized crop.
    pub part: CropBox,
    /// The filter.
    pub resampling: Resampling,
}

impl CropResize {
    /// All of a resized crop.
    pub fn whole(crop: CropBox, full: (usize, usize), resampling: Resampling) -> Self {
        CropResize { crop, full, part: CropBox::whole(full.0, full.1), resampling }
    }

    /// The pixels that have an influence. They may be shrunk while the crop keeps as many as its resized form has.
    pub fn wanted(&self) -> RegionRequest {
        let CropResize { crop, full, part, resampling } = *self;
        let (left, right) = span((crop.width, full.0), resampling, part.left, part.width);
        let (top, bottom) = span((crop.height, full.1), resampling, part.top, part.height);
        let part = CropBox { left: crop.left + left, top: crop.top + top, width: right - left, height: bottom - top };
        let fits = |shrink: &usize| crop.width >= shrink * full.0 && crop.height >= shrink * full.1;
        RegionRequest { part, shrink: [8, 4, 2].into_iter().find(fits).unwrap_or(1) }
    }
}
