//! `--auto-augment METHOD`: how operations for a training image are chosen, in the words of torchvision's scripts too; and
//! `--interpolation FILTER` and `--padding-mode MODE`.

use enmasse_image::{AutoAugmentPolicy, PaddingMode, Resampling};

use super::value::{SettingKind, SettingValue};

/// A method that draws operations from a list, and their strengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AutoAugmentation {
    /// None of them.
    None,
    /// Several operations of one strength.
    RandAugment,
    /// One operation of any strength.
    TrivialAugment,
    /// A mixture of the image with chains of operations on it.
    AugMix,
    /// Pairs of operations that were found for a data set.
    AutoAugment(AutoAugmentPolicy),
}

impl AutoAugmentation {
    const fn word(self) -> &'static str {
        match self {
            AutoAugmentation::None => "none",
            AutoAugmentation::RandAugment => "randaugment",
            AutoAugmentation::TrivialAugment => "trivialaugment",
            AutoAugmentation::AugMix => "augmix",
            AutoAugmentation::AutoAugment(policy) => policy.name(),
        }
    }
}

const ALL: [AutoAugmentation; 7] = [
    AutoAugmentation::RandAugment,
    AutoAugmentation::TrivialAugment,
    AutoAugmentation::AugMix,
    AutoAugmentation::AutoAugment(AutoAugmentPolicy::ImageNet),
    AutoAugmentation::AutoAugment(AutoAugmentPolicy::Cifar10),
    AutoAugmentation::AutoAugment(AutoAugmentPolicy::Svhn),
    AutoAugmentation::None,
];

const WORDS: [&str; ALL.len()] = {
    let mut words = [""; ALL.len()];
    let mut number = 0;
    while number < ALL.len() {
        words[number] = ALL[number].word();
        number += 1;
    }
    words
};

/// `ra` and `ta_wide` are the words of torchvision's training script.
impl SettingValue for AutoAugmentation {
    const KIND: SettingKind = SettingKind::Choice(&WORDS);

    fn parse(text: &str) -> Result<Self, String> {
        let word = match text {
            "ra" => "randaugment",
            "ta_wide" => "trivialaugment",
            other => other,
        };
        let known = ALL.into_iter().find(|method| method.word() == word);
        known.ok_or_else(|| format!("must be {}", WORDS.join(" or ")))
    }

    fn text(&self) -> Option<String> {
        Some(self.word().to_owned())
    }
}

impl SettingValue for Resampling {
    const KIND: SettingKind = SettingKind::Choice(&[Resampling::Bilinear.name(), Resampling::Bicubic.name()]);

    fn parse(text: &str) -> Result<Self, String> {
        let known = [Resampling::Bilinear, Resampling::Bicubic].into_iter().find(|filter| filter.name() == text);
        known.ok_or_else(|| "must be bilinear or bicubic".to_owned())
    }

    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl SettingValue for PaddingMode {
    const KIND: SettingKind = SettingKind::Choice(&[PaddingMode::Constant.name(), PaddingMode::Reflect.name()]);

    fn parse(text: &str) -> Result<Self, String> {
        let known = [PaddingMode::Constant, PaddingMode::Reflect].into_iter().find(|mode| mode.name() == text);
        known.ok_or_else(|| "must be constant or reflect".to_owned())
    }

    fn text(&self) -> Option<String> {
        Some(self.name().to_owned())
    }
}
