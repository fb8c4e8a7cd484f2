//! `enmasse export RUN --to onnx`: the model with a run's best weights, for ONNX Runtime and others.

use std::path::Path;

use clap::{Arg, ArgMatches};
use enmasse_datasets::DataKind;
use enmasse_onnx::{Model, OPSET};
use enmasse_train::{Classifier, ImageInput, Preparation, TrainConfig, is_checkpoint};
use serde_json::json;

use super::{out, weights_of};
use crate::command_line::arguments::option;
use crate::failure::{Failure, usage};
use crate::output::Output;
use crate::pretrained::entries;

/// The word for the format, and the extension of its files.
pub const EXTENSION: &str = "onnx";

/// How the model takes images.
pub fn input() -> Arg {
    option("input", "FORM").value_parser(ImageInput::ALL.map(ImageInput::name)).help(
        "What an ONNX model takes, as it normalises images itself: bytes of pixels [batch, height, width, channels], or numbers from 0 to 1 [batch, channels, height, width], as torchvision's ToTensor gives them [default: uint8-nhwc]",
    )
}

pub fn run(matches: &ArgMatches, source: &Path) -> Result<(), Failure> {
    let word = matches.get_one::<String>("input").map_or("", String::as_str);
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
        let (file, model) = (file.display(), &classifier.model);
        return Err(usage!(
            "{file}: its model \"{model}\" was defined by the program that trained it; export it there, by Classifier::to_onnx"
        ));
    };
    let out = out(matches, source, &file, EXTENSION)?;
    let graph = classifier.to_onnx(&|x, classes| model.forward(x, classes), input)?;
    let nodes = graph.nodes();
    let mut metadata = classifier.onnx_metadata(input);
    metadata.extend(license(&classifier).map(|license| ("license".to_owned(), license.to_owned())));
    let exported = Model { graph, producer: "enmasse", version: env!("CARGO_PKG_VERSION"), metadata };
    exported.write(&out).map_err(Failure::error)?;

    let mut output = Output::new(matches.get_flag("json"));
    match output.is_json() {
        true => output.json(json!({
            "event": "export", "file": out, "format": EXTENSION, "opset": OPSET, "input": input.name(), "nodes": nodes,
            "averaged": classifier.averaged
        })),
        false => {
            let averaged = if classifier.averaged { ", the averages of --ema or --lookahead" } else { "" };
            let input = input.name();
            output.text(format_args!(
                "wrote {}: opset {OPSET}, {nodes} nodes, images as {input}{averaged}",
                out.display()
            ));
        }
    }
    output.finish()
}

/// The licence of the known weights with which the run began.
fn license(classifier: &Classifier) -> Option<&'static str> {
    let origin = classifier.configuration.train.weights_origin.as_deref()?;
    let name = origin.split_once(',').map_or(origin, |(name, _)| name);
    entries().find(|entry| entry.full_name() == name).map(|entry| entry.license.as_str())
}
