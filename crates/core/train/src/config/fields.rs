//! The fields of a configuration by the names of their settings, as text and as TOML.

use super::value::Inspection;
use super::{ConfigError, RunConfig, SETTINGS, Setting, SettingSource, TrainConfig, error, layers};

impl RunConfig {
    /// Sets a field, by name, from text. Lists are separated by commas and replace the previous value; switches take
    /// `true` or `false`.
    ///
    /// # Errors
    /// There is no such field, or the text is none of its values. The error says which are allowed.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), ConfigError> {
        let setting = Setting::find(name).ok_or_else(|| error::unknown_key(name, "in the configuration"))?;
        self.assign(setting, text, &SettingSource::Default)
    }

    /// A field as text, in the form that [`RunConfig::set`] takes; `None` for an unknown name or if the program chooses.
    pub fn get(&self, name: &str) -> Option<String> {
        self.inspect(Setting::find(name)?).text
    }

    /// Every setting that has a value as TOML, one per line in the order of [`SETTINGS`].
    pub fn to_toml(&self) -> String {
        SETTINGS.iter().filter_map(|s| self.inspect(s).toml.map(|value| format!("{} = {value}\n", s.name))).collect()
    }

    /// Reads the output of [`RunConfig::to_toml`]; missing keys have their defaults.
    ///
    /// # Errors
    /// The text is not TOML, has a key that is no setting, or a value that is not allowed.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let mut config = RunConfig::default();
        for (setting, value) in layers::toml_settings(text, "the configuration")? {
            config.assign(setting, &value, &SettingSource::Default)?;
        }
        Ok(config)
    }

    /// Parses `text` into the field of a setting. The error names the source of the text.
    pub(super) fn assign(&mut self, setting: &Setting, text: &str, source: &SettingSource) -> Result<(), ConfigError> {
        let parsed = self.train.parse(setting, text).or_else(|| self.program.parse(setting, text));
        let parsed = parsed.unwrap_or_else(|| Err("is not a setting".to_owned()));
        parsed.map_err(|reason| ConfigError::value(setting, text, source, reason))
    }

    /// Sets the field of a setting to the value that it has in `other`.
    pub(super) fn take(&mut self, setting: &Setting, other: &RunConfig) {
        self.train.take(setting, &other.train);
        self.program.take(setting, &other.program);
    }

    pub(super) fn inspect(&self, setting: &Setting) -> Inspection {
        self.train.inspect(setting).or_else(|| self.program.inspect(setting)).unwrap_or_default()
    }
}

impl TrainConfig {
    /// Sets a field, by name, from text, as [`RunConfig::set`] does.
    ///
    /// # Errors
    /// Those of [`RunConfig::set`], or the setting is one of the program.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), ConfigError> {
        let setting = Setting::find(name).ok_or_else(|| error::unknown_key(name, "in the configuration"))?;
        let parsed = self.parse(setting, text).unwrap_or_else(|| {
            Err("a trainer does not obey it: it is given a device and a group, and a callback prints".to_owned())
        });
        parsed.map_err(|reason| ConfigError::value(setting, text, &SettingSource::Default, reason))
    }
}
