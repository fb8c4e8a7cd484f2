//! The filters that resize, as Pillow has them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The filter of a resize: Pillow's `Image.Resampling`, and torchvision's `InterpolationMode`, always antialiased.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resampling {
    /// The triangle filter.
    #[default]
    Bilinear,
    /// The cubic filter with a = -0.5. Its negative weights may leave the range of bytes, which then ends.
    Bicubic,
}

impl Resampling {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Resampling::Bilinear => "bilinear",
            Resampling::Bicubic => "bicubic",
        }
    }

    /// From where on its values are 0.
    pub(super) fn support(self) -> f64 {
        match self {
            Resampling::Bilinear => 1.0,
            Resampling::Bicubic => 2.0,
        }
    }

    /// Its value at a distance from its centre. The order of operations is Pillow's.
    pub(super) fn value(self, distance: f64) -> f64 {
        const A: f64 = -0.5;
        let x = distance.abs();
        match self {
            Resampling::Bilinear => (1.0 - x).max(0.0),
            Resampling::Bicubic if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
            Resampling::Bicubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
            Resampling::Bicubic => 0.0,
        }
    }
}

impl fmt::Display for Resampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
