//! `enmasse bench scaling`: the speed of training on one device, and on more of them, in one table.
//!
//! Each row is a training run of its own by the usual trainer, with ranks of the usual kind. The first rank leaves what it
//! measured in a file, since ranks may be other processes.

mod measure;
mod simulate;
mod table;

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command};
use enmasse_charts::{ScalingRow, scaling};
use enmasse_files::write_whole;
use enmasse_train::{DeviceSelection, Devices, LayeredConfig, Setting, Source, TrainConfig};

use crate::arguments::{DECIDED, count, data, path, settings_with};
use crate::failure::Failure;
use crate::interrupt::Interrupts;
use crate::launched::Launched;
use crate::output::Output;
use crate::ranks;
use crate::settings::{self, Ranks, cores};
use measure::{Measured, Workload};
use simulate::Cluster;
use table::Row;

/// The settings that apply to all rows.
const SETTINGS: &[&str] = &[
    "model",
    "size",
    "batch",
    "devices",
    "share_devices",
    "ranks",
    "threads",
    "loader_threads",
    "precision",
    "isa",
    "exact",
    "timeout",
    "heartbeat",
    "json",
];

/// Where a rank leaves what it measured.
const RESULT: &str = "result";

/// The setting in which rows differ. Users get both of its values.
const SYNC_BN: &str = "sync_bn";

const USUAL: &[(&str, &str)] = &[
    ("size", "that of DATA; without DATA 64"),
    ("batch", "64"),
    ("threads", "the devices share the cores, also in rows with fewer devices"),
    ("loader_threads", "the devices share the cores, also in rows with fewer devices"),
];

const DETAILS: &str = "\
The rows are one device, then data parallelism (ddp) over 2, 4, 8, ... and all devices, each without and with SyncBatchNorm if \
the model has batch norm. --batch is that of a device, so the global batch grows with their number. A device of a CPU is a share \
of its cores, which is the same in all rows.

Waits are shares of the time: the mean over ranks for gradients, the longest of a rank for pictures. Memory is that of a rank.";

const SIMULATE: &str = "\
Measure one device, and predict a cluster: nodes=N,gpus=N,link=RATE,bus=RATE,latency=TIME. The rows after the first are then \
arithmetic: the measured time of each instruction, the sums of gradients that run beside them, and the links that carry these. \
link is the rate between nodes, such as 25Gbit; bus that between devices of a node, such as 50GB; latency is 20us unless given. \
Waits for slow ranks, and batch norm over all devices, are no part of it";

pub fn command() -> Command {
    Command::new("scaling")
        .about("Compare one device with several: speed, efficiency, waits, memory")
        .after_long_help(DETAILS)
        .args(data().into_iter().map(|arg| match arg.get_id() == "data" {
            true => {
                arg.help("Pictures to train on, like that of train [default: synthetic ones]").long_help(None::<&str>)
            }
            false => arg,
        }))
        .args(settings_with(SETTINGS, USUAL))
        .arg(count("steps", "N", "Steps of a row to time, after as many to warm up").default_value("10"))
        .arg(Arg::new("svg").long("svg").value_name("FILE").value_parser(path).help("Draw the rows as an SVG file"))
        .arg(
            Arg::new("simulate")
                .long("simulate")
                .value_name("CLUSTER")
                .value_parser(Cluster::parse)
                .help("Measure one device, and predict a cluster: nodes=N,gpus=N,link=RATE,bus=RATE,latency=TIME")
                .long_help(SIMULATE),
        )
        .arg(Arg::new(RESULT).long(RESULT).value_parser(path).hide(true))
        .args(settings_with(&[SYNC_BN], &[]).into_iter().map(|arg| arg.hide(true)))
        .arg(Arg::new(DECIDED).long(DECIDED).action(clap::ArgAction::SetTrue).hide(true))
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let layers = settings::layers(matches)?;
    let steps = matches.get_one("steps").copied().unwrap_or(1);
    let launched = Launched::from_environment(&layers)?;
    match (launched, matches.get_one::<PathBuf>(RESULT)) {
        (Some(launched), Some(result)) => join(&launched, layers, steps, result),
        (Some(_), None) => Err(Failure::Usage(
            "bench scaling starts its own ranks, but this process is a rank of a job; run it outside of the job"
                .to_owned(),
        )),
        (None, _) => host(matches, layers, steps),
    }
}

/// One rank of a row.
fn join(launched: &Launched, layers: LayeredConfig, steps: usize, result: &Path) -> Result<(), Failure> {
    let speaks = launched.place.rank == 0;
    let ranks = Ranks::Launched { local_rank: launched.place.local_rank, speaks };
    let mut config = settings::finish(layers, ranks)?;
    let one = config.devices.unwrap_or_else(|| Devices::new(settings::usual_kind(), 1));
    config.devices = Some(one.of_run(launched.place.world_size));
    let workload = Workload::open(config, steps)?;
    ranks::as_rank(launched, workload.config(), None, |rank| workload.measure(rank, result))
}

/// Measures all rows, and prints them.
fn host(matches: &ArgMatches, layers: LayeredConfig, steps: usize) -> Result<(), Failure> {
    if layers.source(SYNC_BN) == Some(&Source::CommandLine) {
        return Err(Failure::Usage("--sync-bn: there are rows with and without it; leave it out".to_owned()));
    }
    let mut config = settings::finish(layers, Ranks::OfMachine)?;
    let most = config.rank_count(cores());
    let devices = config.devices.clone().unwrap_or_else(|| Devices::new(settings::usual_kind(), most));
    // A device is the same in all rows.
    config.batch = Some(config.batch_per_shard(1));
    config.threads = Some(config.threads_of_rank(cores(), 0, most));
    config.loader_threads = Some(config.loader_threads_of_rank(cores(), 0, most));
    let workload = Workload::open(config, steps)?;
    let mut output = Output::new(workload.config().json);
    let rows = match matches.get_one("simulate") {
        Some(cluster) => predict(&workload, &devices, cluster, steps, &mut output)?,
        None => {
            let mut rows: Vec<Row> = Vec::new();
            for (count, sync_bn) in plan(most, workload.has_batch_norm()?) {
                let row = measure(&workload, &devices, Row::begin(count, sync_bn), steps, rows.first(), &mut output)?;
                rows.push(row);
            }
            rows
        }
    };
    if !output.is_json() {
        output.text(workload.describe());
        output.text(table::text(&rows));
        if matches.contains_id("simulate") {
            output.text("The rows after the first are predicted.");
        }
    }
    if let Some(path) = matches.get_one::<PathBuf>("svg") {
        let names: Vec<String> = rows.iter().map(Row::to_string).collect();
        let bars = rows.iter().zip(&names).map(|(row, name)| row.bar(name));
        let svg = scaling(&workload.describe(), &bars.collect::<Vec<ScalingRow>>());
        write_whole(path, |file| file.write_all(svg.as_bytes())).map_err(Failure::error)?;
    }
    output.finish()
}

/// Measures a row, next to that of one device.
fn measure(
    workload: &Workload,
    devices: &Devices,
    row: Row,
    steps: usize,
    single: Option<&Row>,
    output: &mut Output,
) -> Result<Row, Failure> {
    output.fact(format_args!("measuring {row}"));
    let (count, folder) = (row.devices(), Folder::new()?);
    let selected = first(devices, count);
    let workload =
        workload.with(TrainConfig { devices: Some(selected), sync_bn: row.sync_bn(), ..workload.config().clone() });
    let result = folder.0.join("row.json");
    let command = || command_line(&workload, steps, &result);
    let interrupts = Some(Interrupts::watch()?);
    ranks::host(count, workload.config(), None, command, interrupts, |rank| workload.measure(rank, &result))?;
    let row = row.end(Measured::read(&result)?, single);
    output.json(row.json());
    Ok(row)
}

/// Measures one device, and predicts the sizes of a cluster up to its own.
fn predict(
    workload: &Workload,
    devices: &Devices,
    cluster: &Cluster,
    steps: usize,
    output: &mut Output,
) -> Result<Vec<Row>, Failure> {
    let single = measure(workload, devices, Row::begin(1, false), steps, None, output)?;
    let timeline = workload.timeline(&first(devices, 1), steps, single.measured())?;
    let predicted = cluster.sizes().into_iter().map(|size| {
        let batch = workload.config().batch_per_shard(1) * size.device_count();
        let row = Row::begin(size.device_count(), false).predict(&timeline.run(&size), batch, &single);
        output.json(row.json());
        row
    });
    let predicted: Vec<Row> = predicted.collect();
    Ok([vec![single], predicted].concat())
}

/// Devices, and whether their batch norm is synchronised: of each row, in order.
fn plan(most: usize, has_batch_norm: bool) -> Vec<(usize, bool)> {
    let doubled = std::iter::successors(Some(2), |count| Some(count * 2)).take_while(|count| *count < most);
    let counts = doubled.chain((most > 1).then_some(most));
    let several = counts.flat_map(|count| [(count, false), (count, true)]);
    std::iter::once((1, false)).chain(several.filter(|(_, sync_bn)| has_batch_norm || !sync_bn)).collect()
}

/// The first `count` of these devices.
fn first(devices: &Devices, count: usize) -> Devices {
    let selection = match &devices.selection {
        DeviceSelection::Count(_) | DeviceSelection::All(_) => DeviceSelection::Count(count),
        DeviceSelection::Free(_, list) | DeviceSelection::List(list) => {
            DeviceSelection::List(list.iter().copied().take(count).collect())
        }
    };
    Devices { selection, automatic: false, ..devices.clone() }
}

/// The arguments of a rank.
fn command_line(workload: &Workload, steps: usize, result: &Path) -> Vec<OsString> {
    let mut arguments: Vec<OsString> =
        vec!["bench".into(), "scaling".into(), format!("--{DECIDED}").into(), format!("--steps={steps}").into()];
    let names = SETTINGS.iter().chain([&SYNC_BN]).filter_map(|name| Setting::find(name));
    arguments.extend(settings::rank_flags(workload.config(), names));
    arguments.extend([format!("--{RESULT}").into(), result.into()]);
    if let Some(data) = &workload.config().data {
        arguments.extend(["--".into(), data.into()]);
    }
    arguments
}

/// A folder for the time of the measurement.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("enmasse-scaling-{}", std::process::id()));
        let failed = |error| Failure::Error(format!("cannot create {}: {error}", path.display()));
        fs::create_dir(&path).map_err(failed)?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The system clears its folder for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_number_of_devices() {
        let check = |most: usize, has_batch_norm: bool, expected: &[(usize, bool)]| {
            assert_eq!(plan(most, has_batch_norm), expected, "{most}");
        };
        check(1, true, &[(1, false)]);
        check(2, false, &[(1, false), (2, false)]);
        check(2, true, &[(1, false), (2, false), (2, true)]);
        check(6, false, &[(1, false), (2, false), (4, false), (6, false)]);
        check(8, false, &[(1, false), (2, false), (4, false), (8, false)]);
    }

    #[test]
    fn rows_take_the_first_devices() {
        let check = |devices: &str, count: usize, expected: &str| {
            let mut config = TrainConfig::default();
            config.set("devices", devices).unwrap();
            assert_eq!(first(&config.devices.unwrap(), count).to_string(), expected);
        };
        check("cpu:4", 2, "cpu:2");
        check("gpu:all", 1, "gpu:1");
        check("gpu:3,1,0", 2, "gpu:3,1");
        check("gpu:3,1,0", 1, "gpu:3,");
    }
}
