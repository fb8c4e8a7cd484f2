//! `enmasse bench peak`: this machine's peak, with one thread and with all requested threads.

use clap::{ArgMatches, Command};
use enmasse_cpu::{Peaks, measure_peaks};
use enmasse_wording::counted;
use serde_json::{Value, json};

use crate::command_line::arguments;
use crate::command_line::settings::{self, cores};
use crate::failure::{Failure, failed};
use crate::output::Output;
use crate::ranks::interrupt::Interrupts;

/// The command line of `enmasse bench peak`.
pub fn command() -> Command {
    Command::new("peak")
        .about("What this machine can do at most: multiply-adds of each instruction-set level, memory bandwidth")
        .args(arguments::settings("threads json"))
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let config = settings::layers(matches)?.finish()?;
    let threads = config.program.threads_of_rank(cores(), 0, 1);
    let _interrupts = Interrupts::watch()?;
    let mut peaks = Vec::new();
    // A single column if there is only one thread.
    for threads in if threads == 1 { vec![1] } else { vec![1, threads] } {
        let failed = |error| failed!("cannot measure {}: {error}", counted(threads, "thread"));
        peaks.push(measure_peaks(threads).map_err(failed)?);
    }
    let mut output = Output::new(config.program.json);
    match output.is_json() {
        true => peaks.iter().for_each(|peaks| output.json(object(peaks))),
        false => output.block(table(&peaks).trim_end()),
    }
    output.finish()
}

fn object(peaks: &Peaks) -> Value {
    let rate =
        |rate: &enmasse_cpu::Rate| json!({"matmul": rate.matmul.name(), "isa": rate.isa.name(), "gflops": rate.gflops});
    let bandwidth = |memory: &enmasse_cpu::Bandwidth| json!({"bytes": memory.bytes, "read": memory.read, "write": memory.write, "update": memory.update});
    json!({
        "threads": peaks.threads,
        "gflops": peaks.rates.iter().map(rate).collect::<Vec<_>>(),
        "gigabytes_per_second": peaks.bandwidths.iter().map(bandwidth).collect::<Vec<_>>(),
        "section_us": peaks.section * 1e6,
    })
}

/// One line per figure, with a column for each number of threads.
fn table(columns: &[Peaks]) -> String {
    let mut text = format!("{:<34}", "");
    for peaks in columns {
        text += &format!("{:>12}", counted(peaks.threads, "thread"));
    }
    let mut line = |name: String, figure: &dyn Fn(&Peaks) -> f64, decimals: usize| {
        text += &format!("\n{name:<34}");
        for peaks in columns {
            text += &format!("{:>12.decimals$}", figure(peaks));
        }
    };
    let Some(first) = columns.first() else { return text };
    for (index, rate) in first.rates.iter().enumerate() {
        let name = format!("{} matmuls, {}, GFLOP/s", rate.matmul.name(), rate.isa);
        line(name, &|peaks| peaks.rates[index].gflops, 1);
    }
    for (index, set) in ["512 KiB per thread", "8 MiB", "256 MiB"].into_iter().enumerate() {
        line(format!("read {set}, GB/s"), &|peaks| peaks.bandwidths[index].read, 1);
        line(format!("write {set}, GB/s"), &|peaks| peaks.bandwidths[index].write, 1);
        line(format!("a = b + s*a, {set}, GB/s"), &|peaks| peaks.bandwidths[index].update, 1);
    }
    line("start and end of a section, us".to_owned(), &|peaks| peaks.section * 1e6, 2);
    text
}
