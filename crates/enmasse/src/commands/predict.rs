//! `enmasse predict RUN|WEIGHTS IMAGE…`: the most probable classes of pictures, in the order given.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};
use enmasse_data::DataKind;
use enmasse_train::Prediction;

use crate::arguments::{self, ONE_DEVICE};
use crate::commands::weights::{self, OF_A_RUN};
use crate::failure::Failure;
use crate::interrupt::Interrupts;
use crate::output::{Output, say};
use crate::ranks::Rank;
use crate::reporter::percent;
use crate::settings;

/// The settings that apply to it.
const PREDICTION: &[&str] = &[
    "model",
    "prefix",
    "size",
    "mean",
    "std",
    "batch",
    "devices",
    "threads",
    "precision",
    "isa",
    "exact",
    "convert_rgb",
    "json",
];

/// The command line of `enmasse predict`.
pub fn command() -> Command {
    Command::new("predict")
        .about("The most probable classes of pictures")
        .arg(arguments::source())
        .arg(
            Arg::new("images")
                .value_name("IMAGE")
                .required(true)
                .num_args(1..)
                .value_parser(value_parser!(PathBuf))
                .help("JPEG or PNG files"),
        )
        .arg(arguments::count("top", "K", "Classes to tell of each picture").default_value("5"))
        .args(arguments::settings_with(PREDICTION, &[OF_A_RUN, ONE_DEVICE].concat()))
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let _interrupts = Interrupts::watch()?;
    let layers = settings::layers(matches)?;
    let weights = weights::open(matches, &layers, DataKind::Folder, true)?;
    weights.report();
    if weights.classifier.averaged {
        say(format_args!("the weights are the averages of --ema"));
    }
    let config = weights.compute_as_trained(settings::finish(layers)?)?;
    let images: Vec<&PathBuf> = matches.get_many("images").into_iter().flatten().collect();
    let top = matches.get_one("top").copied().unwrap_or(1);

    let rank = Rank::alone();
    let device = rank.device(&config)?;
    let batch = config.batch_per_shard(1).min(images.len());
    let forward = |x, classes| weights.model.forward(x, classes);
    let mut program = weights.classifier.program(&forward, device.as_ref(), batch)?;
    let predictions = weights.classifier.predict(program.as_mut(), &images, top, config.convert_rgb)?;

    let mut output = Output::new(config.json);
    for prediction in &predictions {
        match output.is_json() {
            true => output.json(serde_json::to_string(prediction).map_err(Failure::error)?),
            false => output.text(lines(prediction)),
        }
    }
    output.finish()
}

/// The picture, and one line per class.
fn lines(prediction: &Prediction) -> String {
    let mut text = prediction.image.clone();
    for guess in &prediction.top {
        text.push_str(&format!("\n  {:>8}  {} ({})", percent(guess.probability), guess.class, guess.index));
    }
    text
}
