//! Whether a run starts, or goes on from a checkpoint, and from which.
//!
//! `--resume best` puts the best checkpoint in the place of the last one.

use std::path::{Path, PathBuf};

use enmasse_system::files::expand_home;

use super::value::{SettingKind, SettingValue, quoted};

/// The checkpoint from which a run goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resume {
    /// None: the run starts.
    #[default]
    No,
    /// The last one, if there is one.
    Last,
    /// That of the best epoch, which takes the place of the last one.
    Best,
    /// The last one of the run in this folder, which must hold a run.
    Run(PathBuf),
}

impl Resume {
    /// Whether the run goes on from a checkpoint.
    pub fn is_on(&self) -> bool {
        *self != Resume::No
    }

    /// The run that is named, if one is.
    pub fn run(&self) -> Option<&Path> {
        match self {
            Resume::Run(run) => Some(run),
            Resume::No | Resume::Last | Resume::Best => None,
        }
    }

    /// Whether this text is one of the words that name no folder.
    pub fn is_word(text: &str) -> bool {
        !matches!(Resume::parse(text), Ok(Resume::Run(_)) | Err(_))
    }
}

/// `true` is [`Resume::Last`].
impl From<bool> for Resume {
    fn from(resume: bool) -> Self {
        if resume { Resume::Last } else { Resume::No }
    }
}

/// Upper and lower case are equivalent in `true` and `false`, as in switches. A folder of the name of a word is `./best`.
impl SettingValue for Resume {
    const KIND: SettingKind = SettingKind::Optional;

    fn parse(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "" => Err("must be true, false, best or a run folder".to_owned()),
            "true" | "1" | "last" => Ok(Resume::Last),
            "false" | "0" => Ok(Resume::No),
            "best" => Ok(Resume::Best),
            _ => expand_home(Path::new(text)).map(Resume::Run).map_err(|error| error.to_string()),
        }
    }

    fn text(&self) -> Option<String> {
        Some(match self {
            Resume::No => "false".to_owned(),
            Resume::Last => "true".to_owned(),
            Resume::Best => "best".to_owned(),
            Resume::Run(run) => run.display().to_string(),
        })
    }

    fn to_toml(&self) -> Option<String> {
        match self {
            Resume::No | Resume::Last => self.text(),
            Resume::Best | Resume::Run(_) => self.text().map(quoted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RunConfig, TrainConfig};

    #[test]
    fn words_and_folders() {
        let check = |text: &str, expected: Resume| {
            assert_eq!(Resume::parse(text), Ok(expected.clone()), "{text}");
            let config =
                RunConfig { train: TrainConfig { resume: expected, ..TrainConfig::default() }, ..RunConfig::default() };
            assert_eq!(RunConfig::from_toml(&config.to_toml()).unwrap(), config);
            assert_eq!(Resume::is_word(text), config.train.resume.run().is_none());
        };
        check("true", Resume::Last);
        check("True", Resume::Last);
        check("1", Resume::Last);
        check("last", Resume::Last);
        check("false", Resume::No);
        check("0", Resume::No);
        check("best", Resume::Best);
        check("runs/a", Resume::Run("runs/a".into()));
        check("./best", Resume::Run("./best".into()));
        assert!(Resume::parse("").is_err());
    }
}
