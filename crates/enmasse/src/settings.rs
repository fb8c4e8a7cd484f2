//! Builds a configuration from the command line, the environment and a file.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ArgMatches;
use enmasse_device::{Device, DeviceRequest};
use enmasse_train::{DEFAULT_GLOBAL_BATCH, Devices, Kind, LayeredConfig, Setting, TrainConfig};

use crate::arguments::{DECIDED, given};
use crate::failure::Failure;

const MOST_PIXELS: usize = 1 << 40;
const MOST_RANKS: usize = 1 << 10;

/// Everything except a saved run: `--config`, then the environment, then the flags of this command, checked together.
pub fn layers(matches: &ArgMatches) -> Result<LayeredConfig, Failure> {
    let mut layers = LayeredConfig::new();
    if let Ok(Some(file)) = matches.try_get_one::<PathBuf>("config") {
        layers.file(file)?;
    }
    layers.environment(std::env::vars_os())?;
    for (name, value) in given(matches) {
        layers.argument(name, &value)?;
    }
    if !is_decided(matches) {
        layers.check_flags()?;
    }
    Ok(layers)
}

/// Whether the flags come from the process that started this rank, which has checked them already.
pub fn is_decided(matches: &ArgMatches) -> bool {
    matches.try_get_one(DECIDED).ok().flatten() == Some(&true)
}

/// The configuration, unless it exceeds every machine: beyond these limits sizes could not even be computed.
pub fn finish(layers: LayeredConfig) -> Result<TrainConfig, Failure> {
    let source = layers.source("devices").cloned();
    let config = layers.finish()?;
    let batch = config.batch.unwrap_or(DEFAULT_GLOBAL_BATCH);
    let size = config.picture_size(None);
    let pixels = size.checked_mul(size).and_then(|pixels| pixels.checked_mul(batch));
    if pixels.is_none_or(|pixels| pixels > MOST_PIXELS) {
        return Err(Failure::Usage(format!(
            "--batch {batch} of --size {size}: a batch may have {MOST_PIXELS} pixels at most; use a smaller --batch or --size"
        )));
    }
    if let Some(devices) = &config.devices {
        let said = Setting::find("devices")
            .zip(source)
            .map(|(setting, source)| source.describe(setting, &devices.to_string()));
        let refuse = |why: String| Err(Failure::Usage(format!("{}: {why}", said.unwrap_or_default())));
        if let Err(error) = enmasse_devices::find(&devices.kind) {
            return refuse(error.to_string());
        }
        if devices.count() > MOST_RANKS {
            return refuse(format!("one machine hosts at most {MOST_RANKS} ranks"));
        }
    }
    // If the device refuses, it does so here, before anything is read or written.
    let ranks = config.devices.as_ref().map_or(1, Devices::count);
    device(&config, 0, &vec![1; ranks])?;
    Ok(config)
}

/// The default kind of device.
pub fn usual_kind() -> &'static str {
    enmasse_devices::KINDS[0].name
}

/// The kind of device in a configuration, or the default one.
pub fn kind(config: &TrainConfig) -> &str {
    config.devices.as_ref().map_or(usual_kind(), |devices| &devices.kind)
}

/// One device of the default kind.
fn usual_device() -> Devices {
    Devices::new(usual_kind(), 1)
}

/// The device of the rank at `local_rank`; `threads` has the number of computing threads of each rank that shares its cores.
pub fn device(config: &TrainConfig, local_rank: usize, threads: &[usize]) -> Result<Box<dyn Device>, Failure> {
    let (kind, ordinal) = (kind(config), config.devices.as_ref().and_then(|devices| devices.ordinal(local_rank)));
    let (isa, exact) = (config.isa.clone(), config.exact);
    let request = DeviceRequest { ordinal, threads: threads.to_vec(), local_rank, isa, exact };
    enmasse_devices::open(kind, &request).map_err(|error| Failure::Usage(error.to_string()))
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
            "devices" => config.devices.as_ref().map_or_else(usual_device, Devices::of_ranks).to_string(),
            name => config.get(name)?,
        };
        // An empty list was not given by the user.
        (setting.kind != Kind::List || !value.is_empty()).then(|| format!("{}={value}", setting.flag()).into())
    })
}
