//! From bytes of images to numbers.

use super::Operation;

/// `(x / 255 - mean) / std` per channel. With one mean and std the result has one channel, computed from the images' first
/// channel. In grey images all channels are equal. Further channels of the result are zeros, in the plans of devices that ask for them
/// ([`crate::Target::image_channels`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Normalize {
    /// Mean of each of the 1 or 3 channels, on the scale 0 to 1.
    pub mean: Vec<f32>,
    /// Std of each of these channels, on the scale 0 to 1.
    pub std: Vec<f32>,
}

impl Operation for Normalize {
    const NAME: &'static str = "normalize";
    const SIGNATURE: &'static str = "(images u8 [N,H,W,3]) -> (y)";
    const PYTORCH: Option<&'static str> = Some("torchvision.transforms.Normalize after ToTensor");

    fn attributes(&self) -> String {
        format!("mean {:?} std {:?}", self.mean, self.std)
    }
}
