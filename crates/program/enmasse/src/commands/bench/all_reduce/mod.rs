//! `enmasse bench allreduce`: the time of a sum over ranks of this machine by algorithm and size, and of a barrier, through shared
//! memory and over TCP, beside what a model predicts and what other programs take.
//!
//! Each transport is a job of its own, whose ranks are processes. Rank 0 leaves what it measures in a file.

mod model;
mod others;
mod row;

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command};
use enmasse_charts::{SizeLine, SizePanel, times_by_size};
use enmasse_comm::{Algorithm, Group, TransportChoice};
use enmasse_system::files::write_whole;
use enmasse_train::LayeredConfig;

use super::folder::Folder;
use crate::command_line::arguments::{self, count, file, option, path};
use crate::command_line::settings;
use crate::failure::{Failure, failed, usage};
use crate::output::{Output, say};
use crate::ranks;
use crate::ranks::interrupt::Interrupts;
use crate::ranks::launched::Launched;
use model::Model;
use others::{LAUNCHERS, gloo};
use row::{Operation, Row, header};

/// Bytes of the sums.
const SIZES: &str = "4096,65536,1048576,26214400,104857600";
/// The largest of them.
const LARGEST: usize = 1 << 32;
/// Names the transport of a job, to its ranks, and where the first one leaves its rows.
const OVER: &str = "over";
const RESULT: &str = "result";
const SHARED: &str = "shared";
const TCP: &str = "tcp";

const DETAILS: &str = "\
Sums of f32, one after another, then barriers; the time is rank 0's, the median and the least of all calls. Bandwidths are those of nccl-tests, in 10^9 \
bytes a second: algbw is the sum's bytes over the median, and busbw is 2(N-1)/N of it, which every rank must at least send. \
sent and received are counted bytes of a call, of the rank with the most. The model is rounds of a latency, messages, and bytes that are \
copied and added, each measured at the start of a job; docs/collectives.md has its formulas, and those of the algorithms.

Over TCP every rank is a node of its own. MPI's own sums and barriers are beside ours where an mpirun of Open MPI or MPICH is there, and those of \
Gloo with --python.";

pub fn command() -> Command {
    let names: Vec<_> = Algorithm::ALL.iter().map(|algorithm| algorithm.name()).collect();
    Command::new("allreduce")
        .about("Time sums over ranks of this machine, by algorithm and size, and barriers: shared memory, and TCP on loopback")
        .after_long_help(DETAILS)
        .arg(count("ranks", "N", "Processes").default_value("2"))
        .arg(
            option("bytes", "BYTES,...")
                .value_parser(size)
                .value_delimiter(',')
                .default_value(SIZES)
                .help("Sizes of the sums"),
        )
        .arg(
            option("algorithms", "NAMES")
                .value_parser(|text: &str| text.parse::<Algorithm>())
                .value_delimiter(',')
                .default_value(names.join(","))
                .help("Algorithms of the sums"),
        )
        .arg(option("python", "PROGRAM").value_parser(path).help("A Python with PyTorch, whose Gloo is timed too"))
        .arg(file("svg", "Draw the times as an SVG file"))
        .arg(Arg::new(OVER).long(OVER).hide(true))
        .arg(Arg::new(RESULT).long(RESULT).value_parser(path).hide(true))
        .args(arguments::settings("json"))
}

/// The bytes of a sum.
fn size(text: &str) -> Result<usize, String> {
    let bytes = text.parse().ok().filter(|bytes: &usize| bytes.is_multiple_of(size_of::<f32>()));
    bytes
        .filter(|bytes| (1..=LARGEST).contains(bytes))
        .ok_or_else(|| format!("must be a multiple of 4, the bytes of an f32, up to {LARGEST}"))
}

/// What is timed.
struct Sums {
    ranks: usize,
    sizes: Vec<usize>,
    algorithms: Vec<Algorithm>,
}

impl Sums {
    /// The sizes, as on the command line.
    fn sizes(&self) -> String {
        self.sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
    }

    /// The arguments of a rank.
    fn command_line(&self, over: &str, result: &Path) -> Vec<OsString> {
        let algorithms: Vec<_> = self.algorithms.iter().map(|algorithm| algorithm.name()).collect();
        let words = [
            "bench".to_owned(),
            "allreduce".to_owned(),
            format!("--ranks={}", self.ranks),
            format!("--bytes={}", self.sizes()),
            format!("--algorithms={}", algorithms.join(",")),
            format!("--{OVER}={over}"),
            format!("--{RESULT}"),
        ];
        words.into_iter().map(OsString::from).chain([result.into()]).collect()
    }
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let layers = settings::layers(matches)?;
    let sums = Sums {
        ranks: matches.get_one("ranks").copied().unwrap_or(2),
        sizes: matches.get_many("bytes").into_iter().flatten().copied().collect(),
        algorithms: matches.get_many("algorithms").into_iter().flatten().copied().collect(),
    };
    let part = matches.get_one::<String>(OVER).zip(matches.get_one::<PathBuf>(RESULT));
    if let Some((over, result)) = part
        && let Some(launcher) = LAUNCHERS.iter().find(|launcher| launcher.word == over)
    {
        return others::join(launcher.family, &sums.sizes, result);
    }
    match (Launched::from_environment(&layers)?, part) {
        (Some(launched), Some((over, result))) => join(&launched, layers, over, &sums, result),
        (Some(_), None) => Err(usage!(
            "bench allreduce starts its own ranks, but this process is a rank of a job; run it outside of the job"
        )),
        (None, _) => host(matches, layers, &sums),
    }
}

/// Starts the jobs, and those of other programs.
fn host(matches: &ArgMatches, layers: LayeredConfig, sums: &Sums) -> Result<(), Failure> {
    if sums.ranks < 2 {
        return Err(usage!("--ranks {}: a sum needs at least 2", sums.ranks));
    }
    let config = layers.finish()?;
    let folder = Folder::new()?;
    let result = folder.0.join("rows.json");
    let mut output = Output::new(config.program.json);
    output.text(format_args!("{} ranks on this machine, sums of f32, times in microseconds", sums.ranks));
    if !output.is_json() {
        output.block(header());
    }
    let mut rows = vec![];
    let mut show = |found: Vec<Row>| -> Result<(), Failure> {
        for row in &found {
            match output.is_json() {
                true => output.json(serde_json::to_string(row).map_err(Failure::error)?),
                false => output.block(row.line()),
            }
        }
        rows.extend(found);
        Ok(())
    };
    for over in [SHARED, TCP] {
        let interrupts = Some(Interrupts::watch()?);
        ranks::host(sums.ranks, &config, None, || sums.command_line(over, &result), interrupts, |_| Ok(()))?;
        let text = fs::read_to_string(&result).map_err(|error| failed!("cannot read {}: {error}", result.display()))?;
        let _ = fs::remove_file(&result);
        show(row::read(&text).map_err(Failure::error)?)?;
    }
    for launcher in &LAUNCHERS {
        match launcher.rows(sums.ranks, &sums.command_line(launcher.word, &result), &result) {
            Ok(found) => show(found)?,
            Err(why) => say(format_args!("without {}: {why}", launcher.family)),
        }
    }
    match matches.get_one::<PathBuf>("python") {
        None => say("without Gloo: --python names a Python with PyTorch"),
        Some(python) => match gloo(python, sums.ranks, &sums.sizes(), &result) {
            Ok(found) => show(found)?,
            Err(why) => say(format_args!("without Gloo: {why}")),
        },
    }
    if let Some(path) = matches.get_one::<PathBuf>("svg") {
        write_whole(path, |file| file.write_all(chart(sums.ranks, &rows).as_bytes())).map_err(Failure::error)?;
    }
    output.finish()
}

/// One rank of a job. The first one leaves the rows.
fn join(launched: &Launched, layers: LayeredConfig, over: &str, sums: &Sums, result: &Path) -> Result<(), Failure> {
    let config = layers.finish()?;
    let transport = if over == TCP { TransportChoice::Tcp } else { TransportChoice::Shared };
    ranks::as_rank_over(transport, launched, &config, None, |rank| {
        let Some(group) = &rank.group else { return Ok(()) };
        let text = measure(group, over, sums)?;
        if !rank.is_first() {
            return Ok(());
        }
        write_whole(result, |file| file.write_all(text.as_bytes())).map_err(Failure::error)
    })
}

/// The rows of a transport, as text.
fn measure(group: &Group, over: &str, sums: &Sums) -> Result<String, Failure> {
    let model = Model::measure(group).map_err(Failure::error)?;
    let mut rows = vec![];
    for algorithm in &sums.algorithms {
        for &bytes in &sums.sizes {
            rows.push(Row::measure(group, over, (*algorithm, bytes), model).map_err(Failure::error)?);
        }
    }
    rows.push(Row::measure_barrier(group, over).map_err(Failure::error)?);
    row::lines(&rows)
}

/// A diagram of each transport, with the other programs that use the same: MPI memory, and Gloo TCP.
fn chart(ranks: usize, rows: &[Row]) -> String {
    let panel = |title, own: &str, other: &str| {
        let mut lines: Vec<SizeLine> = vec![];
        let sums = rows.iter().filter(|row| row.operation == Operation::AllReduce);
        for row in sums.filter(|row| row.transport == own || row.transport == other) {
            let point = (row.bytes as f64, row.median_us * 1e-6);
            match lines.iter_mut().find(|line| line.name == row.algorithm) {
                Some(line) => line.points.push(point),
                None => lines.push(SizeLine {
                    name: &row.algorithm,
                    points: vec![point],
                    is_foreign: row.transport == other,
                }),
            }
        }
        lines.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
        SizePanel { title, lines }
    };
    let panels = [panel("Shared memory", SHARED, "mpi"), panel("TCP on loopback", TCP, "gloo")];
    times_by_size(&format!("Time of a sum over {ranks} ranks"), &panels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_programs_are_beside_what_they_use() {
        let row = |transport: &str, algorithm: &str| Row::new(transport, algorithm, 2, 4096, vec![1e-5]);
        let barrier = Row::barrier("mpi", "a barrier", 2, vec![1e-5]);
        let rows =
            [row("shared", "ring"), row("mpi", "Open MPI 4"), row("tcp", "tree"), row("gloo", "PyTorch 2"), barrier];
        let chart = chart(2, &rows);
        let place = |text: &str| chart.find(&format!(">{text}<")).unwrap();
        assert!(place("Shared memory") < place("ring") && place("ring") < place("Open MPI 4"), "{chart}");
        assert!(!chart.contains("a barrier"), "{chart}");
        assert!(place("Open MPI 4") < place("TCP on loopback") && place("tree") < place("PyTorch 2"), "{chart}");
    }
}
