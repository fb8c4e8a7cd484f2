//! `enmasse bench`; and its `step`: the time of a training step, or of a forward pass, on synthetic images.

mod all_reduce;
mod folder;
mod peak;
mod process_age;
mod profile;
mod scaling;
mod step_times;

use clap::{ArgMatches, Command};
use enmasse_datasets::DataKind;
use enmasse_device::{Device, Program};
use enmasse_graph::{Choices, CompileOptions, Mode, Plans};
use enmasse_system::machine::peak_rss_bytes;
use enmasse_train::{
    Compilation, Objective, Preparation, RunConfig, TrainConfig, TrainError, initialize, require_memory, tune,
};
use enmasse_wording::mebibytes;
use serde_json::json;

use crate::command_line::arguments::{ONE_DEVICE, count, group, settings_with, switch};
use crate::command_line::settings::{Ranks, check_recompute};
use crate::data::stand_in::{WITHOUT_DATA, without_data};
use crate::failure::{Failure, usage};
use crate::output::{Output, say};
use crate::ranks::Rank;
use crate::ranks::interrupt::Interrupts;
use crate::report::facts::tuned;
use profile::Profile;
use step_times::StepTimes;

/// The settings that apply to `bench step`.
const SETTINGS: &str = "\
    model size batch devices shards accumulate precision recompute threads isa exact fuse tune json";

/// The command line of `enmasse bench`.
pub fn command() -> Command {
    group("bench", "Measure this machine", [step_command(), scaling::command(), peak::command(), all_reduce::command()])
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
            "What each instruction takes: milliseconds, % of the step, GFLOP/s, GB/s, % of the roofline",
        ))
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    match matches.subcommand() {
        Some(("step", matches)) => step(matches),
        Some(("scaling", matches)) => scaling::run(matches),
        Some(("peak", matches)) => peak::run(matches),
        Some(("allreduce", matches)) => all_reduce::run(matches),
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
    let memory = device.host_memory();
    let times =
        StepTimes::measure(program.as_mut(), memory.as_ref(), &config.train, (batch, classes), steps, profiled)?;
    let StepTimes { start, first, latency, .. } = times;
    let median = times.median();
    let least = times.windows.first().copied().unwrap_or(0.0);
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
            "latency_ms": latency,
            "start_ms": start,
            "first_step_ms": first,
            "peak_rss_bytes": peak,
            "gflops": gflops,
            "share_of_peak": share,
            "profile": profile.as_ref().map(Profile::json),
        })),
        false => output.text(format_args!(
            "{} {}, {batch} x {size}x{size}, {}, {}: {images_per_second:.1} images/s, median {median:.2} ms, least {least:.2} ms, \
             {gflops:.0} GFLOP/s{}, {}\
             first step {first:.2} ms, begun {start:.0} ms after the start, peak memory {}",
            config.train.model,
            if evaluate { "forward" } else { "training step" },
            config.train.precision,
            device.name(),
            share.map_or(String::new(), |share| format!(" ({:.0} % of the peak of direct matmuls)", 100.0 * share)),
            latency.map_or(String::new(), |latency| format!("a step alone {latency:.2} ms, ")),
            mebibytes(peak as usize),
            size = config.train.image_size(None),
        )),
    }
    if let Some(profile) = profile.filter(|_| !output.is_json()) {
        output.block(profile.table().trim_end());
    }
    output.finish()
}

/// The speed of training on one device, over `steps` steps.
pub fn images_per_second(config: &RunConfig, classes: usize, steps: usize) -> Result<f64, Failure> {
    let device = Rank::alone().device(config)?;
    let mut program = program(config, classes, false, device.as_ref())?;
    let batch = config.train.batch_per_shard(1);
    let memory = device.host_memory();
    let times = StepTimes::measure(program.as_mut(), memory.as_ref(), &config.train, (batch, classes), steps, false)?;
    Ok(batch as f64 / times.median() * 1e3)
}

fn program(
    config: &RunConfig,
    classes: usize,
    evaluate: bool,
    device: &dyn Device,
) -> Result<Box<dyn Program>, Failure> {
    let model = enmasse_models::find(&config.train.model).map_err(Failure::usage)?;
    let shards = if evaluate { 1 } else { config.train.shard_count(1) };
    check_recompute(&config.train)?;
    let compile = |batch: usize| -> Result<Plans, TrainError> {
        if evaluate {
            let options = CompileOptions {
                precision: config.train.precision,
                fuse: config.train.fuse,
                ..CompileOptions::new(config.train.model.clone(), batch, config.train.image_size(None), classes)
            };
            return Ok(device.target().compile_evaluation(&|x| model.forward(x, classes), &options)?);
        }
        let preparation = Preparation::new(&config.train, DataKind::Folder);
        let objective = Objective::default();
        let forward = |x, classes| model.forward(x, classes);
        let config = TrainConfig { batch: Some(batch), ..config.train.clone() };
        let compilation = Compilation {
            config: &config,
            preparation: &preparation,
            model: &forward,
            objective: &objective,
            outputs: classes,
            target: &device.target(),
        };
        compilation.plans(shards)
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
