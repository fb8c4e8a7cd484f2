//! How a program in Python prepares images for exported weights: a JSON file beside them, with the
//! preparation as numbers and as torchvision's `Compose`.

use std::path::{Path, PathBuf};

use enmasse_image::Resampling;
use enmasse_system::files::read_regular;
use serde::{Deserialize, Serialize};

use crate::{CheckpointMeta, RunConfig, TargetStatistics, TrainConfig, TrainError};

/// Limit of such a file, which names a million classes at most.
const MAX_BYTES: u64 = 64 << 20;

/// The preparation of images for a model. The keys of its JSON form are a contract with scripts.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Preprocessing {
    /// The model's name.
    pub model: String,
    /// Channels of the model's input: 3, or 1 for grey.
    pub channels: usize,
    /// Height and width of the model's input.
    pub size: usize,
    /// Length to which the image's shorter side is resized.
    pub resize: usize,
    /// Edge of the square that is cut out of its centre.
    pub crop: usize,
    /// The filter that resizes.
    pub interpolation: Resampling,
    /// Whether the filter covers all pixels that become one.
    pub antialias: bool,
    /// Mean of each channel, of pixels from 0 to 1.
    pub mean: Vec<f32>,
    /// Standard deviation of each channel.
    pub std: Vec<f32>,
    /// Whether images are turned by their EXIF orientation first.
    pub exif_transpose: bool,
    /// Names of the classes, by label.
    pub classes: Vec<String>,
    /// The mean and the std by which the outputs become numbers in the units of the data: `output * std + mean`. Only a model of numbers
    /// has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_statistics: Option<TargetStatistics>,
    /// The imports of [`transform`](Self::transform), one a line.
    pub imports: String,
    /// A Python expression: torchvision's `Compose` that makes the model's input of an image that Pillow has opened.
    pub transform: String,
}

impl Preprocessing {
    /// The preparation of a checkpoint's model.
    ///
    /// # Errors
    /// The configuration in it cannot be read.
    pub fn of(meta: &CheckpointMeta) -> Result<Self, TrainError> {
        let TrainConfig { exif_transpose, interpolation, .. } = RunConfig::from_toml(&meta.configuration)?.train;
        let interpolation = interpolation.unwrap_or_default();
        let CheckpointMeta { model, classes, size, resize, mean, std, .. } = meta.clone();
        let is_grey = mean.len() == 1;
        let mut imports = "from torchvision import transforms".to_owned();
        let mut steps = Vec::new();
        if exif_transpose {
            imports.insert_str(0, "from PIL import ImageOps\n");
            steps.push("Lambda(ImageOps.exif_transpose)".to_owned());
        }
        steps.push("Lambda(lambda image: image.convert(\"RGB\"))".to_owned());
        let mode = interpolation.name().to_uppercase();
        steps.push(format!("Resize({resize}, interpolation=transforms.InterpolationMode.{mode}, antialias=True)"));
        steps.push(format!("CenterCrop({size})"));
        if is_grey {
            steps.push("Grayscale()".to_owned());
        }
        steps.push("ToTensor()".to_owned());
        steps.push(format!("Normalize(mean={mean:?}, std={std:?})"));
        let steps: String = steps.iter().map(|step| format!("    transforms.{step},\n")).collect();
        let transform = format!("transforms.Compose([\n{steps}])");
        let channels = mean.len();
        let crop = size;
        Ok(Preprocessing {
            target_statistics: meta.statistics.clone(),
            model,
            channels,
            size,
            resize,
            crop,
            interpolation,
            antialias: true,
            mean,
            std,
            exif_transpose,
            classes,
            imports,
            transform,
        })
    }

    /// Its file beside a file of weights: `best.json` beside `best.pth`.
    pub fn beside(weights: &Path) -> PathBuf {
        weights.with_extension("json")
    }

    /// What the file beside a file of weights says; `None` if there is none, or another program's.
    pub fn read_beside(weights: &Path) -> Option<Self> {
        let text = read_regular(&Self::beside(weights), MAX_BYTES).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// The text of its file.
    pub fn to_json(&self) -> String {
        // Fails only for maps whose keys are not strings; there is none.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transforms_in_python() {
        let check = |channels: usize, exif: bool, more: &str, imports: &str, expected: &[&str]| {
            let configuration = format!("exif_transpose = {exif}\n{more}");
            let mean = vec![0.485, 0.456, 1e-7][..channels].to_vec();
            let std = vec![0.229, 0.224, 1.0][..channels].to_vec();
            let meta = CheckpointMeta { size: 224, resize: 256, mean, std, configuration, ..CheckpointMeta::default() };
            let found = Preprocessing::of(&meta).unwrap();
            let steps: String = expected.iter().map(|step| format!("    transforms.{step},\n")).collect();
            assert_eq!(found.transform, format!("transforms.Compose([\n{steps}])"));
            assert_eq!((found.imports.as_str(), found.channels, found.crop), (imports, channels, 224));
        };
        let rgb = "Lambda(lambda image: image.convert(\"RGB\"))";
        let resize = "Resize(256, interpolation=transforms.InterpolationMode.BILINEAR, antialias=True)";
        let colours = "Normalize(mean=[0.485, 0.456, 1e-7], std=[0.229, 0.224, 1.0])";
        let own = "from torchvision import transforms";
        check(3, false, "", own, &[rgb, resize, "CenterCrop(224)", "ToTensor()", colours]);
        let grey = "Normalize(mean=[0.485], std=[0.229])";
        let both = "from PIL import ImageOps\nfrom torchvision import transforms";
        let exif = "Lambda(ImageOps.exif_transpose)";
        check(1, true, "", both, &[exif, rgb, resize, "CenterCrop(224)", "Grayscale()", "ToTensor()", grey]);
        let bicubic = resize.replace("BILINEAR", "BICUBIC");
        let filter = "interpolation = \"bicubic\"\n";
        check(3, false, filter, own, &[rgb, &bicubic, "CenterCrop(224)", "ToTensor()", colours]);
    }
}
