//! `enmasse models`: the models by name, with their parameters, the work of one image and the weights that are known; with
//! `--bench` also their training speed on this machine.

use clap::{Arg, ArgMatches, Command};
use enmasse_graph::{Arena, CompileOptions, compile_evaluation};
use enmasse_models::Model;
use enmasse_train::{RunConfig, TrainConfig};
use enmasse_wording::grouped;
use serde_json::json;

use super::bench;
use crate::command_line::arguments::{ONE_DEVICE, settings_with, switch};
use crate::command_line::settings::{self, Ranks};
use crate::data::stand_in::default_classes;
use crate::failure::{Failure, failed};
use crate::output::Output;
use crate::pretrained::{Entry, best, entries};
use crate::ranks::interrupt::Interrupts;

/// The settings that apply to it.
const SETTINGS: &str = "size batch devices threads precision isa exact tune json";

/// Defaults: some models would take minutes with training's default batch.
const DEFAULT: &[(&str, &str)] = &[("size", "the size for which a model was designed"), ("batch", "16")];
const DEFAULT_BATCH: usize = 16;

/// Number of timed steps per model.
const STEPS: usize = 3;

/// The command line of `enmasse models`.
pub fn command() -> Command {
    Command::new("models")
        .about("List the models, or measure how fast each trains on this machine")
        .long_about(
            "List the models: parameters, GFLOPs of the forward of one image, and its size, and the weights that --pretrained \
             takes, with their published top-1 on ImageNet; or measure how fast each trains on this machine. GFLOPs are \
             billions of multiply-adds, as in torchvision's table.",
        )
        .arg(Arg::new("name").value_name("NAME").num_args(0..).help("Models [default: all]"))
        .arg(switch("bench", "Measure images per second in training, on synthetic images"))
        .args(settings_with(SETTINGS, &[DEFAULT, ONE_DEVICE].concat()))
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let mut config = settings::finish(settings::layers(matches)?, Ranks::One)?;
    config.train.batch = config.train.batch.or(Some(DEFAULT_BATCH));
    let known = |name: &String| enmasse_models::find(name).map_err(Failure::usage);
    let models: Vec<Model> = match matches.get_many("name") {
        Some(names) => names.map(known).collect::<Result<_, _>>()?,
        None => enmasse_models::models().to_vec(),
    };
    let _interrupts = Interrupts::watch()?;
    let mut output = Output::new(config.program.json);
    if !output.is_json() {
        let rate = if matches.get_flag("bench") { "  images/s" } else { "" };
        output
            .text(format_args!("{:<30} {:>12} {:>7}  images   top-1{rate}  weights", "model", "parameters", "GFLOPs"));
    }
    for model in models {
        let size = config.train.size.unwrap_or(model.size());
        let classes = default_classes(size);
        let (parameters, gflops) = work(&model, size, classes)?;
        let rate = match matches.get_flag("bench") {
            true => {
                let train = TrainConfig { model: model.name().to_owned(), size: Some(size), ..config.train.clone() };
                Some(bench::images_per_second(&RunConfig { train, ..config.clone() }, classes, STEPS)?)
            }
            false => None,
        };
        let known: Vec<String> = entries().filter(|entry| entry.model == model.name()).map(Entry::full_name).collect();
        let best = best(model.name());
        let top1 = best.and_then(|best| best.top1);
        match output.is_json() {
            true => output.json(json!({
                "model": model.name(), "parameters": parameters, "gflops": gflops, "size": size, "top1": top1,
                "weights": known, "images_per_second": rate
            })),
            false => {
                let parameters = grouped(parameters as u64);
                let images = format!("{size}x{size}");
                let top1 = top1.map_or(String::new(), |top1| format!("{top1:.1}"));
                let rate = rate.map_or(String::new(), |rate| format!("  {rate:>8.1}"));
                let others = known.len().saturating_sub(1);
                let more = if others > 0 { format!(" and {others} more") } else { String::new() };
                let weights = best.map_or(String::new(), |best| format!("{}{more}", best.full_name()));
                let row = format!("{:<30} {parameters:>12} {gflops:>7.2}  {images:<8} {top1:>5}{rate}", model.name());
                output.text(format!("{row}  {weights}").trim_end());
            }
        }
    }
    output.finish()
}

/// The number of a model's parameters, and the billions of multiply-adds for one image, from its plan.
fn work(model: &Model, size: usize, classes: usize) -> Result<(usize, f64), Failure> {
    let options = CompileOptions::new(model.name(), 1, size, classes);
    let plans = compile_evaluation(&|x| model.forward(x, classes), &options)
        .map_err(|error| failed!("{}: {error}", model.name()))?;
    let parameters = plans.state.iter().filter(|tensor| tensor.slot.arena == Arena::Parameters);
    let multiply_adds = plans.evaluate.total_cost().flops / 2;
    Ok((parameters.map(|tensor| tensor.shape.elements()).sum(), multiply_adds as f64 / 1e9))
}
