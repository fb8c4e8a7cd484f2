//! How pictures are prepared for the model: the suggestions of the kind of data set, overridden by the configuration.

use enmasse_data::{
    Crop, DataKind, EvalTransform, Normalization, OpenOptions, ReadOptions, Sampler, SplitKind, TrainTransform,
};

use crate::{Augmentation, SamplerKind, SplitRule, TrainConfig, TrainingData};

/// The transforms of both parts, and the constants that the plan normalises by.
#[derive(Clone, Debug)]
pub struct Preparation {
    /// Turns training pictures into squares.
    pub train: TrainTransform,
    /// Turns pictures to validate, test and predict into squares.
    pub evaluation: EvalTransform,
    /// The normalisation of the model's input, of three channels or one.
    pub normalization: Normalization,
}

impl Preparation {
    /// The preparation that `config` requests for pictures of `kind`.
    pub fn new(config: &TrainConfig, kind: DataKind) -> Self {
        let size = config.picture_size(kind.native_size());
        let evaluation = kind.eval_transform(size);
        let crop = match config.augment {
            None => match kind.crop(size) {
                Crop::Padded { .. } => Crop::Padded { padding: config.crop_padding },
                other => other,
            },
            Some(Augmentation::ResizedCrop) => Crop::Resized,
            Some(Augmentation::Crop) => Crop::Padded { padding: config.crop_padding },
            Some(Augmentation::None) => Crop::None { resize: evaluation.resize },
        };
        let own = kind.normalization();
        let (mean, deviation) = config.normalization(&own.mean, &own.deviation);
        Preparation {
            train: TrainTransform::usual(size, &crop, config.flip.unwrap_or(kind.flip())),
            evaluation,
            normalization: Normalization { mean, deviation },
        }
    }

    /// The preparation that `config` requests for `data`, with the transforms that the program adds.
    pub fn of(config: &TrainConfig, data: &TrainingData) -> Self {
        let usual = Self::new(config, data.kind);
        let train = match &data.augment {
            Some(augment) => augment(usual.train),
            None => usual.train,
        };
        Preparation { train, ..usual }
    }
}

impl TrainConfig {
    /// How a folder of class folders is opened.
    pub fn open_options(&self) -> OpenOptions {
        let split = match self.split {
            SplitRule::Seeded => SplitKind::Seeded,
            SplitRule::Python => SplitKind::Python,
        };
        OpenOptions { split, split_seed: self.split_seed, reading: self.reading(), ..OpenOptions::default() }
    }

    /// How picture files become RGB pixels.
    pub fn reading(&self) -> ReadOptions {
        ReadOptions { convert_rgb: self.convert_rgb, exif_transpose: self.exif_transpose }
    }

    /// The order of training samples. PyTorch's pads, as its `DistributedSampler` does by default.
    pub fn training_sampler(&self) -> Sampler {
        match self.sampler {
            SamplerKind::Shuffle => Sampler::Shuffle,
            SamplerKind::Distributed => Sampler::Distributed { drop_last: false },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_overrides_the_kind() {
        let check = |settings: &[(&str, &str)], kind: DataKind, train: &str, resize: usize, channels: usize| {
            let mut config = TrainConfig::default();
            settings.iter().for_each(|(name, value)| config.set(name, value).unwrap());
            let found = Preparation::new(&config, kind);
            assert_eq!((found.train.to_string().as_str(), found.evaluation.resize), (train, resize), "{settings:?}");
            assert_eq!(found.normalization.channels(), channels, "{settings:?}");
        };
        let flips = |squares: &str| format!("{squares}; random_horizontal_flip probability=0.5");
        let resized =
            |size| flips(&format!("random_resized_crop size={size} scale=0.08..1 ratio=0.75..1.3333333333333333"));
        let padded = |size, padding| flips(&format!("random_crop size={size} padding={padding}"));
        let whole = "resize_center_crop size=28 resize=28";
        check(&[], DataKind::Folder, &resized(224), 256, 3);
        check(&[("augment", "crop")], DataKind::Folder, &padded(224, 4), 256, 3);
        let central = "resize_center_crop size=224 resize=256";
        check(&[("augment", "none"), ("flip", "0")], DataKind::Folder, central, 256, 3);
        check(&[], DataKind::Cifar10, &padded(32, 4), 32, 3);
        check(&[("crop_padding", "2")], DataKind::Cifar10, &padded(32, 2), 32, 3);
        check(&[("augment", "resized-crop"), ("size", "64")], DataKind::Cifar10, &resized(64), 64, 3);
        check(&[], DataKind::Mnist, whole, 28, 1);
        check(&[("flip", "0.5")], DataKind::Mnist, &flips(whole), 28, 1);
        check(&[("std", "0.2,0.2,0.2")], DataKind::Mnist, whole, 28, 3);
    }
}
