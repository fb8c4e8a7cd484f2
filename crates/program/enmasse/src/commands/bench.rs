//! `enmasse bench`; and its `step`: the time of a training step, or of a forward pass, on synthetic images.

mod peak;
mod process_age;
mod profile;
mod scaling;

use std::sync::Arc;
use std::time::Instant;

use clap::{ArgMatches, Command};
use enmasse_datasets::DataKind;
use enmasse_device::{Device, HostBatch, Program, StepBatch, StepInputs};
use enmasse_graph::{Choices, CompileOptions, Mode, Phase, Plans};
use enmasse_system::machine::peak_rss_bytes;
use enmasse_tensor::RandomStream;
use enmasse_train::{
    Objective, Preparation, RunConfig, TrainConfig, TrainError, compile_plans, initialize, require_memory, tune,
};
use enmasse_wording::mebibytes;
use serde_json::json;

use crate::command_line::arguments::{ONE_DEVICE, count, group, settings_with, switch};
use crate::command_line::settings::Ranks;
use crate::data::stand_in::{WITHOUT_DATA, without_data};
use crate::failure::{Failure, usage};
use crate::output::{Output, say};
use crate::ranks::Rank;
use crate::ranks::interrupt::Interrupts;
use crate::report::facts::tuned;
use process_age::process_age;
use profile::Profile;

/// The settings that apply to `bench step`.
const SETTINGS: &str = "\
    model size batch devices shards accumulate precision grad_checkpointing threads isa exact fuse tune json";

/// Steps before the timed ones, which touch memory pages and warm up threads and caches.
const WARM_UP: usize = 3;

/// The command line of `enmasse bench`.
pub fn command() -> Command {
    group("bench", "Measure this machine", [step_command(), scaling::command(), peak::command()])
}

fn step_command() -> Command {
    Command::new("step")
        .about("Time steps on synthetic images: forward, loss, backward, SGD with momentum and weight decay")
        .args(settings_with(SETTINGS, &[ONE_DEVICE, WITHOUT_DATA].concat()))
        .arg(count("classes", "N", "Classes of the model [default: 10 up to 64 pixels, else 1000]"))
        .arg(count("steps", "N", "Steps to time, after three to warm up").default_value("10"))
        .arg(switch("eval", "Forward only"))
        .arg(switch(
            "profile",
            "What each instruction takes: milliseconds, % of the step, GFLOP/s, GB/s, on CPUs % of the roofline",
        ))
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    match matches.subcommand() {
        Some(("step", matches)) => step(matches),
        Some(("scaling", matches)) => scaling::run(matches),
        Some(("peak", matches)) => peak::run(matches),
        _ => Ok(()),
    }
}

fn step(matches: &ArgMatches) -> Result<(), Failure> {
    let (config, classes) = without_data(matches, Ranks::One)?;
    let evaluate = matches.get_flag("eval");
    let steps = matches.get_one("steps").copied().unwrap_or(1);
    let _interrupts = Interrupts::watch()?;
    if let Some(devices) = config.program.devices.as_ref().filter(|devices| devices.count() > 1) {
        return Err(usage!("--devices {devices}: a step is timed on one device; set one"));
    }
    let device = Rank::alone().device(&config)?;
    let mut output = Output::new(config.program.json);
    let mut program = program(&config, classes, evaluate, device.as_ref())?;
    let shards = if evaluate { 1 } else { config.train.shard_count(1) };
    let batch = shards * config.train.batch_per_shard(shards);
    let mode = if evaluate { Mode::Evaluate } else { Mode::Train };
    let profiled = matches.get_flag("profile");
    let StepTimes { start, first, rest: mut milliseconds } =
        time_steps(program.as_mut(), &config.train, batch, classes, steps, profiled)?;
    milliseconds.sort_unstable_by(f64::total_cmp);

    let (median, least) = (median(&milliseconds), milliseconds.first().copied().unwrap_or(0.0));
    let images_per_second = batch as f64 / median * 1e3;
    let peak = peak_rss_bytes();
    let plan = program.plans().plan(mode).unwrap_or(&program.plans().evaluate);
    let gflops = (shards as u64 * plan.total_cost().flops) as f64 / median / 1e6;
    // Winograd multiplies less than a direct convolution, so the share can exceed 1.
    let share = device.peak_gflops(plan).map_err(Failure::error)?.map(|peak| gflops / peak);
    let profile = match profiled {
        true => Some(Profile::new(program.as_ref(), device.as_ref(), mode, steps).map_err(Failure::error)?),
        false => None,
    };
    match output.is_json() {
        true => output.json(json!({
            "images_per_second": images_per_second,
            "median_ms": median,
            "min_ms": least,
            "start_ms": start,
            "first_step_ms": first,
            "peak_rss_bytes": peak,
            "gflops": gflops,
            "share_of_peak": share,
            "profile": profile.as_ref().map(Profile::json),
        })),
        false => output.text(format_args!(
            "{} {}, {batch} x {size}x{size}, {}, {}: {images_per_second:.1} images/s, median {median:.2} ms, least {least:.2} ms, \
             {gflops:.0} GFLOP/s{}, \
             first step {first:.2} ms, begun {start:.0} ms after the start, peak memory {}",
            config.train.model,
            if evaluate { "forward" } else { "training step" },
            config.train.precision,
            device.name(),
            share.map_or(String::new(), |share| format!(" ({:.0} % of the peak of direct matmuls)", 100.0 * share)),
            mebibytes(peak as usize),
            size = config.train.image_size(None),
        )),
    }
    if let Some(profile) = profile.filter(|_| !output.is_json()) {
        output.block(profile.table().trim_end());
    }
    output.finish()
}

/// The speed of training on one device: the median over `steps` steps.
pub fn images_per_second(config: &RunConfig, classes: usize, steps: usize) -> Result<f64, Failure> {
    let device = Rank::alone().device(config)?;
    let mut program = program(config, classes, false, device.as_ref())?;
    let batch = config.train.batch_per_shard(1);
    let mut milliseconds = time_steps(program.as_mut(), &config.train, batch, classes, steps, false)?.rest;
    milliseconds.sort_unstable_by(f64::total_cmp);
    Ok(batch as f64 / median(&milliseconds) * 1e3)
}

fn program(
    config: &RunConfig,
    classes: usize,
    evaluate: bool,
    device: &dyn Device,
) -> Result<Box<dyn Program>, Failure> {
    let model = enmasse_models::find(&config.train.model).map_err(Failure::usage)?;
    let shards = if evaluate { 1 } else { config.train.shard_count(1) };
    let compile = |batch: usize| -> Result<Plans, TrainError> {
        if evaluate {
            let options = CompileOptions {
                precision: config.train.precision,
                fuse: config.train.fuse,
                ..CompileOptions::new(config.train.model.clone(), batch, config.train.image_size(None), classes)
            };
            return Ok(device.target().compile_evaluation(&|x| model.forward(x, classes), &options)?);
        }
        let (preparation, objective) = (Preparation::new(&config.train, DataKind::Folder), Objective::default());
        let forward = |x, classes| model.forward(x, classes);
        let config = TrainConfig { batch: Some(batch), ..config.train.clone() };
        compile_plans(&config, &preparation, &forward, &objective, classes, shards, &device.target())
    };
    let mut plans = compile(config.train.batch_per_shard(shards))?;
    require_memory(device, &plans, &compile)?;
    if config.train.tune {
        let (_, tuning) = tune(device, &mut plans, Choices::default()).map_err(Failure::error)?;
        tuned(&tuning).for_each(say);
    }
    let mut program = device.compile(plans, None).map_err(Failure::error)?;
    initialize(program.as_mut(), config.train.seed).map_err(Failure::error)?;
    Ok(program)
}

/// Times in milliseconds.
struct StepTimes {
    /// From the start of the process to the first step, in the kernel's precision of 10 ms.
    start: f64,
    /// The first step, which touches most memory pages for the first time.
    first: f64,
    /// Each step after the warm-up.
    rest: Vec<f64>,
}

/// Times the start, the first step, and the steps after the warm-up.
fn time_steps(
    program: &mut dyn Program,
    config: &TrainConfig,
    batch: usize,
    classes: usize,
    steps: usize,
    profiled: bool,
) -> Result<StepTimes, Failure> {
    let mut random = RandomStream::new(config.seed, "bench", 0, 0);
    let size = config.image_size(None);
    let words = (0..(batch * size * size * 3).div_ceil(4)).flat_map(|_| random.next_u32().to_le_bytes());
    let images = words.take(batch * size * size * 3).collect();
    let labels = (0..batch).map(|sample| (sample % classes) as i32).collect();
    let sample_indices = (0..batch as u64).collect();
    let mixture = program.plans().train.as_ref().and_then(|plan| plan.mixture);
    let mixed = mixture.map_or(0, |_| batch);
    let (other_labels, lambdas) = (vec![0; mixed], vec![0.75; mixed]);
    let batch: Arc<dyn StepBatch> =
        HostBatch { images, labels, sample_indices, other_labels, lambdas, ..HostBatch::default() }.into();
    let (mode, phases) = match program.plans().train {
        Some(_) => (Mode::Train, &Phase::ALL[..]),
        None => (Mode::Evaluate, &[Phase::Forward, Phase::Loss][..]),
    };
    let start = process_age().map_or(f64::NAN, |age| age.as_secs_f64() * 1e3);
    let mut times = StepTimes { start, first: 0.0, rest: Vec::with_capacity(steps) };
    for step in 0..WARM_UP + steps {
        let inputs = StepInputs {
            // Small enough that repeating the same batch never leads to infinities.
            learning_rate: 1e-3,
            optimizer_step: step as u64 + 1,
            ..StepInputs::evaluation(batch.clone())
        };
        if step == WARM_UP && profiled {
            program.start_profile();
        }
        let began = Instant::now();
        let ticket = program.submit(mode, phases, &inputs).map_err(Failure::error)?;
        program.metrics(ticket).map_err(Failure::error)?;
        let milliseconds = began.elapsed().as_secs_f64() * 1e3;
        match step {
            0 => times.first = milliseconds,
            WARM_UP.. => times.rest.push(milliseconds),
            _ => {}
        }
    }
    Ok(times)
}

/// The median of sorted values; for an even number the mean of the middle two.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted {
        [] => 0.0,
        _ if sorted.len() % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        let check = |sorted: &[f64], expected: f64| assert_eq!(median(sorted), expected);
        check(&[3.0], 3.0);
        check(&[1.0, 2.0], 1.5);
        check(&[1.0, 2.0, 9.0], 2.0);
    }
}
