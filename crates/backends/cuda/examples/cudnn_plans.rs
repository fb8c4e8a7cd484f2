//! Which convolutions of the zoo cuDNN takes on GPUs that need not be here: prints `docs/cudnn-plans.md`.
//!
//!     cargo run -p enmasse-cuda --example cudnn_plans "$(.ci/cuda target/cuda)" > docs/cudnn-plans.md
//!
//! Takes a quarter of an hour, nearly all of it for engines that are compiled at run time.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use enmasse_cuda::CudaError;
use enmasse_cuda::cudnn::{ConvolutionPlan, Cudnn, Direction, Problem, Target};
use enmasse_cuda::libraries::Libraries;
use enmasse_graph::Precision;

#[path = "../tests/cudnn_support/zoo.rs"]
mod zoo;

/// cuDNN's answer for one convolution.
type Answer = Result<ConvolutionPlan, CudaError>;

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).context("name the folder that .ci/cuda makes")?;
    let cudnn = Cudnn::load(&Libraries::in_folders(&[folder.into()]), u32::MAX)?;
    println!("# cuDNN's plans for the zoo\n");
    println!(
        "Made by `cargo run -p enmasse-cuda --example cudnn_plans FOLDER` on {}, with cuDNN {}, batches of {}, NHWC,\n\
         deterministic engines within {} GiB of workspace. FOLDER is what `.ci/cuda` makes.\n",
        today(),
        cudnn.version(),
        zoo::BATCH,
        zoo::OPTIONS.workspace >> 30,
    );
    println!(
        "Every convolution of a training step is planned by cuDNN itself, for a GPU that is described to it. \"Taken\" means that\n\
         cuDNN finalized a plan. Nothing was run. An engine that is compiled at run time counts as taken once NVRTC has compiled\n\
         it: a stand-in for the driver then says that the kernel is loaded. A refusal is no proof, since it may be due to the\n\
         missing driver. The models have {} distinct convolutions and gradients together.\n",
        distinct(&convolutions(Precision::F32)).len(),
    );
    let gpus = zoo::gpus();
    // The graphs of each reason.
    let mut refused: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for arithmetic in zoo::ARITHMETICS {
        let models = convolutions(arithmetic);
        let distinct = distinct(&models);
        let mut answers: Vec<BTreeMap<&String, Answer>> = Vec::new();
        for (name, json) in &gpus {
            let device = cudnn.device(json).context(name.clone())?;
            let ask = |problem: &Problem| {
                let plans = cudnn.plans(&Target::Device(&device), problem, &zoo::OPTIONS);
                plans.map(|mut plans| plans.swap_remove(0))
            };
            answers.push(distinct.iter().map(|(text, problem)| (text, ask(problem))).collect());
            eprintln!("{name}, {}", arithmetic.name());
        }
        println!("## {}\n\nGraphs taken, of those of each model's training step.\n", arithmetic.name());
        let names: Vec<&str> = gpus.iter().map(|(name, _)| name.as_str()).collect();
        println!("| model | {} |\n|---|{}", names.join(" | "), "---|".repeat(names.len()));
        for (model, problems) in &models {
            let cells = answers.iter().map(|answers| {
                let taken = problems.iter().filter(|problem| answers[&problem.to_string()].is_ok()).count();
                format!("{taken} of {}", problems.len())
            });
            println!("| {model} | {} |", cells.collect::<Vec<_>>().join(" | "));
        }
        println!("\n| of all | {} |\n|---|{}", names.join(" | "), "---|".repeat(names.len()));
        let row = |title: &str, cell: &dyn Fn(&BTreeMap<&String, Answer>) -> String| {
            println!("| {title} | {} |", answers.iter().map(cell).collect::<Vec<_>>().join(" | "));
        };
        row("largest workspace, MiB", &|answers| {
            let largest = answers.values().flatten().map(|plan| plan.workspace).max().unwrap_or(0);
            (largest >> 20).to_string()
        });
        row("gradients of weights written as", &|answers| {
            let is_weights = |plan: &&ConvolutionPlan| plan.problem().direction == Direction::BackwardWeights;
            let types = answers.values().flatten().filter(is_weights).map(|plan| plan.weights.name());
            types.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")
        });
        row("plans by an engine of the fallback", &|answers| {
            answers.values().flatten().filter(|plan| plan.is_fallback).count().to_string()
        });
        println!();
        for ((name, _), answers) in gpus.iter().zip(answers) {
            for error in answers.into_values().filter_map(Result::err) {
                let (operation, why) = match error {
                    CudaError::Refused { operation, why, .. } => (operation, why),
                    other => (String::new(), other.to_string()),
                };
                refused.entry(format!("{name}, {}: {why}", arithmetic.name())).or_default().push(operation);
            }
        }
    }
    println!("## Refused\n");
    if refused.is_empty() {
        println!("None.");
    }
    for (why, graphs) in refused {
        println!("- {why}: {} graphs, such as {}", graphs.len(), graphs[0]);
    }
    Ok(())
}

/// The convolutions of each model that has some.
fn convolutions(arithmetic: Precision) -> Vec<(&'static str, Vec<Problem>)> {
    let models = enmasse_models::models().iter().map(|model| (model.name(), zoo::convolutions(model, arithmetic)));
    models.filter(|(_, problems)| !problems.is_empty()).collect()
}

/// All distinct ones by their texts.
fn distinct(models: &[(&str, Vec<Problem>)]) -> BTreeMap<String, Problem> {
    models.iter().flat_map(|(_, problems)| problems).map(|problem| (problem.to_string(), *problem)).collect()
}

/// The date in UTC.
fn today() -> String {
    let date = std::process::Command::new("date").args(["-u", "+%F"]).output();
    date.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}
