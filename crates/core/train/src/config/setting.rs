//! What is known of a setting besides its value: its names, its help, its type, and whether a resumed run keeps it.

use std::fmt;

use super::value::SettingValue;
use super::{Range, RunConfig, SETTINGS, SettingKind};

/// What the environment variables of all settings begin with.
pub(super) const VARIABLE_PREFIX: &str = "ENMASSE_";

/// Whether a setting's value is kept when a run is resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Taken from the saved run, unless given again.
    Run,
    /// Taken from the saved run. Giving another value is an error, since model, first weights and split cannot
    /// change within a run.
    Fixed,
    /// Belongs to one invocation, and is not taken from the saved run.
    Invocation,
    /// Found by the program, and kept with the run. No flag gives it.
    Found,
}

/// The section of the help that a setting belongs to. Its heading is the name here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingGroup {
    /// Images, and how they reach the model.
    Data,
    /// The model and its parameters.
    Model,
    /// Steps, epochs, optimiser.
    Training,
    /// Ranks, and how they compute.
    Devices,
    /// The run folder, and what a run prints.
    Output,
}

impl fmt::Display for SettingGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The definition of one setting.
#[derive(Debug)]
pub struct Setting {
    /// Key in TOML, field of [`TrainConfig`](super::TrainConfig) or [`ProgramConfig`](super::ProgramConfig): words joined by `_`.
    pub name: &'static str,
    /// Its section of the help.
    pub group: SettingGroup,
    /// A few words, for the short help of the command line.
    pub summary: &'static str,
    /// Sentences that continue the summary in the long help; may be empty.
    pub details: &'static str,
    /// The value that holds if the user gives none, for a setting whose default the program chooses; may be empty.
    pub default_words: &'static str,
    /// The placeholder of the value in the help, such as `PIXELS`. Empty for a switch.
    pub placeholder: &'static str,
    /// The type of the value.
    pub kind: SettingKind,
    /// The allowed numbers.
    pub range: Range,
    /// Whether the value is kept on resume.
    pub scope: Scope,
}

impl Setting {
    /// The flag: `--sync-bn`.
    pub fn flag(&self) -> String {
        format!("--{}", self.name.replace('_', "-"))
    }

    /// The environment variable: `ENMASSE_SYNC_BN`.
    pub fn variable(&self) -> String {
        format!("{}{}", VARIABLE_PREFIX, self.name.to_ascii_uppercase())
    }

    /// The setting with this name; `-` and `_` are equivalent.
    pub fn find(name: &str) -> Option<&'static Setting> {
        let name = name.replace('-', "_");
        SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// The setting's default as text; `None` if the program chooses.
    pub fn default_text(&self) -> Option<String> {
        RunConfig::default().get(self.name)
    }
}

/// Reads the text of a setting, and checks it.
pub(super) fn parse<T: SettingValue>(setting: &Setting, text: &str) -> Result<T, String> {
    let value = T::parse(text).map_err(|reason| match setting.range.to_string() {
        range if range.is_empty() || matches!(setting.kind, SettingKind::Choice(_)) => reason + advice(setting, text),
        range => format!("{reason}, {range}"),
    })?;
    value.check(&setting.range)?;
    Ok(value)
}

/// What follows the choices where a word of other tools means something like one of them.
fn advice(setting: &Setting, text: &str) -> &'static str {
    match (setting.name, text.to_ascii_lowercase().as_str()) {
        ("optimizer", "adam") => "; adamw is adam whose weight decay is no part of the gradient",
        ("strategy", "fsdp" | "deepspeed" | "zero") => {
            "; zero1 cuts the optimiser's state, and every rank holds the model"
        }
        _ => "",
    }
}
