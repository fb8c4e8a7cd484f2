//! `enmasse bench allreduce`: the time of a sum over ranks of this machine by its size, through shared memory and over TCP.
//!
//! Each transport is a job of its own, whose ranks are processes. Rank 0 prints what it measures.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{ArgMatches, Command};
use enmasse_comm::{Cause, CauseKind, Group, TransportChoice};
use enmasse_train::LayeredConfig;
use serde_json::{Value, json};

use crate::command_line::arguments::{self, count, option};
use crate::command_line::settings;
use crate::failure::{Failure, usage};
use crate::output::Output;
use crate::ranks;
use crate::ranks::interrupt::Interrupts;
use crate::ranks::launched::Launched;

/// Bytes of the sums.
const SIZES: &str = "4096,65536,1048576,26214400,104857600";
/// The largest of them.
const LARGEST: usize = 1 << 32;
/// Names the transport of a job, to its ranks.
const OVER: &str = "over";
const SHARED: &str = "shared";
const TCP: &str = "tcp";
/// Calls of each size that are not counted.
const WARM_UP: usize = 3;
/// Longest time for the calls of one size. Few of a long sum are enough, and many of a short one.
const BUDGET: Duration = Duration::from_secs(1);
/// Calls of one size, if the budget allows: at least and at most.
const CALLS: (i64, i64) = (5, 1000);

const DETAILS: &str = "\
Sums of f32, one after another; the time is rank 0's, the median and the least of all calls. Bandwidths are those of nccl-tests, in 10^9 \
bytes a second: algbw is the sum's bytes over the median, and busbw is 2(N-1)/N of it, which every rank must at least send.";

pub fn command() -> Command {
    Command::new("allreduce")
        .about("Time sums over ranks of this machine, by size: shared memory, and TCP on loopback")
        .after_long_help(DETAILS)
        .arg(count("ranks", "N", "Processes").default_value("2"))
        .arg(
            option("bytes", "BYTES,...")
                .value_parser(size)
                .value_delimiter(',')
                .default_value(SIZES)
                .help("Sizes of the sums"),
        )
        .arg(option(OVER, "TRANSPORT").value_parser([SHARED, TCP]).hide(true))
        .args(arguments::settings("json"))
}

/// The bytes of a sum.
fn size(text: &str) -> Result<usize, String> {
    let bytes = text.parse().ok().filter(|bytes: &usize| bytes.is_multiple_of(size_of::<f32>()));
    bytes
        .filter(|bytes| (1..=LARGEST).contains(bytes))
        .ok_or_else(|| format!("must be a multiple of 4, the bytes of an f32, up to {LARGEST}"))
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let layers = settings::layers(matches)?;
    let sizes: Vec<usize> = matches.get_many("bytes").into_iter().flatten().copied().collect();
    let launched = Launched::from_environment(&layers)?;
    match (launched, matches.get_one::<String>(OVER)) {
        (Some(launched), Some(over)) => join(&launched, layers, over, &sizes),
        (Some(_), None) => Err(usage!(
            "bench allreduce starts its own ranks, but this process is a rank of a job; run it outside of the job"
        )),
        (None, _) => host(matches, layers, &sizes),
    }
}

/// Starts the jobs.
fn host(matches: &ArgMatches, layers: LayeredConfig, sizes: &[usize]) -> Result<(), Failure> {
    let ranks = matches.get_one("ranks").copied().unwrap_or(2);
    if ranks < 2 {
        return Err(usage!("--ranks {ranks}: a sum needs at least 2"));
    }
    let config = layers.finish()?;
    let mut output = Output::new(config.program.json);
    output.text(format_args!("{ranks} ranks on this machine, sums of f32, times in microseconds"));
    if !output.is_json() {
        output.block(header());
    }
    for over in [SHARED, TCP] {
        let command = || command_line(ranks, sizes, over, output.is_json());
        let interrupts = Some(Interrupts::watch()?);
        ranks::host(ranks, &config, None, command, interrupts, |_| Ok(()))?;
    }
    output.finish()
}

/// The arguments of a rank.
fn command_line(ranks: usize, sizes: &[usize], over: &str, is_json: bool) -> Vec<OsString> {
    let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
    let mut arguments: Vec<OsString> = ["bench", "allreduce"].map(OsString::from).into();
    arguments.extend([format!("--ranks={ranks}"), format!("--bytes={}", sizes.join(","))].map(OsString::from));
    arguments.push(format!("--{OVER}={over}").into());
    arguments.extend(is_json.then(|| "--json".into()));
    arguments
}

/// One rank of a job. The first one prints.
fn join(launched: &Launched, layers: LayeredConfig, over: &str, sizes: &[usize]) -> Result<(), Failure> {
    let config = layers.finish()?;
    let transport = if over == TCP { TransportChoice::Tcp } else { TransportChoice::Shared };
    let mut output = Output::new(config.program.json);
    ranks::as_rank_over(transport, launched, &config, None, |rank| {
        let Some(group) = &rank.group else { return Ok(()) };
        for &bytes in sizes {
            let row = Row::measure(group, bytes).map_err(Failure::error)?;
            if rank.is_first() {
                match output.is_json() {
                    true => output.json(row.json(over)),
                    false => output.block(row.line(over)),
                }
            }
        }
        Ok(())
    })?;
    output.finish()
}

/// What rank 0 measured of one size.
#[derive(Debug)]
struct Row {
    ranks: usize,
    bytes: usize,
    /// Seconds of each call, in ascending order.
    times: Vec<f64>,
}

impl Row {
    fn measure(group: &Group, bytes: usize) -> Result<Self, Arc<Cause>> {
        let (ranks, mut data) = (group.world_size(), vec![0f32; bytes / size_of::<f32>()]);
        // The first call also checks the sum.
        data.fill(group.rank() as f32 + 1.0);
        group.all_reduce(&mut data)?;
        let sum = (ranks * (ranks + 1) / 2) as f32;
        if let Some(wrong) = data.iter().find(|&&value| value != sum) {
            let message = format!("a sum over {ranks} ranks is {wrong} instead of {sum}");
            return Err(Arc::new(group.own_cause(CauseKind::Error, message)));
        }
        // Sums of zeros stay what they are.
        data.fill(0.0);
        let mut call = || {
            let start = Instant::now();
            group.all_reduce(&mut data).map(|()| start.elapsed().as_secs_f64())
        };
        let last = (0..WARM_UP).try_fold(0.0, |_, _| call())?;
        // As many on all ranks.
        let mut calls = [((BUDGET.as_secs_f64() / last) as i64).clamp(CALLS.0, CALLS.1)];
        group.broadcast(&mut calls, 0)?;
        let mut times = (0..calls[0]).map(|_| call()).collect::<Result<Vec<f64>, _>>()?;
        times.sort_by(f64::total_cmp);
        Ok(Row { ranks, bytes, times })
    }

    fn median(&self) -> f64 {
        self.times[self.times.len() / 2]
    }

    /// Bandwidths as nccl-tests have them, in 10^9 bytes a second: of the algorithm, and of the bus.
    fn bandwidths(&self) -> [f64; 2] {
        let algorithm = self.bytes as f64 / self.median() / 1e9;
        [algorithm, algorithm * 2.0 * (self.ranks - 1) as f64 / self.ranks as f64]
    }

    fn json(&self, over: &str) -> Value {
        let [algbw, busbw] = self.bandwidths();
        json!({
            "transport": over,
            "ranks": self.ranks,
            "bytes": self.bytes,
            "calls": self.times.len(),
            "median_us": self.median() * 1e6,
            "min_us": self.times[0] * 1e6,
            "algbw": algbw,
            "busbw": busbw,
        })
    }

    fn line(&self, over: &str) -> String {
        let [algbw, busbw] = self.bandwidths();
        let (bytes, median, least) = (self.bytes, self.median() * 1e6, self.times[0] * 1e6);
        format!("{over:<9}{bytes:>10}{median:>11.1}{least:>11.1}{algbw:>8.2}{busbw:>8.2}")
    }
}

/// The columns of [`Row::line`].
fn header() -> String {
    let [over, bytes, median, least, algbw, busbw] = ["", "bytes", "time us", "least us", "algbw", "busbw"];
    format!("{over:<9}{bytes:>10}{median:>11}{least:>11}{algbw:>8}{busbw:>8}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_are_those_of_nccl_tests() {
        // As nccl-tests print for these: 1 MB in 100 us over 4 ranks is 10 GB/s, and 15 GB/s on the bus.
        let row = Row { ranks: 4, bytes: 1_000_000, times: vec![8e-5, 1e-4, 2e-4] };
        let [algbw, busbw] = row.bandwidths();
        assert!((algbw - 10.0).abs() < 1e-9 && (busbw - 15.0).abs() < 1e-9, "{algbw} {busbw}");
        let expected = "tcp         1000000      100.0       80.0   10.00   15.00";
        assert_eq!(row.line("tcp"), expected);
        assert_eq!(header().len(), expected.len());
    }

    #[test]
    fn rows_of_a_group() {
        for ranks in [2, 3] {
            let threads = Group::threads(ranks)
                .unwrap()
                .into_iter()
                .map(|group| std::thread::spawn(move || Row::measure(&group, 400).map(|row| row.times)));
            for thread in threads.collect::<Vec<_>>() {
                let times = thread.join().unwrap().unwrap();
                assert!((CALLS.0 as usize..=CALLS.1 as usize).contains(&times.len()) && times.is_sorted(), "{times:?}");
            }
        }
    }
}
