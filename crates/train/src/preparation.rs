//! How pictures reach the model: what the kind of data set suggests, and what the configuration says otherwise.

use enmasse_data::{Crop, DataKind, EvalTransform, Normalization, OpenOptions, Sampler, SplitKind, TrainTransform};

use crate::{Augmentation, SamplerKind, SplitRule, TrainConfig};

/// The transforms of both parts, and the constants that the plan normalises by.
#[derive(Clone, Debug, PartialEq)]
pub struct Preparation {
    /// Training pictures become squares by this.
    pub train: TrainTransform,
    /// Pictures to validate, test and predict become squares by this.
    pub evaluation: EvalTransform,
    /// What the model sees of them: three channels, or one.
    pub normalization: Normalization,
}

impl Preparation {
    /// What `config` makes of pictures of `kind`.
    pub fn new(config: &TrainConfig, kind: DataKind) -> Self {
        let size = config.picture_size(kind.native_size());
        let (evaluation, usual) = (kind.eval_transform(size), kind.train_transform(size));
        let crop = match config.augment {
            None => match usual.crop {
                Crop::Padded { .. } => Crop::Padded { padding: config.crop_padding },
                other => other,
            },
            Some(Augmentation::ResizedCrop) => Crop::resized(),
            Some(Augmentation::Crop) => Crop::Padded { padding: config.crop_padding },
            Some(Augmentation::None) => Crop::None { resize: evaluation.resize },
        };
        let own = kind.normalization();
        let (mean, deviation) = config.normalization(&own.mean, &own.deviation);
        Preparation {
            train: TrainTransform { size, crop, flip: config.flip.unwrap_or(usual.flip) },
            evaluation,
            normalization: Normalization { mean, deviation },
        }
    }
}

impl TrainConfig {
    /// How a folder of class folders is opened.
    pub fn open_options(&self) -> OpenOptions {
        let split = match self.split {
            SplitRule::Seeded => SplitKind::Seeded,
            SplitRule::Python => SplitKind::Python,
        };
        OpenOptions { split, split_seed: self.split_seed, convert_rgb: self.convert_rgb, ..OpenOptions::default() }
    }

    /// Whose order training samples come in. PyTorch's pads, as its `DistributedSampler` does where nothing else is said.
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
    fn the_configuration_wins_over_the_kind() {
        let check =
            |settings: &[(&str, &str)], kind: DataKind, crop: Crop, flip: f64, resize: usize, channels: usize| {
                let mut config = TrainConfig::default();
                settings.iter().for_each(|(name, value)| config.set(name, value).unwrap());
                let found = Preparation::new(&config, kind);
                assert_eq!(
                    (found.train.crop, found.train.flip, found.evaluation.resize),
                    (crop, flip, resize),
                    "{settings:?}"
                );
                assert_eq!(found.normalization.channels(), channels, "{settings:?}");
            };
        check(&[], DataKind::Folder, Crop::resized(), 0.5, 256, 3);
        check(&[("augment", "crop")], DataKind::Folder, Crop::Padded { padding: 4 }, 0.5, 256, 3);
        check(&[("augment", "none"), ("flip", "0")], DataKind::Folder, Crop::None { resize: 256 }, 0.0, 256, 3);
        check(&[], DataKind::Cifar10, Crop::Padded { padding: 4 }, 0.5, 32, 3);
        check(&[("crop_padding", "2")], DataKind::Cifar10, Crop::Padded { padding: 2 }, 0.5, 32, 3);
        check(&[("augment", "resized-crop"), ("size", "64")], DataKind::Cifar10, Crop::resized(), 0.5, 64, 3);
        check(&[], DataKind::Mnist, Crop::None { resize: 28 }, 0.0, 28, 1);
        check(&[("std", "0.2,0.2,0.2")], DataKind::Mnist, Crop::None { resize: 28 }, 0.0, 28, 3);
    }
}
