//! `enmasse plan print`: the instructions of every rank as text, with buckets and memory.

mod roofline;

use std::fmt::Write;
use std::iter::once;

use clap::builder::PossibleValuesParser;
use clap::{ArgMatches, Command};
use enmasse_comm::ShardMap;
use enmasse_cuda::roofline::{GPUS, Gpu, target};
use enmasse_datasets::DataKind;
use enmasse_device::{Device, Hosting, Memory};
use enmasse_graph::{Arena, Choices, Plan, Plans, Target};
use enmasse_train::{Compilation, Objective, Preparation, RunConfig, TrainConfig, TrainError, tune};
use enmasse_wording::{counted, grouped, mebibytes};

use crate::command_line::arguments::{count, group, option, settings, settings_with, switch};
use crate::command_line::settings::{Ranks, check_recompute, cores, default_device, default_kind};
use crate::data::stand_in::{WITHOUT_DATA, without_data};
use crate::failure::{Failure, failed};
use crate::output::{Output, say};
use crate::ranks::Rank;
use crate::report::facts::tuned;

/// The command line of `enmasse plan`.
pub fn command() -> Command {
    let print = Command::new("print")
        .about("Print what every rank runs: instructions, buckets, memory")
        .args(settings_with("model size batch devices sync_bn strategy stages schedule_stages micro_batches tensor_parallel", WITHOUT_DATA))
        .args(settings("optimizer opt_arg momentum weight_decay no_decay_norm_bias clip_norm ema lookahead nesterov"))
        .args(settings("label_smoothing freeze freeze_layers freeze_bn layer_decay head_lr_mult unused_parameters"))
        .args(settings("drop_path recompute teacher distillation_alpha distillation_temperature"))
        .args(settings("precision threads isa exact fuse tune all_reduce sum reduce_precision shards accumulate"))
        .arg(count("classes", "N", "Classes of the model [default: 10 up to 64 pixels, else 1000]"))
        .arg(switch("eval", "The plan of evaluation"))
        .arg(
            option("roofline", "DEVICE")
                .value_parser(PossibleValuesParser::new(once(default_kind()).chain(GPUS.iter().map(|gpu| gpu.name))))
                .conflicts_with_all(["devices", "tune"])
                .help("Instead, the least time of each instruction: on this machine's CPU as measured now, or on an NVIDIA GPU by its public figures; needs none"),
        );
    group("plan", "Look at plans", [print])
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    match matches.subcommand() {
        Some(("print", matches)) => print(matches),
        _ => Ok(()),
    }
}

fn print(matches: &ArgMatches) -> Result<(), Failure> {
    let (config, classes) = without_data(matches, Ranks::OfMachine)?;
    let evaluates = matches.get_flag("eval");
    let mut output = Output::new(false);
    if let Some(name) = matches.get_one::<String>("roofline") {
        output.block(roofline_of(name, config, classes, evaluates)?);
        return output.finish();
    }
    let world_size = config.program.rank_count(cores());
    let shards = config.train.shard_count(world_size);
    let device = Rank::alone().device(&config)?;
    let replicas = config.train.replicas(world_size).map_err(Failure::usage)?;
    let map = ShardMap::new(shards, replicas).map_err(Failure::error)?;
    let mut plans = compiled(&config.train, classes, &device.target(), |of| of.plans_of_ranks(&map))?;
    if config.train.tune {
        let (_, tuning) = tune(device.as_ref(), &mut plans, Choices::default()).map_err(Failure::error)?;
        tuned(&tuning).for_each(say);
    }
    let parts = compiled(&config.train, classes, &device.target(), |of| of.parts(shards))?;
    if parts.is_empty() {
        print_plans(&mut output, device.as_ref(), &plans, map, evaluates)?;
    }
    for plans in &parts {
        print_plans(&mut output, device.as_ref(), plans, map, evaluates)?;
    }
    output.finish()
}

/// Prints the plan of one mode with its memory and its buckets.
fn print_plans(
    output: &mut Output,
    device: &dyn Device,
    plans: &Plans,
    map: ShardMap,
    evaluates: bool,
) -> Result<(), Failure> {
    let plan = printed(plans, evaluates);
    let algorithms = device.algorithms(plan).map_err(Failure::error)?;
    let text = plan.annotated(&algorithms);
    let hosting = Hosting::of(map, 0);
    let of_first = plans.clone().of_rank(0);
    let memory = device.memory(&of_first, &hosting).map_err(Failure::error)?;
    let memory = memory_table(plan, &of_first, memory);
    let work = device.work(plans, &hosting, plan.mode).map_err(Failure::error)?;
    output.block(format_args!("{text}\n{memory}\n{}", bucket_table(plan)));
    if let Some((sum, pieces)) = work.split_first() {
        let pieces: String = pieces.iter().map(|piece| format!("\n  {piece}")).collect();
        output.block(format_args!("\nwork of {}: {sum}{pieces}", device.name()));
    }
    Ok(())
}

/// The roofline of one shard's plan on this machine, or on a GPU.
fn roofline_of(name: &str, mut config: RunConfig, classes: usize, evaluates: bool) -> Result<String, Failure> {
    let map = ShardMap::new(config.train.shard_count(1), 1).map_err(Failure::error)?;
    if let Some(gpu) = Gpu::find(name) {
        let plans = compiled(&config.train, classes, &target(), |of| of.plans_of_ranks(&map))?;
        let plan = printed(&plans, evaluates);
        let algorithms = vec![String::new(); plan.instructions.len()];
        return Ok(roofline::table(plan, &gpu.roofline(plan).map_err(Failure::error)?, &algorithms));
    }
    config.program.devices = Some(default_device());
    let device = Rank::alone().device(&config)?;
    let plans = compiled(&config.train, classes, &device.target(), |of| of.plans_of_ranks(&map))?;
    let plan = printed(&plans, evaluates);
    let algorithms = device.algorithms(plan).map_err(Failure::error)?;
    let measured = device.roofline(plan).map_err(Failure::error)?;
    let measured = measured.ok_or_else(|| failed!("{} measures no limits", device.name()))?;
    Ok(roofline::table(plan, &measured, &algorithms))
}

/// What `compile` makes of a configuration, as a run with it does.
fn compiled<T>(
    config: &TrainConfig,
    classes: usize,
    target: &Target,
    compile: impl FnOnce(&Compilation) -> Result<T, TrainError>,
) -> Result<T, Failure> {
    let model = enmasse_models::find(&config.model).map_err(Failure::usage)?;
    let forward = |x, classes| model.forward(x, classes);
    check_recompute(config)?;
    let preparation = Preparation::new(config, DataKind::Folder);
    let objective = Objective::default().taught(config, &preparation, None)?;
    let compilation = Compilation {
        config,
        preparation: &preparation,
        model: &forward,
        objective: &objective,
        outputs: classes,
        target,
    };
    Ok(compile(&compilation)?)
}

fn printed(plans: &Plans, evaluates: bool) -> &Plan {
    plans.train.as_ref().filter(|_| !evaluates).unwrap_or(&plans.evaluate)
}

/// The memory of a rank, arena by arena.
fn memory_table(plan: &Plan, plans: &Plans, memory: Memory) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(text, "memory of a rank: {}", mebibytes(memory.total()));
    for (arena, bytes) in plans.arenas() {
        let _ = write!(text, "  {:<12} {:>12}", arena.to_string(), mebibytes(bytes));
        if arena == Arena::Activations {
            let _ = write!(text, ", of {} if values did not share memory", mebibytes(plan.unshared_activations));
        }
        text.push('\n');
    }
    let once = [Arena::Gradients, Arena::Activations].map(|arena| plans.arena_bytes(arena)).iter().sum();
    let more = (memory.gradients + memory.activations).saturating_sub(once);
    if more > 0 {
        let _ = writeln!(text, "  {:<12} {:>12}", "more shards", mebibytes(more));
    }
    let _ = writeln!(text, "  {:<12} {:>12}", "scratch", mebibytes(memory.scratch));
    if memory.library > 0 {
        let _ = writeln!(text, "  {:<12} {:>12}, an allowance", "libraries", mebibytes(memory.library));
    }
    text
}

/// The buckets in which gradients are summed over ranks, in the order in which the sums start.
fn bucket_table(plan: &Plan) -> String {
    let title = match plan.buckets.len() {
        0 => "buckets: none, as nothing is summed over ranks".to_owned(),
        count => format!("buckets: {} for {} gradient elements", counted(count, "sum"), grouped(plan.trainable as u64)),
    };
    let lines = plan.buckets.iter().enumerate().map(|(index, bucket)| {
        let end = bucket.start + bucket.len;
        format!("\n  {index:<3} gradients[{}..{end}] {:>12}", bucket.start, mebibytes(bucket.len * size_of::<f32>()))
    });
    title + &lines.collect::<String>()
}
