//! `enmasse export RUN --to onnx`: the model with a run's best weights, for ONNX Runtime and others.

use std::path::Path;
use std::sync::Arc;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches};
use enmasse_data::{Dataset, DecodePool};
use enmasse_datasets::DataKind;
use enmasse_onnx::{Model, OPSET};
use enmasse_train::{Classifier, ImageInput, LayeredConfig, Preparation, TrainConfig, is_checkpoint};
use enmasse_wording::counted;
use serde_json::json;

use super::{out, weights_of};
use crate::command_line::arguments::{count, option, switch};
use crate::commands::report::open_run::OpenRun;
use crate::data::sample::Sample;
use crate::failure::{Failure, usage};
use crate::output::Output;
use crate::pretrained::entries;
use crate::ranks::Rank;

/// The word for the format, and the extension of its files.
pub const EXTENSION: &str = "onnx";

const INPUT: &str = "input";
const INT8: &str = "int8";
const IMAGES: &str = "calibration-images";
const DEFAULT_IMAGES: usize = 256;

/// How the model takes images.
pub fn input() -> Arg {
    option(INPUT, "FORM").value_parser(ImageInput::ALL.map(ImageInput::name)).help(
        "What an ONNX model takes, as it normalises images itself: bytes of pixels [batch, height, width, channels], or numbers from 0 to 1 [batch, channels, height, width], as torchvision's ToTensor gives them [default: uint8-nhwc]",
    )
}

/// Whether the model has integers.
pub fn int8() -> [Arg; 2] {
    let images = count(IMAGES, "N", "Training images that --int8 reads, evenly over all of them [default: 256]");
    [
        switch(
            INT8,
            "Weights and activations of 8 bits, by the ranges of activations in training images of the run's data",
        ),
        images,
    ]
}

/// A flag that was given, and that other formats have not.
pub fn of_onnx_alone(matches: &ArgMatches) -> Option<&'static str> {
    let given = |flag: &&str| matches.value_source(flag) == Some(ValueSource::CommandLine);
    [INPUT, INT8, IMAGES].into_iter().find(given)
}

pub fn run(matches: &ArgMatches, source: &Path) -> Result<(), Failure> {
    let word = matches.get_one::<String>(INPUT).map_or("", String::as_str);
    let input = ImageInput::ALL.into_iter().find(|input| input.name() == word).unwrap_or_default();
    let file = weights_of(source)?;
    if !is_checkpoint(&file).map_err(Failure::error)? {
        let file = file.display();
        return Err(usage!(
            "{file}: holds weights alone, and ONNX needs the model and how its images are prepared; give a run folder, or a checkpoint of one"
        ));
    }
    let preparation = Preparation::new(&TrainConfig::default(), DataKind::Folder);
    let mut classifier = Classifier::open(&file, None, &preparation, &[])?;
    classifier.take_temperature(source)?;
    classifier.take_thresholds(source)?;
    let Ok(model) = enmasse_models::find(&classifier.model) else {
        let file = file.display();
        let model = &classifier.model;
        return Err(usage!(
            "{file}: its model \"{model}\" was defined by the program that trained it; export it there, by Classifier::to_onnx"
        ));
    };
    let out = out(matches, source, &file, EXTENSION)?;
    let forward = |x, classes| model.forward(x, classes);
    let int8 = Int8::of(matches, source)?;
    let graph = match &int8 {
        Some(int8) => classifier.to_onnx_int8(&forward, input, &int8.ranges)?,
        None => classifier.to_onnx(&forward, input)?,
    };
    let nodes = graph.nodes();
    let mut metadata = classifier.onnx_metadata(input);
    metadata.extend(int8.iter().map(|int8| ("calibration_images".to_owned(), int8.images.to_string())));
    metadata.extend(license(&classifier).map(|license| ("license".to_owned(), license.to_owned())));
    let exported = Model { graph, producer: "enmasse", version: env!("CARGO_PKG_VERSION"), metadata };
    exported.write(&out).map_err(Failure::error)?;

    let mut output = Output::new(matches.get_flag("json"));
    match output.is_json() {
        true => output.json(json!({
            "event": "export", "file": out, "format": EXTENSION, "opset": OPSET, "input": input.name(), "nodes": nodes,
            "averaged": classifier.averaged, "calibration_images": int8.map(|int8| int8.images)
        })),
        false => {
            let averaged = if classifier.averaged { ", the averages of --ema or --lookahead" } else { "" };
            let input = input.name();
            let int8 = int8.map_or(String::new(), |int8| {
                format!(", integers of 8 bits by the ranges in {} of the training part", counted(int8.images, "image"))
            });
            output.text(format_args!(
                "wrote {}: opset {OPSET}, {nodes} nodes, images as {input}{averaged}{int8}",
                out.display()
            ));
        }
    }
    output.finish()
}

/// The ranges of a run's activations.
struct Int8 {
    ranges: Vec<[f32; 2]>,
    /// The training images that have them.
    images: usize,
}

impl Int8 {
    /// `None` if the model is not to have integers.
    fn of(matches: &ArgMatches, run: &Path) -> Result<Option<Self>, Failure> {
        if !matches.get_flag(INT8) {
            return match matches.value_source(IMAGES) == Some(ValueSource::CommandLine) {
                true => Err(usage!("--{IMAGES}: is for --{INT8}; leave it out")),
                false => Ok(None),
            };
        }
        if !run.is_dir() {
            let run = run.display();
            return Err(usage!("{run}: --{INT8} needs a run folder, whose training images it reads; give that"));
        }
        let open = OpenRun::open(run, LayeredConfig::new(), true)?;
        let images = Sample::new(open.in_parts()?.train, matches.get_one(IMAGES).copied().unwrap_or(DEFAULT_IMAGES));
        let rank = Rank::alone();
        let model = &open.weights.model;
        let count = images.len();
        let device = rank.device(&open.config)?;
        let pool = DecodePool::new(rank.loader_threads(&open.config.train)).map_err(Failure::error)?;
        let forward = |x, classes| model.forward(x, classes);
        let ranges = open.weights.classifier.calibrate(&forward, device.as_ref(), Arc::new(images), &pool)?;
        Ok(Some(Int8 { ranges, images: count }))
    }
}

/// The licence of the known weights with which the run began.
fn license(classifier: &Classifier) -> Option<&'static str> {
    let origin = classifier.configuration.train.weights_origin.as_deref()?;
    let name = origin.split_once(',').map_or(origin, |(name, _)| name);
    entries().find(|entry| entry.full_name() == name).map(|entry| entry.license.as_str())
}
