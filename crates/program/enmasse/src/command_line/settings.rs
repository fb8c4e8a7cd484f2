//! Builds a configuration from the command line, the environment and a file.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use clap::ArgMatches;
use enmasse_device::{Device, DeviceRequest, Summation};
use enmasse_train::{
    DeviceSelection, Devices, LayeredConfig, ProgramConfig, Recomputation, ReducePrecision, RunConfig, Setting,
    SettingKind, SumOrder, TrainConfig,
};
use enmasse_wording::counted;

use crate::command_line::arguments::{DECIDED, given};
use crate::failure::{Failure, usage};
use crate::output::say;
use crate::ranks::automatic::{self, number_of_rank};

/// The recipe of `--pretrained`.
const FINE_TUNE: &str = "fine-tune";
const MAX_PIXELS: usize = 1 << 40;
const MAX_RANKS: usize = 1 << 10;

/// Everything except a saved run: `--config`, then the environment, then the flags of this command, checked together.
pub fn layers(matches: &ArgMatches) -> Result<LayeredConfig, Failure> {
    let mut layers = LayeredConfig::new();
    if let Ok(Some(file)) = matches.try_get_one::<PathBuf>("config") {
        layers.file(file)?;
        layers.remarks().iter().for_each(say);
    }
    layers.environment(std::env::vars_os())?;
    for (name, value) in given(matches) {
        layers.argument(name, &value)?;
    }
    if !is_decided(matches) {
        layers.check_flags()?;
        let RunConfig { train, program } = layers.config();
        // Known weights bring the recipe for them.
        let of_weights = || train.pretrained.is_on().then(|| FINE_TUNE.to_owned());
        let recipe = program.recipe.clone().or_else(of_weights);
        // Only commands with the flag train.
        if let (Some(recipe), Ok(_)) = (recipe, matches.try_get_raw("recipe")) {
            layers.recipe(&recipe)?;
        }
    }
    Ok(layers)
}

/// Whether the flags come from the process that started this rank, which has checked them already.
pub fn is_decided(matches: &ArgMatches) -> bool {
    matches.try_get_one(DECIDED).ok().flatten() == Some(&true)
}

/// The ranks of a command, as far as they are known before its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranks {
    /// One, in this process.
    One,
    /// One for each device of this machine.
    OfMachine,
    /// This process is one of those that a launcher has started, by its number among those of its machine; `speaks` if it tells
    /// the user for all.
    Launched { local_rank: usize, speaks: bool },
}

/// The configuration with the devices of `auto`, which is the default, unless it exceeds every machine: beyond these limits sizes could not even be
/// computed. A launched rank takes its device later: see [`Rank::settle`](crate::ranks::Rank::settle).
pub fn finish(layers: LayeredConfig, ranks: Ranks) -> Result<RunConfig, Failure> {
    let source = layers.source("devices").cloned();
    let given_kind = layers.given_device_kind().map(str::to_owned);
    let mut config = layers.finish()?;
    let batch = config.train.batch.unwrap_or(config.train.global_batch);
    let size = config.train.image_size(None);
    let pixels = size.checked_mul(size).and_then(|pixels| pixels.checked_mul(batch));
    if pixels.is_none_or(|pixels| pixels > MAX_PIXELS) {
        return Err(usage!(
            "--batch {batch} of --size {size}: a batch may have {MAX_PIXELS} pixels at most; use a smaller --batch or --size"
        ));
    }
    let said = |devices: &Devices| {
        let setting = Setting::find("devices").zip(source.as_ref());
        setting.map_or(String::new(), |(setting, source)| source.describe(setting, &devices.to_string()))
    };
    if config.program.devices.is_none() && given_kind.is_none() {
        // A rank that a launcher started, and the default of all others.
        config.program.devices = take(&config, ranks);
    } else {
        take_words(&mut config, ranks)?;
    }
    if is_undecided(&config.program, given_kind.as_deref(), ranks) {
        return Ok(config);
    }
    if let Some(devices) = &config.program.devices {
        let refuse = |why: String| Err(usage!("{}: {why}", said(devices)));
        if let Err(error) = enmasse::devices::find(&devices.kind) {
            return refuse(error.to_string());
        }
        if devices.count() > MAX_RANKS {
            return refuse(format!("one machine hosts at most {MAX_RANKS} ranks"));
        }
        if let (Some(why), Ranks::One | Ranks::OfMachine) = (too_few(devices), ranks) {
            return refuse(why);
        }
    }
    // If the device refuses, it does so here, before anything is read or written. Numbered devices are opened by the ranks that
    // use them, and by no other process, since opening takes some of their memory.
    let is_shared = ranks != Ranks::One && enmasse::devices::count(kind(&config.program)).is_some();
    let is_another_ranks =
        matches!(ranks, Ranks::Launched { .. }) || config.program.devices.as_ref().is_some_and(|d| d.count() > 1);
    if !(is_shared && is_another_ranks) {
        device(&config, alone())?;
    }
    Ok(config)
}

/// Refuses what only a run can decide.
pub fn check_recompute(config: &TrainConfig) -> Result<(), Failure> {
    match config.recompute {
        Recomputation::Auto => {
            Err(usage!("--recompute auto follows from what is free when a run starts; give BYTES or a PERCENT"))
        }
        _ => Ok(()),
    }
}

/// Why the machine cannot give these devices, if they have numbers.
fn too_few(devices: &Devices) -> Option<String> {
    let there = enmasse::devices::count(&devices.kind)?;
    let mask = "CUDA_VISIBLE_DEVICES";
    let visible = counted(there, &format!("visible {}", devices.kind.to_uppercase()));
    let lacking = match &devices.selection {
        DeviceSelection::List(list) | DeviceSelection::Free(_, list) => {
            *list.iter().find(|number| **number >= there)?
        }
        DeviceSelection::Count(count) | DeviceSelection::All(count) => Some(*count).filter(|count| *count > there)? - 1,
    };
    // One device is opened, which tells more.
    (devices.count() > 1).then(|| format!("there is no number {lacking}: this machine has {visible}; check {mask}"))
}

/// Says which GPUs stay idle because the user named CPUs.
pub fn tell_of_idle_devices(layers: &LayeredConfig) {
    let said = match (&layers.config().program.devices, layers.named_devices()) {
        (None, Some(flag)) => flag.to_owned(),
        (Some(devices), flag) if devices.kind == default_kind() => {
            let named = || Setting::find("devices").zip(layers.source("devices"));
            let own = || named().map(|(setting, source)| source.describe(setting, &devices.to_string()));
            flag.map(str::to_owned).or_else(own).unwrap_or_default()
        }
        _ => return,
    };
    automatic::idle_by_request(&said).iter().for_each(say);
}

/// Whether a launched rank has yet to take its device, with the others.
pub fn is_undecided(config: &ProgramConfig, given_kind: Option<&str>, ranks: Ranks) -> bool {
    let leaves_it = config.devices.as_ref().map_or(given_kind.is_none(), Devices::is_undecided);
    leaves_it && matches!(ranks, Ranks::Launched { .. })
}

/// What `auto` takes: GPUs if some pass their self-test, otherwise CPUs as by default, and says which GPUs stay idle.
fn take(config: &RunConfig, ranks: Ranks) -> Option<Devices> {
    let (most, ranks_of_cpus) = match ranks {
        Ranks::One => (1, 1),
        Ranks::OfMachine => (MAX_RANKS, RunConfig::default().program.rank_count(cores())),
        Ranks::Launched { .. } => return config.program.devices.clone(),
    };
    let taken = automatic::of_machine(config, most);
    taken.lines.iter().for_each(say);
    Some(match taken.devices {
        Some((kind, numbers)) => Devices::taken(kind, DeviceSelection::List(numbers)),
        None => Devices::taken(default_kind(), DeviceSelection::Count(ranks_of_cpus)),
    })
}

/// Puts devices in the place of words.
fn take_words(config: &mut RunConfig, ranks: Ranks) -> Result<(), Failure> {
    let Some(devices) = config.program.devices.clone() else { return Ok(()) };
    if devices.is_undecided() {
        config.program.devices = take(config, ranks);
        return Ok(());
    }
    let kind = devices.kind.clone();
    if let DeviceSelection::Free(wanted, _) = devices.selection {
        let idle = match enmasse::devices::idle(&kind) {
            Some(idle) if idle.len() >= wanted => idle.into_iter().take(wanted).collect(),
            found => return Err(usage!("--devices {devices}: {}", too_few_idle(found, &kind))),
        };
        config.program.devices = Some(Devices { selection: DeviceSelection::Free(wanted, idle), ..devices });
        return Ok(());
    }
    if matches!(devices.selection, DeviceSelection::All(_)) {
        let count = match (ranks, enmasse::devices::count(&kind)) {
            (Ranks::OfMachine, Some(there)) => there.max(1),
            (Ranks::OfMachine, None) => cores(),
            (Ranks::One | Ranks::Launched { .. }, _) => 1,
        };
        config.program.devices = Some(Devices { kind, selection: DeviceSelection::All(count), ..devices });
    }
    Ok(())
}

/// Why there are not enough idle devices of a kind.
fn too_few_idle(idle: Option<Vec<usize>>, kind: &str) -> String {
    let Some(idle) = idle else {
        return format!("which devices of kind {kind} are idle is not known here; name them, or set their number");
    };
    let there = enmasse::devices::count(kind).unwrap_or(0);
    format!("programs compute on all but {} of the {there} visible; wait for them, or set fewer", idle.len())
}

/// The default kind of device.
pub fn default_kind() -> &'static str {
    enmasse::devices::KINDS[0].name
}

/// The kind of device in a configuration; CPUs if it names none.
pub fn kind(config: &ProgramConfig) -> &str {
    config.devices.as_ref().map_or(default_kind(), |devices| &devices.kind)
}

/// The kind of device on which one rank computes here with these settings, which are not finished.
pub fn kind_here(config: &RunConfig, given_kind: Option<&str>) -> String {
    match &config.program.devices {
        Some(devices) if !devices.is_undecided() => devices.kind.clone(),
        None if given_kind.is_some() => default_kind().to_owned(),
        _ => automatic::of_machine(config, 1).devices.map_or(default_kind(), |(kind, _)| kind).to_owned(),
    }
}

/// One device of the default kind.
pub fn default_device() -> Devices {
    Devices::new(default_kind(), 1)
}

/// The device of a rank with this place on its machine.
pub fn device(config: &RunConfig, place: DeviceRequest) -> Result<Arc<dyn Device>, Failure> {
    let ordinal = config.program.devices.as_ref().and_then(|devices| {
        // More ranks than devices, which the user lets share them.
        let shared = || number_of_rank(enmasse::devices::count(&devices.kind)?, place.local_rank, true);
        devices
            .ordinal(place.local_rank)
            .or_else(|| (devices.automatic && config.program.share_devices).then(shared)?)
    });
    let request = request(config, DeviceRequest { ordinal, ..place });
    enmasse::devices::open(kind(&config.program), &request).map_err(Failure::usage)
}

/// A place with the user's choices of how to compute.
fn request(config: &RunConfig, place: DeviceRequest) -> DeviceRequest {
    let summation = match (config.program.sum, config.train.reduce_precision) {
        (SumOrder::Tree, _) => Summation::Tree,
        (SumOrder::Auto, ReducePrecision::Bf16) => Summation::Bf16,
        (SumOrder::Auto, ReducePrecision::F16) => Summation::F16,
        (SumOrder::Auto, ReducePrecision::F32) => Summation::Library,
    };
    DeviceRequest { isa: config.program.isa.clone(), exact: config.train.exact, summation, ..place }
}

/// The place of the only rank of a machine, which computes with one thread.
pub fn alone() -> DeviceRequest {
    DeviceRequest { threads: vec![1], ..DeviceRequest::default() }
}

/// Processor cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The flags that give a rank these values of `config`; a rank is one device.
pub fn rank_flags(
    config: &RunConfig,
    settings: impl IntoIterator<Item = &'static Setting>,
) -> impl Iterator<Item = OsString> {
    settings.into_iter().filter_map(|setting| {
        let value = match setting.name {
            "devices" => config.program.devices.as_ref().map_or_else(default_device, Devices::of_ranks).argument(),
            name => config.get(name)?,
        };
        // An empty list was not given by the user.
        (setting.kind != SettingKind::List || !value.is_empty()).then(|| format!("{}={value}", setting.flag()).into())
    })
}
