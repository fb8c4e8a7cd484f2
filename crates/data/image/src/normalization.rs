//! The constants by which a device normalises pixels.
//!
//! Images are bytes from the loader to the device, which normalises them. For a grey data set there
//! is one entry, and the plan's first instruction takes one channel, so the model equals PyTorch's
//! for grey images.

use serde::{Deserialize, Serialize};

/// Mean and std of each channel on the scale 0 to 1. Three entries, or one for grey images: these have equal bytes
/// in all three channels of a batch, and the model sees one of them. [`Grayscale`](crate::Grayscale) makes colours grey.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Normalization {
    /// Subtracted from each value.
    pub mean: Vec<f32>,
    /// Divides the result.
    #[serde(alias = "deviation")]
    pub std: Vec<f32>,
}

impl Normalization {
    /// Number of channels that the model sees: 3 or 1.
    pub fn channels(&self) -> usize {
        self.mean.len()
    }
}
