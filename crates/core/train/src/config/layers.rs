//! Defaults < recipe < saved run < weights < configuration file < environment < command line, with the source of each value kept.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::colossal;
use super::error::{unknown_key, unknown_variable};
use super::recipe::{self, Recipe};
use super::setting::VARIABLE_PREFIX;
use super::{ConfigError, Devices, RunConfig, SETTINGS, Scope, Setting, SettingSource};
use crate::RunPaths;

/// Variables with our prefix that are not settings: they pass between launcher and ranks, name locations, or are for tests.
const INTERNAL_VARIABLES: &str = "\
    ENMASSE_CUDA_LIBRARIES ENMASSE_MPI_LIBRARY ENMASSE_CACHE ENMASSE_JOB ENMASSE_JOIN_TIMEOUT \
    ENMASSE_TOKEN ENMASSE_TOKEN_FD ENMASSE_TOKEN_FILE ENMASSE_STORE_FD ENMASSE_CAUSE_FD ENMASSE_SPAWNED \
    ENMASSE_TEST_ALL ENMASSE_TEST_CUDA ENMASSE_TEST_GPU ENMASSE_TEST_WITHOUT ENMASSE_TEST_PYTHON ENMASSE_TEST_S3 ENMASSE_TEST_WEIGHTS \
    ENMASSE_TEST_BROWSER ENMASSE_TEST_LOGGERS ENMASSE_TEST_NOTEBOOK \
    ENMASSE_TEST_FAULTS";

/// Whether a variable with our prefix is known, but no setting.
pub fn is_internal(variable: &str) -> bool {
    INTERNAL_VARIABLES.split(' ').any(|internal| internal == variable)
}

/// A configuration under construction. The layers may come in any order: a value is replaced only by one from a higher
/// source, or by a later one from the same source.
///
/// ```
/// use enmasse_train::LayeredConfig;
/// let mut layers = LayeredConfig::new();
/// layers.argument("batch", "16")?;
/// layers.environment([("ENMASSE_BATCH".into(), "32".into()), ("ENMASSE_EPOCHS".into(), "5".into())])?;
/// let config = layers.finish()?;
/// assert_eq!((config.train.batch, config.train.epochs), (Some(16), 5));
/// # Ok::<(), enmasse_train::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct LayeredConfig {
    config: RunConfig,
    /// By the names of settings; a setting that is not there has its default.
    sources: HashMap<&'static str, SettingSource>,
    /// What the command line says of the kind of devices alone.
    device_kind: Option<String>,
    /// What a file of another tool says that has no meaning here.
    remarks: Vec<String>,
    /// The flag of another name by which the command line names devices.
    device_flag: Option<String>,
    /// The configuration of the run to be resumed, and its folder.
    saved: Option<(SettingSource, RunConfig)>,
}

impl LayeredConfig {
    /// The defaults.
    pub fn new() -> Self {
        LayeredConfig::default()
    }

    /// Adds the configuration of a run to be resumed (its TOML text and folder). Only defaults are below it. Settings
    /// that belong to one invocation are ignored.
    ///
    /// # Errors
    /// The text is not TOML, has a key that is no setting, or a value that is not allowed.
    pub fn saved_run(&mut self, text: &str, folder: &Path) -> Result<(), ConfigError> {
        self.saved = Some(self.begun(text, folder)?);
        Ok(())
    }

    /// The same for a run that ended before its first checkpoint. It starts anew, so nothing of it contradicts other layers.
    ///
    /// # Errors
    /// Those of [`saved_run`](Self::saved_run).
    pub fn begun_run(&mut self, text: &str, folder: &Path) -> Result<(), ConfigError> {
        self.begun(text, folder).map(drop)
    }

    fn begun(&mut self, text: &str, folder: &Path) -> Result<(SettingSource, RunConfig), ConfigError> {
        // The run has what its recipe gave then.
        let defaults = RunConfig::default();
        for setting in SETTINGS {
            if matches!(self.source_of(setting), SettingSource::Recipe(_)) {
                self.config.take(setting, &defaults);
                self.sources.remove(setting.name);
            }
        }
        let source = SettingSource::Saved(folder.to_owned());
        let mut saved = RunConfig::default();
        for (setting, value) in toml_settings(text, &RunPaths::new(folder).config().display().to_string())? {
            if setting.scope != Scope::Invocation {
                assign(&mut saved, setting, &value, &source)?;
                self.apply(setting, &value, source.clone())?;
            }
        }
        Ok((source, saved))
    }

    /// Adds the recipe with this name, or in this file, and those that it extends. Only defaults are below it. A run to be resumed, which is
    /// added later, replaces it.
    ///
    /// # Errors
    /// There is no such recipe, its file cannot be read or is malformed, or a value in it is not allowed.
    pub fn recipe(&mut self, name: &str) -> Result<(), ConfigError> {
        for Recipe { label, settings } in recipe::read(name)? {
            for (setting, value) in settings {
                self.apply(setting, &value, SettingSource::Recipe(label.clone()))?;
            }
        }
        Ok(())
    }

    /// Adds what is known of the weights of this name, above the saved run.
    ///
    /// # Errors
    /// There is no setting `name`, or the value is not allowed.
    pub fn weights(&mut self, weights: &str, name: &str, value: &str) -> Result<(), ConfigError> {
        let setting = Setting::find(name).ok_or_else(|| unknown_key(name, "of the weights"))?;
        self.apply(setting, value, SettingSource::Weights(weights.to_owned()))
    }

    /// Adds a TOML file, or a `.py` file of ColossalAI's, above the weights. Relative paths in it are relative to the current directory.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, has a key that is no setting, or a value that is not allowed.
    pub fn file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let text = enmasse_system::files::read_text(path).map_err(|error| ConfigError::File {
            path: path.display().to_string(),
            reason: format!("cannot read the configuration: {error}"),
        })?;
        if path.extension().is_some_and(|extension| extension == "py") {
            let colossal::Read { settings, remarks } = colossal::read(&text, &path.display().to_string())?;
            for (name, value, key) in settings {
                let setting = Setting::find(name).ok_or_else(|| unknown_key(&key, "in the configuration"))?;
                self.apply(setting, &value, SettingSource::File(path.to_owned()))?;
            }
            self.remarks.extend(remarks.into_iter().map(|remark| format!("{}: {remark}", path.display())));
            return Ok(());
        }
        for (setting, value) in toml_settings(&text, &path.display().to_string())? {
            self.apply(setting, &value, SettingSource::File(path.to_owned()))?;
        }
        Ok(())
    }

    /// A line for each key of a file of another tool that has no meaning here.
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Adds the environment, above the file.
    ///
    /// # Errors
    /// A variable that begins with `ENMASSE_` is no setting's, is not text in UTF-8, or has a value that is not
    /// allowed.
    pub fn environment(
        &mut self,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<(), ConfigError> {
        for (name, value) in variables {
            let name = name.to_string_lossy();
            if !name.starts_with(VARIABLE_PREFIX) || is_internal(&name) {
                continue;
            }
            let setting =
                SETTINGS.iter().find(|setting| setting.variable() == name).ok_or_else(|| unknown_variable(&name))?;
            self.apply(setting, &utf8(setting, &value, &SettingSource::Environment)?, SettingSource::Environment)?;
        }
        Ok(())
    }

    /// Adds a flag, above everything else. A repeatable flag's occurrences are joined by commas.
    ///
    /// # Errors
    /// There is no such setting, or the value is not allowed.
    pub fn argument(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        let setting = Setting::find(name).ok_or_else(|| unknown_key(name, "on the command line"))?;
        self.apply(setting, value, SettingSource::CommandLine)
    }

    /// Adds the kind of devices alone, above everything else: as many devices of this kind take the place of those that any source
    /// names. Where their number is not known, the default does.
    pub fn device_kind(&mut self, kind: &str) {
        self.device_kind = Some(kind.to_owned());
        self.config.program.devices = self.config.program.devices.take().and_then(|devices| devices.on(kind));
    }

    /// What [`LayeredConfig::device_kind`] added.
    pub fn given_device_kind(&self) -> Option<&str> {
        self.device_kind.as_deref()
    }

    /// Keeps the words of a flag of another name that gives the devices, unless one did before.
    pub fn name_devices(&mut self, flag: String) {
        self.device_flag.get_or_insert(flag);
    }

    /// What [`LayeredConfig::name_devices`] keeps.
    pub fn named_devices(&self) -> Option<&str> {
        self.device_flag.as_deref()
    }

    /// Every setting as TOML, a line each, with the source of its value as a comment. Those without a value are comments.
    pub fn to_toml(&self) -> String {
        let line = |setting: &Setting| match self.config.inspect(setting).toml {
            Some(value) => {
                let text = format!("{} = {value}", setting.name);
                format!("{text:<40} # {}\n", self.source_of(setting))
            }
            None => {
                let words = if setting.default_words.is_empty() { "none" } else { setting.default_words };
                format!("# {}: {words}\n", setting.name)
            }
        };
        SETTINGS.iter().map(line).collect()
    }

    /// The configuration so far. It has `out` and `resume`, for example, which locate a saved run.
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// The source of a setting's value; `None` for an unknown name.
    pub fn source(&self, name: &str) -> Option<&SettingSource> {
        let setting = Setting::find(name)?;
        Some(self.sources.get(setting.name).unwrap_or(&SettingSource::Default))
    }

    /// The configuration, checked as a whole and against the saved run. The warm-up of a recipe takes no more epochs than the run has.
    ///
    /// # Errors
    /// A value is out of range, does not go with another, or contradicts the saved run. The error names its source.
    pub fn finish(mut self) -> Result<RunConfig, ConfigError> {
        if matches!(self.source("warmup_epochs"), Some(SettingSource::Recipe(_))) {
            let train = &mut self.config.train;
            let epochs = train.epochs.saturating_sub(train.epochs_of_head());
            train.warmup_epochs = train.warmup_epochs.min(epochs as f64);
        }
        if let Some((SettingSource::Saved(folder), saved)) = &self.saved {
            for setting in SETTINGS.iter().filter(|setting| setting.scope == Scope::Fixed) {
                let given = self.config.get(setting.name);
                let kept = saved.get(setting.name);
                if given != kept {
                    return Err(ConfigError::Contradiction {
                        what: self.source_of(setting).describe(setting, &given.unwrap_or_default()),
                        run: folder.display().to_string(),
                        saved: kept.unwrap_or_else(|| "none".to_owned()),
                    });
                }
            }
        }
        self.config.check_with(|setting| self.source_of(setting))?;
        Ok(self.config)
    }

    fn source_of(&self, setting: &Setting) -> SettingSource {
        self.source(setting.name).cloned().unwrap_or(SettingSource::Default)
    }

    /// Sets the field unless a higher source did. The value is always parsed, so a wrong one is an error even if
    /// another source takes precedence.
    fn apply(&mut self, setting: &'static Setting, text: &str, source: SettingSource) -> Result<(), ConfigError> {
        let mut changed = self.config.clone();
        assign(&mut changed, setting, text, &source)?;
        if let Some(kind) = &self.device_kind {
            changed.program.devices = changed.program.devices.and_then(|devices| devices.on(kind));
        }
        if source.weight() >= self.source_of(setting).weight() {
            self.config = changed;
            self.sources.insert(setting.name, source);
        }
        Ok(())
    }
}

fn assign(config: &mut RunConfig, setting: &Setting, text: &str, source: &SettingSource) -> Result<(), ConfigError> {
    if setting.name == "weights" && text.is_empty() {
        // Scripts that begin with weights by default, as YOLO's do, are told so to begin without.
        config.train.weights = None;
        return Ok(());
    }
    config.assign(setting, text, source)
}

fn utf8(setting: &Setting, value: &OsStr, source: &SettingSource) -> Result<String, ConfigError> {
    value
        .to_str()
        .map(str::to_owned)
        .ok_or_else(|| ConfigError::value(setting, &value.to_string_lossy(), source, "must be UTF-8 text".to_owned()))
}

/// The settings of a TOML text, each with its value as text. `place` is the text's origin.
pub(super) fn toml_settings(text: &str, place: &str) -> Result<Vec<(&'static Setting, String)>, ConfigError> {
    settings_of(&table(text, place)?, place)
}

/// A TOML text, whose origin is `place`.
pub(super) fn table(text: &str, place: &str) -> Result<toml::Table, ConfigError> {
    text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(0, |span| text.get(..span.start).unwrap_or(text).matches('\n').count() + 1);
        // The parser's message may span lines; the first line is enough.
        let reason = format!("line {line} is not TOML: {}", error.message().lines().next().unwrap_or_default());
        ConfigError::File { path: place.to_owned(), reason }
    })
}

/// The settings of a TOML table.
pub(super) fn settings_of(table: &toml::Table, place: &str) -> Result<Vec<(&'static Setting, String)>, ConfigError> {
    let refuse = |reason: String| ConfigError::File { path: place.to_owned(), reason };
    let mut settings: Vec<(&'static Setting, String)> = Vec::with_capacity(table.len());
    let mut keys: Vec<&str> = Vec::with_capacity(table.len());
    for (key, value) in table {
        let is_gpus = key.eq_ignore_ascii_case("gpus");
        let spelled = if is_gpus { Setting::find("devices") } else { Setting::spelled(key) };
        let setting = spelled.ok_or_else(|| unknown_key(key, &format!("in {place}")))?;
        if let Some(earlier) = settings.iter().position(|(known, _)| known.name == setting.name) {
            return Err(refuse(format!("{} is given twice, as {} and as {key}", setting.name, keys[earlier])));
        }
        let text = scalar(value).ok_or_else(|| refuse(format!("{key} must be a string, a number, true or false")))?;
        let value = match is_gpus {
            true => gpus(&text, value.is_array()).map_err(|reason| refuse(format!("{key} = {text}: {reason}")))?,
            false => text,
        };
        settings.push((setting, value));
        keys.push(key);
    }
    Ok(settings)
}

/// The value of `devices` that Lightning's `gpus` means.
fn gpus(text: &str, is_list: bool) -> Result<String, &'static str> {
    // A list of one number is no count.
    match Devices::of_gpus(&format!("{text}{}", if is_list { "," } else { "" })) {
        Some(Some(devices)) => Ok(devices),
        Some(None) => Err("give devices = \"cpu:N\" for N ranks on CPUs"),
        None => Err(Devices::GPUS),
    }
}

/// A TOML value as the text of a setting; arrays of strings, or of numbers, become lists.
fn scalar(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) => Some(value.to_string()),
        toml::Value::Array(items) => {
            let texts = items.iter().all(toml::Value::is_str);
            let numbers = items.iter().all(|item| item.is_integer() || item.is_float());
            (texts || numbers).then(|| items.iter().filter_map(scalar).collect::<Vec<_>>().join(","))
        }
        toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}
