//! The kinds of data sets, and the defaults of each: normalisation constants, size, transforms.

use serde::{Deserialize, Serialize};

use enmasse_image::{Crop, EvalTransform, Normalization, PaddingMode, RandomResizedCrop, Resampling, TrainTransform};

/// What a data set is. [`crate::open()`] finds it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DataKind {
    /// Images of any size in a folder per class.
    Folder,
    /// 50,000 + 10,000 colour images of 32 × 32 in 10 classes.
    Cifar10,
    /// 50,000 + 10,000 colour images of 32 × 32 in 100 classes (the "fine" labels).
    Cifar100,
    /// 60,000 + 10,000 grey digits of 28 × 28.
    Mnist,
    /// 60,000 + 10,000 grey images of clothing, 28 × 28.
    FashionMnist,
}

impl DataKind {
    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            DataKind::Folder => "folder of class folders",
            DataKind::Cifar10 => "CIFAR-10",
            DataKind::Cifar100 => "CIFAR-100",
            DataKind::Mnist => "MNIST",
            DataKind::FashionMnist => "Fashion-MNIST",
        }
    }

    /// The constants for normalising: mean and std of all pixels of the training part; ImageNet's for folders.
    ///
    /// The tutorials' CIFAR-10 std (0.2023, 0.1994, 0.2010) differs: it is the mean over the images of each
    /// image's own std.
    pub fn normalization(self) -> Normalization {
        // As published by several authors, computed over the training parts: CIFAR-10 0.49139968, 0.48215841,
        // 0.44653091 and 0.24703223, 0.24348513, 0.26158784; CIFAR-100 0.50707516, 0.48654887, 0.44091784 and
        // 0.26733429, 0.25643846, 0.27615047; Fashion-MNIST 0.2860402 and 0.3530239; MNIST as in PyTorch's examples.
        let (mean, std): (&[f32], &[f32]) = match self {
            DataKind::Folder => (&[0.485, 0.456, 0.406], &[0.229, 0.224, 0.225]),
            DataKind::Cifar10 => (&[0.4914, 0.4822, 0.4465], &[0.2470, 0.2435, 0.2616]),
            DataKind::Cifar100 => (&[0.5071, 0.4865, 0.4409], &[0.2673, 0.2564, 0.2762]),
            DataKind::Mnist => (&[0.1307], &[0.3081]),
            DataKind::FashionMnist => (&[0.2860], &[0.3530]),
        };
        Normalization { mean: mean.to_vec(), std: std.to_vec() }
    }

    /// Width and height of all its images, in pixels; `None` for folders.
    pub fn native_size(self) -> Option<usize> {
        match self {
            DataKind::Folder => None,
            DataKind::Cifar10 | DataKind::Cifar100 => Some(32),
            DataKind::Mnist | DataKind::FashionMnist => Some(28),
        }
    }

    /// The evaluation transform at `size`. If all images have one size they are used whole (at that size, byte for
    /// byte); otherwise the central part after a resize in the proportion 256 : 224.
    pub fn eval_transform(self, size: usize) -> EvalTransform {
        match self.native_size() {
            Some(_) => EvalTransform { resize: size, ..EvalTransform::new(size) },
            None => EvalTransform::new(size),
        }
    }

    /// How training images become squares of `size` by default: random resized crops for folders, RandomCrop with 4
    /// pixels of padding for CIFAR, nothing random for MNIST and Fashion-MNIST.
    pub fn crop(self, size: usize) -> Crop {
        match self {
            DataKind::Folder => Crop::Resized { scale: RandomResizedCrop::SCALE, ratio: RandomResizedCrop::RATIO },
            DataKind::Cifar10 | DataKind::Cifar100 => Crop::Padded { padding: 4, mode: PaddingMode::Constant },
            DataKind::Mnist | DataKind::FashionMnist => Crop::None { resize: self.eval_transform(size).resize },
        }
    }

    /// The default probability of a flip: 0 if a mirror image is not a valid digit.
    pub fn flip(self) -> f64 {
        match self {
            DataKind::Folder | DataKind::Cifar10 | DataKind::Cifar100 => 0.5,
            DataKind::Mnist | DataKind::FashionMnist => 0.0,
        }
    }

    /// The default augmentation at `size`.
    pub fn train_transform(self, size: usize) -> TrainTransform {
        TrainTransform::crop_and_flip(size, &self.crop(size), Resampling::Bilinear, self.flip())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [DataKind; 5] =
        [DataKind::Folder, DataKind::Cifar10, DataKind::Cifar100, DataKind::Mnist, DataKind::FashionMnist];

    #[test]
    fn every_kind_has_valid_constants_and_transforms() {
        for kind in ALL {
            let normalization = kind.normalization();
            let grey = matches!(kind, DataKind::Mnist | DataKind::FashionMnist);
            assert_eq!(normalization.channels(), if grey { 1 } else { 3 });
            for size in [8, 28, 32, 224] {
                kind.train_transform(size).check().unwrap();
                assert_eq!(kind.eval_transform(size).resize == size, kind != DataKind::Folder);
            }
        }
    }
}
