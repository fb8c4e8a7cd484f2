//! `enmasse export RUN|WEIGHTS --to pth|safetensors|onnx`: weights as a file that PyTorch, torchvision and others open, or the
//! model with them as one that ONNX Runtime and others run.

mod onnx;

use std::fs::create_dir_all;
use std::path::{Path, PathBuf};

use clap::{ArgMatches, Command};
use enmasse_train::{
    Checkpoint, EvaluatedWeights, Preprocessing, RunPaths, WeightsFormat, is_checkpoint, load_weights,
};
use enmasse_weights::NamedTensor;
use enmasse_wording::{counted, grouped};
use serde_json::json;

use crate::command_line::arguments::{file, option, source, switch};
use crate::failure::{Failure, failed, usage};
use crate::output::Output;

/// The command line of `enmasse export`.
pub fn command() -> Command {
    Command::new("export")
        .about("A run's best weights as a file for PyTorch and others, with the preparation of images as JSON beside a .pth, or its model as ONNX")
        .arg(source())
        .arg(
            option("to", "FORMAT")
                .required(true)
                .value_parser(WeightsFormat::ALL.map(WeightsFormat::extension).into_iter().chain([onnx::EXTENSION]).collect::<Vec<_>>())
                .help("What torch.load opens, safetensors, or a model for ONNX Runtime, which needs a run"),
        )
        .arg(onnx::input())
        .args(onnx::int8())
        .arg(file("out", "File to write [default: RUN/weights/best.FORMAT, or beside the weights file]"))
        .arg(switch("json", "Print a JSON object"))
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let source = matches.get_one::<PathBuf>("source").cloned().unwrap_or_default();
    let word = matches.get_one::<String>("to").map_or("", String::as_str);
    if word == onnx::EXTENSION {
        return onnx::run(matches, &source);
    }
    if let Some(flag) = onnx::of_onnx_alone(matches) {
        return Err(usage!("--{flag}: is for --to onnx; leave it out"));
    }
    let format = WeightsFormat::ALL.into_iter().find(|format| format.extension() == word).unwrap_or(WeightsFormat::Pth);
    let weights = ExportedWeights::open(&source)?;
    let out = out(matches, &source, &weights.file, format.extension())?;
    let place = |found| Preprocessing::place(&out, format).map(|file| file.map(|file| (file, found)));
    let preprocessing = weights.preprocessing.as_ref().map(place).transpose();
    let preprocessing = preprocessing.map_err(|problem| usage!("{problem}; choose another --out"))?.flatten();

    let ExportedWeights { tensors, averaged, steps, .. } = &weights;
    format.write(&out, tensors, *steps).map_err(Failure::error)?;
    if let Some((file, found)) = &preprocessing {
        found.write(file).map_err(Failure::error)?;
    }

    let elements: usize = tensors.iter().map(|tensor| tensor.values.len()).sum();
    let mut output = Output::new(matches.get_flag("json"));
    match output.is_json() {
        true => output.json(json!({
            "event": "export", "file": out, "format": format.extension(), "tensors": tensors.len(), "elements": elements,
            "averaged": averaged, "preprocessing": preprocessing.as_ref().map(|(file, _)| file)
        })),
        false => {
            let what = counted(tensors.len(), "tensor");
            let numbers = grouped(elements as u64);
            let averaged = if *averaged { ", the averages of --ema or --lookahead" } else { "" };
            output.text(format_args!("wrote {}: {what}, {numbers} numbers{averaged}", out.display()));
            if let Some((file, _)) = &preprocessing {
                output.text(format_args!("wrote {}: how images are prepared for them", file.display()));
            }
        }
    }
    output.finish()
}

/// A model's parameters and running statistics.
struct ExportedWeights {
    /// The file with the weights.
    file: PathBuf,
    tensors: Vec<NamedTensor>,
    /// Whether they are a run's averages.
    averaged: bool,
    /// Number of updates, for PyTorch's counters; 0 if the file does not have it.
    steps: i64,
    /// How images are prepared for them; a weights file does not say it.
    preprocessing: Option<Preprocessing>,
}

impl ExportedWeights {
    /// Opens a run's best checkpoint, a checkpoint, or any weights file.
    fn open(source: &Path) -> Result<Self, Failure> {
        let file = weights_of(source)?;
        let (tensors, steps, preprocessing) = match is_checkpoint(&file).map_err(Failure::error)? {
            true => {
                let Checkpoint { meta, tensors } = Checkpoint::load(&file).map_err(Failure::error)?;
                (tensors, meta.optimizer_step as i64, Some(Preprocessing::of(&meta)?))
            }
            false => (load_weights(&file).map_err(Failure::error)?, 0, None),
        };
        // Other programs do not need the optimiser's state.
        let EvaluatedWeights { weights: tensors, averaged, .. } = EvaluatedWeights::of(tensors);
        Ok(ExportedWeights { file, tensors, averaged, steps, preprocessing })
    }
}

/// The file with the weights: a run's best checkpoint, or the file itself.
fn weights_of(source: &Path) -> Result<PathBuf, Failure> {
    match source.is_dir() {
        true => RunPaths::new(source).require_weights().map_err(Failure::error),
        false => Ok(source.to_owned()),
    }
}

/// The file to write: the one that is named, or the default, among a run's weights or next to the file. It must not be the export's own
/// source.
fn out(matches: &ArgMatches, source: &Path, weights: &Path, extension: &str) -> Result<PathBuf, Failure> {
    let out = match matches.get_one::<PathBuf>("out") {
        Some(out) => out.clone(),
        None if !source.is_dir() => weights.with_extension(extension),
        None => {
            let folder = source.join("weights");
            create_dir_all(&folder).map_err(|error| failed!("cannot create {}: {error}", folder.display()))?;
            folder.join("best").with_extension(extension)
        }
    };
    let same = |a: &Path, b: &Path| matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b);
    match same(weights, &out) {
        true => Err(usage!("{}: is the file to be exported itself; choose another --out", out.display())),
        false => Ok(out),
    }
}
