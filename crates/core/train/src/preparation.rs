//! How images are prepared for the model: the suggestions of the kind of data set, overridden by
//! the configuration.
//!
//! A data set suggests size, constants and augmentation (`DataKind`), and the user's settings
//! override these. [`Preparation`] is the result, computed in one place, and checkpoints keep it.

use enmasse_data::{Dataset, Sampler};
use enmasse_datasets::{DataKind, OpenOptions, RemoteOptions, SplitKind};
use enmasse_image::{
    AlternatingFlip, AugMix, AutoAugment, ColorJitter, Crop, ErasingValue, EvalTransform, GaussianBlur, Grayscale,
    Mixing, Normalization, RandAugment, RandomErasing, RandomGrayscale, RandomPerspective, RandomResizedCrop,
    RandomRotation, RandomVerticalFlip, ReadOptions, TrainTransform, TrivialAugmentWide,
};

use crate::{
    Augmentation, AutoAugmentation, Balance, Decoding, ErasingColors, Flip, SamplerKind, Shuffling, SplitRule,
    TrainConfig, TrainingData,
};

/// The transforms of both parts, and the constants that the plan normalises by.
#[derive(Clone, Debug)]
pub struct Preparation {
    /// Turns training images into squares.
    pub train: TrainTransform,
    /// Turns images to validate, test and predict into squares.
    pub evaluation: EvalTransform,
    /// The normalisation of the model's input, of three channels or one.
    pub normalization: Normalization,
}

impl Preparation {
    /// The preparation that `config` requests for images of `kind`.
    pub fn new(config: &TrainConfig, kind: DataKind) -> Self {
        let size = config.image_size(kind.native_size());
        let own = kind.normalization();
        let (mean, std) = config.normalization(&own.mean, &own.std);
        let normalization = Normalization { mean, std };
        let resampling = config.interpolation.unwrap_or_default();
        let evaluation = match config.crop_pct {
            Some(share) => EvalTransform::new(size).cropped(share),
            None => kind.eval_transform(size),
        };
        let evaluation = EvalTransform { grayscale: normalization.channels() == 1, resampling, ..evaluation };
        let default = match kind.crop(size) {
            Crop::Resized { .. } => Augmentation::ResizedCrop,
            Crop::Padded { .. } => Augmentation::Crop,
            Crop::None { .. } => Augmentation::None,
        };
        let crop = match config.augment.unwrap_or(default) {
            Augmentation::ResizedCrop => {
                let scale = pair(&config.scale).unwrap_or(RandomResizedCrop::SCALE);
                Crop::Resized { scale, ratio: pair(&config.ratio).unwrap_or(RandomResizedCrop::RATIO) }
            }
            Augmentation::Crop => Crop::Padded { padding: config.crop_padding, mode: config.padding_mode },
            Augmentation::None => Crop::None { resize: evaluation.resize },
        };
        let squares = |chance: f64| TrainTransform::crop_and_flip(size, &crop, resampling, chance);
        let squares = match config.flip {
            None => squares(kind.flip()),
            Some(Flip::Chance(chance)) => squares(chance),
            Some(Flip::Alternating) => squares(0.0).then(AlternatingFlip),
        };
        let train = augmented(squares, config, &normalization, normalization.channels() < own.channels());
        Preparation { train, evaluation, normalization }
    }

    /// The preparation that `config` requests for `data`, with the transforms that the program adds.
    pub fn of(config: &TrainConfig, data: &TrainingData) -> Self {
        let default = Self::new(config, data.kind);
        let is_converted = default.normalization.channels() < data.kind.normalization().channels();
        let train = match &data.augment {
            // The program may have begun a new list. Grey images stay as they are.
            Some(augment) if is_converted => augment(default.train).then_keyed("one channel", Grayscale),
            Some(augment) => augment(default.train),
            None => default.train,
        };
        Preparation { train, ..default }
    }
}

/// The least and the largest value, which the check of settings leaves two.
fn pair(range: &Option<Vec<f64>>) -> Option<(f64, f64)> {
    match range.as_deref() {
        Some(&[min, max]) => Some((min, max)),
        _ => None,
    }
}

/// Crop and flip, followed by the other transforms that `config` requests, in the order of torchvision's and timm's scripts.
/// Colours are converted to grey after the transforms of colours if the model sees one channel of them.
fn augmented(
    mut list: TrainTransform,
    config: &TrainConfig,
    normalization: &Normalization,
    to_grey: bool,
) -> TrainTransform {
    let size = list.size();
    if config.vertical_flip > 0.0 {
        list = list.then(RandomVerticalFlip { probability: config.vertical_flip });
    }
    if config.rotation > 0.0 {
        list = list.then(RandomRotation::new(config.rotation));
    }
    if config.perspective > 0.0 {
        list = list.then(RandomPerspective::new(config.perspective));
    }
    list = match config.auto_augment {
        AutoAugmentation::None => list,
        AutoAugmentation::RandAugment => {
            let (num_ops, magnitude) = (config.ra_num_ops, config.ra_magnitude);
            list.then(RandAugment { num_ops, magnitude, ..RandAugment::default() })
        }
        AutoAugmentation::TrivialAugment => list.then(TrivialAugmentWide::default()),
        AutoAugmentation::AugMix => list.then(AugMix { severity: config.augmix_severity, ..AugMix::default() }),
        AutoAugmentation::AutoAugment(policy) => list.then(AutoAugment::new(policy)),
    };
    let [brightness, contrast, saturation, hue] = config.jitter();
    if [brightness, contrast, saturation, hue] != [0.0; 4] {
        list = list.then(ColorJitter::new(brightness, contrast, saturation, hue));
    }
    if config.grayscale > 0.0 {
        list = list.then(RandomGrayscale { probability: config.grayscale });
    }
    if config.gaussian_blur > 0.0 {
        list = list.then(GaussianBlur::new(size, config.gaussian_blur));
    }
    if to_grey {
        list = list.then(Grayscale);
    }
    if config.random_erasing > 0.0 {
        let value = match config.erasing_value {
            ErasingColors::Mean => ErasingValue::Mean,
            ErasingColors::Random => ErasingValue::Random,
        };
        list = list.then(RandomErasing { value, ..RandomErasing::new(config.random_erasing, normalization.clone()) });
    }
    if config.mixup > 0.0 || config.cutmix > 0.0 {
        list = list.mixed(Mixing { mixup_alpha: config.mixup, cutmix_alpha: config.cutmix });
    }
    list
}

impl TrainConfig {
    /// The numbers of brightness, contrast, saturation and hue. A single one is for the first three, as in timm.
    fn jitter(&self) -> [f64; 4] {
        match self.color_jitter.as_deref() {
            Some(&[all]) => [all, all, all, 0.0],
            Some(numbers) => [0, 1, 2, 3].map(|place| numbers.get(place).copied().unwrap_or(0.0)),
            None => [0.0; 4],
        }
    }

    /// How data that are not one of the known sets are opened.
    pub fn open_options(&self) -> OpenOptions {
        let split = match self.split {
            SplitRule::Seeded => SplitKind::Seeded,
            SplitRule::Python => SplitKind::Python,
        };
        OpenOptions {
            split,
            split_seed: self.split_seed,
            reading: self.reading(),
            label_pattern: self.label_pattern.clone(),
            path_column: self.path_column.clone(),
            label_column: self.label_column.clone(),
            task: self.task,
            manifest_root: self.manifest_root.clone(),
            remote: self.remote(),
            ..OpenOptions::default()
        }
    }

    /// How objects on servers are read.
    pub fn remote(&self) -> RemoteOptions {
        RemoteOptions {
            cache: self.cache_dir.clone(),
            limit: self.cache_limit.0,
            // Its own error comes before that of a loader which waits for it.
            timeout: self.timeout(1) / 3,
            ..RemoteOptions::default()
        }
    }

    /// How image files become RGB pixels.
    pub fn reading(&self) -> ReadOptions {
        ReadOptions {
            convert_rgb: self.convert_rgb,
            exif_transpose: self.exif_transpose,
            fast: self.decode == Decoding::Fast,
        }
    }

    /// The order of the training samples in `data`. PyTorch's pads, as its `DistributedSampler` does by default. A program's own is
    /// not known here.
    pub fn training_sampler(&self, data: &dyn Dataset) -> Sampler {
        let by_blocks = || match self.shuffle {
            Some(Shuffling::Block) => data.locality().is_some_and(|locality| locality.blocks().is_some()),
            Some(Shuffling::Full) => false,
            None => data.locality().is_some_and(|locality| locality.prefers_blocks()),
        };
        match self.sampler {
            SamplerKind::Shuffle | SamplerKind::Own => match (self.balance, self.repeat_augment) {
                (Balance::None, 1) if by_blocks() => Sampler::Blocks,
                (Balance::None, 1) => Sampler::Shuffle,
                (balance, repeats) => Sampler::Resampled { balanced: balance == Balance::Classes, repeats },
            },
            SamplerKind::Distributed => Sampler::Distributed { drop_last: false },
        }
    }
}

#[cfg(test)]
mod tests {
    use enmasse_data::{DataError, Locality};
    use enmasse_image::Image;

    use super::*;

    /// Data in blocks, or not, for which an order by blocks is the default one, or not.
    struct Blocky {
        has: bool,
        prefers: bool,
    }

    impl Dataset for Blocky {
        fn len(&self) -> usize {
            4
        }

        fn label(&self, _: usize) -> usize {
            0
        }

        fn read(&self, _: usize) -> Result<Image, DataError> {
            Ok(Image::new(1, 1, vec![0; 3])?)
        }

        fn locality(&self) -> Option<&dyn Locality> {
            Some(self)
        }
    }

    impl Locality for Blocky {
        fn blocks(&self) -> Option<Vec<usize>> {
            self.has.then(|| vec![3, 1])
        }

        fn prefers_blocks(&self) -> bool {
            self.prefers
        }
    }

    #[test]
    fn settings_decide_the_order() {
        let of = |settings: &[(&str, &str)], data: Blocky| {
            let mut config = TrainConfig::default();
            settings.iter().for_each(|(name, value)| config.set(name, value).unwrap());
            config.training_sampler(&data)
        };
        let check = |settings: &[(&str, &str)], expected: Sampler| {
            assert_eq!(of(settings, Blocky { has: false, prefers: false }), expected, "{settings:?}");
        };
        let resampled = |balanced, repeats| Sampler::Resampled { balanced, repeats };
        check(&[], Sampler::Shuffle);
        check(&[("balance", "classes")], resampled(true, 1));
        check(&[("repeat_augment", "3")], resampled(false, 3));
        check(&[("balance", "classes"), ("repeat_augment", "2")], resampled(true, 2));
        let distributed = Sampler::Distributed { drop_last: false };
        check(&[("sampler", "distributed"), ("balance", "classes")], distributed);
        check(&[("shuffle", "block")], Sampler::Shuffle);
        let archives = || Blocky { has: true, prefers: false };
        let parquet = || Blocky { has: true, prefers: true };
        for (settings, in_archives, in_parquet) in [
            (&[][..], Sampler::Shuffle, Sampler::Blocks),
            (&[("shuffle", "block")], Sampler::Blocks, Sampler::Blocks),
            (&[("shuffle", "full")], Sampler::Shuffle, Sampler::Shuffle),
            (&[("balance", "classes")], resampled(true, 1), resampled(true, 1)),
            (&[("sampler", "distributed")], distributed, distributed),
        ] {
            assert_eq!([of(settings, archives()), of(settings, parquet())], [in_archives, in_parquet], "{settings:?}");
        }
    }

    #[test]
    fn the_configuration_overrides_the_kind() {
        const WHOLE: &str = "resize_center_crop size=32 resize=40";
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
        check(&[("crop_pct", "0.9")], DataKind::Folder, &resized(224), 248, 3);
        check(&[("crop_pct", "0.8"), ("augment", "none"), ("flip", "0")], DataKind::Cifar10, WHOLE, 40, 3);
        let alternating = "random_crop size=32 padding=2 padding_mode=reflect; alternating_flip";
        let settings = [("flip", "alternating"), ("padding_mode", "reflect"), ("crop_padding", "2")];
        check(&settings, DataKind::Cifar10, alternating, 32, 3);
        let bicubic = |squares: &str| flips(&format!("{squares} interpolation=bicubic"));
        let part = "random_resized_crop size=224 scale=0.08..1 ratio=0.75..1.3333333333333333";
        check(&[("interpolation", "bicubic")], DataKind::Folder, &bicubic(part), 256, 3);
        let square = "random_crop size=32 padding=4";
        check(&[("interpolation", "bicubic")], DataKind::Cifar10, &bicubic(square), 32, 3);
        check(&[("interpolation", "bilinear")], DataKind::Folder, &resized(224), 256, 3);
        let central = "resize_center_crop size=224 resize=256";
        check(&[("augment", "none"), ("flip", "0")], DataKind::Folder, central, 256, 3);
        check(&[], DataKind::Cifar10, &padded(32, 4), 32, 3);
        check(&[("crop_padding", "2")], DataKind::Cifar10, &padded(32, 2), 32, 3);
        check(&[("augment", "resized-crop"), ("size", "64")], DataKind::Cifar10, &resized(64), 64, 3);
        let large = flips("random_resized_crop size=224 scale=0.5..0.9 ratio=1..1");
        check(&[("scale", "0.5,0.9"), ("ratio", "1,1")], DataKind::Folder, &large, 256, 3);
        check(&[], DataKind::Mnist, whole, 28, 1);
        check(&[("flip", "0.5")], DataKind::Mnist, &flips(whole), 28, 1);
        check(&[("std", "0.2,0.2,0.2")], DataKind::Mnist, whole, 28, 3);
        // One number for each list made a model of one channel, which saw the red of colour images.
        check(&[("mean", "0.5"), ("std", "0.5")], DataKind::Folder, &resized(224), 256, 3);
        check(&[("mean", "0.5"), ("std", "0.5")], DataKind::Mnist, whole, 28, 1);
        check(&[("channels", "3")], DataKind::Mnist, whole, 28, 3);
        let grey = |squares: &str| format!("{squares}; grayscale");
        check(&[("channels", "1")], DataKind::Folder, &grey(&resized(224)), 256, 1);
        check(&[("channels", "1")], DataKind::Mnist, whole, 28, 1);
        let erased = "random_erasing probability=1 scale=0.02..0.33 ratio=0.3..3.3 value=mean [0.5]";
        let settings = [("channels", "1"), ("mean", "0.5"), ("random_erasing", "1")];
        check(&settings, DataKind::Cifar10, &format!("{}; {erased}", grey(&padded(32, 4))), 32, 1);
        let all = [
            ("vertical_flip", "0.1"),
            ("rotation", "15"),
            ("perspective", "0.2"),
            ("auto_augment", "ra"),
            ("ra_magnitude", "7"),
            ("color_jitter", "0.4"),
            ("grayscale", "0.1"),
            ("gaussian_blur", "0.5"),
            ("random_erasing", "0.25"),
        ];
        let names = "random_vertical_flip probability=0.1; random_rotation degrees=-15..15 interpolation=nearest; \
                     random_perspective probability=0.2 distortion_scale=0.5 interpolation=bilinear; \
                     rand_augment num_ops=2 magnitude=7/31 interpolation=nearest; \
                     color_jitter brightness=0.6..1.4 contrast=0.6..1.4 saturation=0.6..1.4 hue=0..0; \
                     random_grayscale probability=0.1; gaussian_blur probability=0.5 kernel_size=3 sigma=0.1..2; \
                     random_erasing probability=0.25 scale=0.02..0.33 ratio=0.3..3.3 value=mean [0.4914, 0.4822, 0.4465]";
        check(&all, DataKind::Cifar10, &format!("{}; {names}", padded(32, 4)), 32, 3);
        let check = |settings: &[(&str, &str)], expected: &str| {
            check(settings, DataKind::Cifar10, &format!("{}; {expected}", padded(32, 4)), 32, 3);
        };
        check(
            &[("auto_augment", "trivialaugment")],
            "trivial_augment_wide num_magnitude_bins=31 interpolation=nearest",
        );
        check(&[("auto_augment", "svhn")], "auto_augment policy=svhn interpolation=nearest");
        let mixed = "aug_mix severity=5 mixture_width=3 chain_depth=0 alpha=1 all_ops=true interpolation=bilinear";
        check(&[("auto_augment", "augmix"), ("augmix_severity", "5")], mixed);
        let jitter = "color_jitter brightness=0.5..1.5 contrast=0..2 saturation=1..1 hue=-0.1..0.1";
        check(&[("color_jitter", "0.5,1,0,0.1")], jitter);
        let random = "random_erasing probability=1 scale=0.02..0.33 ratio=0.3..3.3 value=random [0.4914, 0.4822, 0.4465] \
                      [0.247, 0.2435, 0.2616]";
        check(&[("random_erasing", "1"), ("erasing_value", "random")], random);
        check(&[("mixup", "0.2")], "mixed mixup_alpha=0.2 cutmix_alpha=0");
        check(&[("mixup", "0.8"), ("cutmix", "1")], "mixed mixup_alpha=0.8 cutmix_alpha=1");
    }
}
