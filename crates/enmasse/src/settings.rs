//! From the command line, the environment and a file to a configuration.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ArgMatches;
use enmasse_train::{Kind, LayeredConfig, Setting, TrainConfig};

use crate::arguments::given;
use crate::failure::Failure;

/// Everything but a saved run: `--config`, then the environment, then the flags of this command.
pub fn layers(matches: &ArgMatches) -> Result<LayeredConfig, Failure> {
    let mut layers = LayeredConfig::new();
    if let Ok(Some(file)) = matches.try_get_one::<PathBuf>("config") {
        layers.file(file)?;
    }
    layers.environment(std::env::vars_os())?;
    for (name, value) in given(matches) {
        layers.argument(name, &value)?;
    }
    Ok(layers)
}

/// Processor cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The flags that give a rank these values of `config`; a rank is one device.
pub fn rank_flags<'a>(
    config: &'a TrainConfig,
    settings: impl IntoIterator<Item = &'a Setting>,
) -> impl Iterator<Item = OsString> {
    settings.into_iter().filter_map(|setting| {
        let value = match setting.name {
            "devices" => "cpu:1".to_owned(),
            name => config.get(name)?,
        };
        // An empty list is one that nobody gave.
        (setting.kind != Kind::List || !value.is_empty()).then(|| format!("{}={value}", setting.flag()).into())
    })
}
