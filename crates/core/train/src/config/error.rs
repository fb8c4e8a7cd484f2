//! Errors of a configuration, and the sources of values. Every message is one line.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

use super::aliases::{answer, nearest};
use super::setting::VARIABLE_PREFIX;
use super::{RunConfig, Setting, SettingKind};

/// The source of a value. Later variants take precedence over earlier ones.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SettingSource {
    /// The program's default, or code.
    Default,
    /// This recipe, with its version.
    Recipe(String),
    /// The configuration saved in this run folder.
    Saved(PathBuf),
    /// What is known of these weights.
    Weights(String),
    /// This TOML file.
    File(PathBuf),
    /// An environment variable.
    Environment,
    /// A flag.
    CommandLine,
}

impl SettingSource {
    /// Position in the order of precedence.
    pub(super) fn weight(&self) -> usize {
        match self {
            SettingSource::Default => 0,
            SettingSource::Recipe(_) => 1,
            SettingSource::Saved(_) => 2,
            SettingSource::Weights(_) => 3,
            SettingSource::File(_) => 4,
            SettingSource::Environment => 5,
            SettingSource::CommandLine => 6,
        }
    }

    /// A setting and its value as the user wrote them in this source.
    pub fn describe(&self, setting: &Setting, text: &str) -> String {
        let name = setting.name;
        match self {
            SettingSource::Default => format!("{name} {text}"),
            SettingSource::Recipe(recipe) => format!("{name} = {text} in the recipe {recipe}"),
            SettingSource::Saved(path) => format!("{name} = {text} in the saved run {}", path.display()),
            SettingSource::Weights(weights) => format!("{name} = {text} of the weights {weights}"),
            SettingSource::File(path) => format!("{name} = {text} in {}", path.display()),
            SettingSource::Environment => format!("{}={text}", setting.variable()),
            SettingSource::CommandLine if setting.kind.stands_alone() && text == "true" => setting.flag(),
            SettingSource::CommandLine if setting.kind == SettingKind::Switch && text == "false" => {
                setting.flag().replacen("--", "--no-", 1)
            }
            SettingSource::CommandLine => format!("{} {text}", setting.flag()),
        }
    }
}

/// Where a value comes from, in a few words.
impl fmt::Display for SettingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingSource::Default => f.write_str("default"),
            SettingSource::Recipe(recipe) => write!(f, "recipe {recipe}"),
            SettingSource::Saved(run) => write!(f, "saved run {}", run.display()),
            SettingSource::Weights(weights) => write!(f, "weights {weights}"),
            SettingSource::File(path) => write!(f, "{}", path.display()),
            SettingSource::Environment => f.write_str("environment"),
            SettingSource::CommandLine => f.write_str("command line"),
        }
    }
}

/// Why a configuration was refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A value that is not allowed.
    #[error("{what}: {reason}")]
    Value {
        /// Setting and value, as the user wrote them.
        what: String,
        /// What is allowed instead.
        reason: String,
    },
    /// A name that is not a setting.
    #[error("unknown {kind} {name} {place}{}", did_you_mean(nearest))]
    Unknown {
        /// `key` or `variable`.
        kind: &'static str,
        /// The name.
        name: String,
        /// Where the name occurs.
        place: String,
        /// The setting with the most similar name, if one is similar.
        nearest: Option<String>,
    },
    /// A word of another tool that is not a setting here.
    #[error("{word} {place}: {answer}")]
    Foreign {
        /// The word.
        word: String,
        /// Where the word occurs.
        place: String,
        /// What to give instead, or why there is no equivalent.
        answer: &'static str,
    },
    /// A file that is not TOML, or cannot be read.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A value that contradicts the run to be resumed.
    #[error("{what}: the run in {run} was started with {saved}, which cannot change; leave it out, or start a new run")]
    Contradiction {
        /// Setting and value, as the user wrote them.
        what: String,
        /// The run folder.
        run: String,
        /// The run's own value.
        saved: String,
    },
}

impl ConfigError {
    /// A value of a configuration in code that is not allowed.
    pub(crate) fn setting(config: &RunConfig, name: &str, reason: String) -> Self {
        let text = config.get(name).unwrap_or_default();
        ConfigError::Value { what: format!("{name} {}", one_line(&text)), reason }
    }

    pub(super) fn value(setting: &Setting, text: &str, source: &SettingSource, reason: String) -> Self {
        ConfigError::Value { what: source.describe(setting, &one_line(text)), reason }
    }
}

/// Values come from users: a line break must not break the message in two.
fn one_line(text: &str) -> String {
    if text.is_empty() || text.contains(char::is_control) { format!("{text:?}") } else { text.to_owned() }
}

pub(super) fn unknown_key(name: &str, place: &str) -> ConfigError {
    if let Some(answer) = answer(name) {
        return ConfigError::Foreign { word: name.to_owned(), place: place.to_owned(), answer };
    }
    let nearest = nearest(name).map(|setting| setting.name.to_owned());
    ConfigError::Unknown { kind: "key", name: one_line(name), place: place.to_owned(), nearest }
}

pub(super) fn unknown_variable(name: &str) -> ConfigError {
    let place = "in the environment".to_owned();
    let word = name.strip_prefix(VARIABLE_PREFIX).unwrap_or(name);
    if let Some(answer) = answer(word) {
        return ConfigError::Foreign { word: name.to_owned(), place, answer };
    }
    let setting = Setting::spelled(word).or_else(|| nearest(word));
    let nearest = setting.map(Setting::variable);
    ConfigError::Unknown { kind: "variable", name: one_line(name), place, nearest }
}

fn did_you_mean(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or_else(|| "; see enmasse train --help".to_owned(), |name| format!(": did you mean {name}?"))
}
