//! From the command line, the environment and a file to a configuration.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ArgMatches;
use enmasse_cpu::Isa;
use enmasse_train::{DEFAULT_GLOBAL_BATCH, Devices, Kind, LayeredConfig, Setting, TrainConfig};

use crate::arguments::given;
use crate::failure::Failure;

const MOST_PIXELS: usize = 1 << 40;
const MOST_RANKS: usize = 1 << 10;

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

/// The configuration, unless it asks for more than any machine has: beyond this, sizes could not even be computed with.
pub fn finish(layers: LayeredConfig) -> Result<TrainConfig, Failure> {
    let config = layers.finish()?;
    let batch = config.batch.unwrap_or(DEFAULT_GLOBAL_BATCH);
    let size = config.picture_size(None);
    let pixels = size.checked_mul(size).and_then(|pixels| pixels.checked_mul(batch));
    if pixels.is_none_or(|pixels| pixels > MOST_PIXELS) {
        return Err(Failure::Usage(format!(
            "--batch {batch} of --size {size}: a batch may have {MOST_PIXELS} pixels at most; use a smaller --batch or --size"
        )));
    }
    isa(&config)?;
    match config.devices {
        Some(Devices::Cpu(ranks)) if ranks > MOST_RANKS => {
            Err(Failure::Usage(format!("--devices cpu:{ranks}: one machine hosts {MOST_RANKS} ranks at most")))
        }
        _ => Ok(config),
    }
}

/// The instruction-set level that `--isa` names, or the machine's best.
pub fn isa(config: &TrainConfig) -> Result<Isa, Failure> {
    let (best, Some(name)) = (Isa::detect(), &config.isa) else { return Ok(Isa::detect()) };
    match Isa::ALL.into_iter().find(|isa| isa.name() == name) {
        Some(isa) if isa.available() => Ok(isa),
        Some(isa) => Err(Failure::Usage(format!("--isa {isa}: this machine has no {isa}; its best is --isa {best}"))),
        None => {
            let names = Isa::ALL.map(Isa::name).join(" or ");
            Err(Failure::Usage(format!("--isa {}: must be {names}", name.escape_default())))
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_by_name() {
        let check = |name: &str| {
            let mut config = TrainConfig::default();
            config.set("isa", name).unwrap();
            isa(&config)
        };
        let help = Setting::find("isa").map_or("", |setting| setting.help);
        for level in Isa::ALL {
            assert!(help.contains(level.name()), "{help}");
            let lacking = format!("--isa {level}: this machine has no {level}; its best is --isa {}", Isa::detect());
            let expected = if level.available() { Ok(level) } else { Err(Failure::Usage(lacking)) };
            assert_eq!(check(level.name()), expected);
        }
        assert_eq!(isa(&TrainConfig::default()), Ok(Isa::detect()));
        for unknown in ["sse2", "AVX2", "avx\n"] {
            let Err(Failure::Usage(line)) = check(unknown) else { panic!("{unknown} is taken") };
            assert!(line.contains("must be portable or avx2") && line.lines().count() == 1, "{line}");
        }
    }
}
