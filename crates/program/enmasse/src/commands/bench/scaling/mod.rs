//! `enmasse bench scaling`: the speed of training on one device, and on more of them, in one table.
//!
//! Each row is a training run of its own by the usual trainer, with ranks of the usual kind. The first rank leaves what it
//! measured in a file, since ranks may be other processes.

mod measure;
mod simulate;
mod table;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command};
use enmasse_charts::{ScalingRow, scaling};
use enmasse_system::files::write_whole;
use enmasse_train::{DeviceSelection, Devices, LayeredConfig, Setting, SettingSource, StrategyKind};

use super::folder::Folder;
use crate::command_line::arguments::{
    DECIDED, SOURCE, count, data, data_as, decided, file, named, option, path, settings_with,
};
use crate::command_line::settings::{self, Ranks, cores};
use crate::failure::{Failure, usage};
use crate::output::{Output, say};
use crate::ranks;
use crate::ranks::interrupt::Interrupts;
use crate::ranks::launched::Launched;
use measure::{RowMeasurement, Workload};
use simulate::Cluster;
use table::{Row, TrainingSetup};

/// The settings that apply to all rows.
const SETTINGS: &str = "\
    model size batch devices share_devices ranks threads loader_threads precision isa exact \
    timeout heartbeat json";

/// Where a rank leaves what it measured.
const RESULT: &str = "result";

/// The settings in which rows differ. Users get all of their values.
const OF_ROWS: &str = "sync_bn strategy";

const DEFAULT: &[(&str, &str)] = &[
    ("size", "that of DATA; without DATA 64"),
    ("batch", "64"),
    ("threads", "the devices share the cores, also in rows with fewer devices"),
    ("loader_threads", "the devices share the cores, also in rows with fewer devices"),
];

const DETAILS: &str = "\
The rows are one device; then DataParallel (dp: one process, whose first device alone updates) and DistributedDataParallel (ddp) \
over 2, 4, 8, ... and all devices, ddp without and with SyncBatchNorm if the model has batch norm. --batch is that of a device, so the global batch grows with their number. A device of a CPU is a share \
of its cores, which is the same in all rows.

Waits are shares of the time: the mean over ranks for gradients, the longest of a rank for images. Memory is that of the first device.";

const SIMULATE: &str = "\
Measure one device, and predict a cluster: nodes=N,gpus=N,link=RATE,bus=RATE,latency=TIME. The rows after the first are then \
arithmetic: the measured time of each instruction, the sums of gradients that run beside them, the statistics that \
SyncBatchNorm exchanges between them, and the links that carry these. \
link is the rate between nodes, such as 25Gbit; bus that between devices of a node, such as 50GB; latency is 20us unless given. \
Waits for slow ranks are no part of it, nor is dp";

pub fn command() -> Command {
    Command::new("scaling")
        .about("Compare one device with several: speed, efficiency, waits, memory")
        .after_long_help(DETAILS)
        .args(data().into_iter().map(|arg| match arg.get_id() == "data" {
            true => data_as("Images to train on [default: synthetic ones]"),
            false => arg,
        }))
        .args(settings_with(&[SETTINGS, SOURCE].join(" "), DEFAULT))
        .arg(count("steps", "N", "Steps of a row to time, after as many to warm up").default_value("10"))
        .arg(file("svg", "Draw the rows as an SVG file"))
        .arg(
            option("simulate", "CLUSTER")
                .value_parser(Cluster::parse)
                .help("Measure one device, and predict a cluster: nodes=N,gpus=N,link=RATE,bus=RATE,latency=TIME")
                .long_help(SIMULATE),
        )
        .arg(Arg::new(RESULT).long(RESULT).value_parser(path).hide(true))
        .args(settings_with(OF_ROWS, &[]).into_iter().map(|arg| arg.hide(true)))
        .arg(decided())
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let layers = settings::layers(matches)?;
    let steps = matches.get_one("steps").copied().unwrap_or(1);
    let launched = Launched::from_environment(&layers)?;
    match (launched, matches.get_one::<PathBuf>(RESULT)) {
        (Some(launched), Some(result)) => join(&launched, layers, steps, result),
        (Some(_), None) => Err(usage!(
            "bench scaling starts its own ranks, but this process is a rank of a job; run it outside of the job"
        )),
        (None, _) => host(matches, layers, steps),
    }
}

/// One rank of a row.
fn join(launched: &Launched, layers: LayeredConfig, steps: usize, result: &Path) -> Result<(), Failure> {
    // The process that started the ranks has spoken.
    let ranks = Ranks::Launched { local_rank: launched.place.local_rank, speaks: false };
    let mut config = settings::finish(layers, ranks)?;
    let one = config.program.devices.unwrap_or_else(settings::default_device);
    config.program.devices = Some(one.of_run(launched.place.world_size));
    let workload = Workload::open(config, steps)?;
    ranks::as_rank(launched, &workload.config, None, |rank| workload.measure(rank, result))
}

/// Measures all rows, and prints them.
fn host(matches: &ArgMatches, layers: LayeredConfig, steps: usize) -> Result<(), Failure> {
    let is_given = |setting: &&Setting| layers.source(setting.name) == Some(&SettingSource::CommandLine);
    if let Some(setting) = named(OF_ROWS).find(is_given) {
        return Err(usage!("{}: the rows differ in it; leave it out", setting.flag()));
    }
    let mut config = settings::finish(layers, Ranks::OfMachine)?;
    let most = config.program.rank_count(cores());
    let devices = config.program.devices.clone().unwrap_or_else(|| Devices::new(settings::default_kind(), most));
    // A device is the same in all rows.
    config.train.batch = Some(config.train.batch_per_shard(1));
    config.program.threads = Some(config.program.threads_of_rank(cores(), 0, most));
    config.train.loader_threads = Some(config.train.loader_threads_of_rank(cores(), 0, most));
    let workload = Workload::open(config, steps)?;
    let mut output = Output::new(workload.config.program.json);
    let rows = match matches.get_one("simulate") {
        Some(cluster) => predict(&workload, &devices, cluster, steps, &mut output)?,
        None => {
            let mut rows: Vec<Row> = Vec::new();
            for kind in plan(most, workload.has_batch_norm()?) {
                let row = measure(&workload, &devices, Row::begin(kind), steps, rows.first(), &mut output)?;
                rows.push(row);
            }
            rows
        }
    };
    if !output.is_json() {
        output.text(workload.describe());
        output.block(table::text(&rows));
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
    say(format_args!("measuring {row}"));
    let TrainingSetup { devices: count, strategy, sync_bn } = row.kind;
    let folder = Folder::new()?;
    let mut config = workload.config.clone();
    config.program.devices = Some(first(devices, count));
    config.train.strategy = strategy;
    config.train.sync_bn = sync_bn;
    let workload = workload.with(config);
    let result = folder.0.join("row.json");
    let command = || command_line(&workload, steps, &result);
    let interrupts = Some(Interrupts::watch()?);
    ranks::host(count, &workload.config, None, command, interrupts, |rank| workload.measure(rank, &result))?;
    let row = row.end(RowMeasurement::read(&result)?, single);
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
    let single = measure(workload, devices, Row::begin(SINGLE), steps, None, output)?;
    let timelines = workload.timelines(&first(devices, 1), steps, single.measured)?;
    let sizes = cluster.sizes();
    let of_all =
        sizes.iter().flat_map(|size| timelines.iter().map(move |(sync_bn, timeline)| (size, *sync_bn, timeline)));
    let predicted = of_all.map(|(size, sync_bn, timeline)| {
        let kind = TrainingSetup { devices: size.device_count(), sync_bn, ..SINGLE };
        let batch = workload.config.train.batch_per_shard(1) * kind.devices;
        let row = Row::begin(kind).predict(&timeline.run(size), batch, &single);
        output.json(row.json());
        row
    });
    let predicted: Vec<Row> = predicted.collect();
    Ok([vec![single], predicted].concat())
}

const SINGLE: TrainingSetup = TrainingSetup { devices: 1, strategy: StrategyKind::Ddp, sync_bn: false };

/// The rows, in order.
fn plan(most: usize, has_batch_norm: bool) -> Vec<TrainingSetup> {
    let doubled = std::iter::successors(Some(2), |count| Some(count * 2)).take_while(|count| *count < most);
    let counts = doubled.chain((most > 1).then_some(most)).map(|devices| TrainingSetup { devices, ..SINGLE });
    let dp = counts.clone().map(|kind| TrainingSetup { strategy: StrategyKind::Dp, ..kind });
    let ddp = counts.flat_map(|kind| [kind, TrainingSetup { sync_bn: true, ..kind }]);
    std::iter::once(SINGLE).chain(dp).chain(ddp.filter(|kind| has_batch_norm || !kind.sync_bn)).collect()
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
    let names = [SETTINGS, SOURCE, OF_ROWS].join(" ");
    arguments.extend(settings::rank_flags(&workload.config, named(&names)));
    arguments.extend([format!("--{RESULT}").into(), result.into()]);
    if let Some(data) = &workload.config.train.data {
        arguments.extend(["--".into(), data.into()]);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_number_of_devices() {
        let check = |most: usize, has_batch_norm: bool, expected: &str| {
            let row = |kind: TrainingSetup| {
                let sync_bn = if kind.sync_bn { "+" } else { "" };
                format!("{}{}{sync_bn}", kind.strategy, kind.devices)
            };
            let found: Vec<String> = plan(most, has_batch_norm).into_iter().map(row).collect();
            assert_eq!(found.join(" "), expected, "{most}");
        };
        check(1, true, "ddp1");
        check(2, false, "ddp1 dp2 ddp2");
        check(2, true, "ddp1 dp2 ddp2 ddp2+");
        check(6, false, "ddp1 dp2 dp4 dp6 ddp2 ddp4 ddp6");
        check(8, true, "ddp1 dp2 dp4 dp8 ddp2 ddp2+ ddp4 ddp4+ ddp8 ddp8+");
    }

    #[test]
    fn rows_take_the_first_devices() {
        let check = |devices: &str, count: usize, expected: &str| {
            let mut config = enmasse_train::RunConfig::default();
            config.set("devices", devices).unwrap();
            assert_eq!(first(&config.program.devices.unwrap(), count).to_string(), expected);
        };
        check("cpu:4", 2, "cpu:2");
        check("gpu:all", 1, "gpu:1");
        check("gpu:3,1,0", 2, "gpu:3,1");
        check("gpu:3,1,0", 1, "gpu:3,");
    }
}
