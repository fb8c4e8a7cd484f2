//! `enmasse predict RUN|WEIGHTS PATH…`: the most probable classes of images, and of all images in folders.

mod explain;

use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Arg, ArgMatches, Command, value_parser};
use enmasse_data::{BadSample, Dataset, DecodePool};
use enmasse_datasets::{DataKind, DataLayout, LeftOut, TaskKind, holds_unlabelled, list_images, open_unlabelled};
use enmasse_image::decode::MAX_FILE_BYTES;
use enmasse_train::{
    CalibrationRecord, Guess, Images, LayeredConfig, PredictedValue, Prediction, Surroundings, TrainConfig,
};
use enmasse_wording::counted;
use serde_json::{Value, json};

use self::explain::Explanations;
use crate::command_line::arguments::{self, ONE_DEVICE};
use crate::command_line::settings::{self, Ranks};
use crate::commands::weights::{self, OF_A_RUN, Source};
use crate::failure::{Failure, failed, usage};
use crate::output::csv::field;
use crate::output::{Output, say, say_failure, warn, warn_of_left_out};
use crate::ranks::Rank;
use crate::ranks::interrupt::Interrupts;
use crate::report::percent;

/// The settings that apply to it.
const PREDICTION: &str = "\
    model prefix size channels mean std interpolation crop_pct batch devices threads loader_threads precision isa exact \
    convert_rgb exif_transpose path_column manifest_root cache_dir cache_limit json";

const EXAMPLES: &str = "\
Examples:
  enmasse predict runs/a rose.jpg tulip.jpg
  enmasse predict runs/a photos --csv > classes.csv
  enmasse predict runs/a new.csv --path-column file
  enmasse predict runs/a photos --explain heatmaps
  enmasse predict runs/a 'shards/new-{000..009}.tar' data/test-00000-of-00001.parquet
  curl -s https://example.org/rose.jpg | enmasse predict runs/a -
  enmasse predict resnet34.pth photos --model resnet34 --top 1
  enmasse predict hf:timm/resnet18.a1_in1k rose.jpg";

/// The command line of `enmasse predict`.
pub fn command() -> Command {
    Command::new("predict")
        .about("The most probable classes of images")
        .after_help(EXAMPLES)
        .arg(arguments::source())
        .arg(
            Arg::new("images")
                .value_name("PATH")
                .required(true)
                .num_args(1..)
                .value_parser(value_parser!(PathBuf))
                .help("Image files, folders (all images in them, at any depth, in the order of their paths), manifests, WebDataset archives, Parquet files and packed files. Labels do not count. - reads one image from standard input"),
        )
        .arg(arguments::count("top", "K", "Classes to tell of each image [default: 5, with --csv 1]"))
        .arg(
            arguments::option("temperature", "T")
                .value_parser(temperature_value)
                .help("Divide the logits by T before they become probabilities [default: what eval fitted on the run's validation part, otherwise 1]"),
        )
        .arg(arguments::switch(
            "csv",
            "Print a table: path, class, probability, and class_2, probability_2 and so on with --top",
        ))
        .args(arguments::crops())
        .args(explain::flags())
        .args(arguments::settings_with(PREDICTION, &[OF_A_RUN, ONE_DEVICE].concat()))
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let _interrupts = Interrupts::watch()?;
    let mut layers = settings::layers(matches)?;
    let form = match (layers.config().program.json, matches.get_flag("csv")) {
        (true, true) => {
            return Err(usage!("--csv: cannot be combined with --json; use one of them"));
        }
        (true, false) => OutputForm::Json,
        (false, true) => OutputForm::Csv,
        (false, false) => OutputForm::Text,
    };
    // Folders are listed before the weights, which may be large, are read.
    let given = given_paths(matches.get_many("images").into_iter().flatten())?;
    let source = Source::find(matches, &mut layers)?;
    let mut weights = weights::open(source, &layers, DataKind::Folder, true)?;
    weights.classifier.require_classes()?;
    weights.report();
    match matches.get_one("temperature") {
        Some(_) if weights.classifier.kind() == TaskKind::Regression => {
            return Err(usage!("--temperature: is for probabilities, and this run predicts numbers; leave it out"));
        }
        Some(&given) => weights.classifier.temperature = given,
        None => {
            let kept = weights.classifier.take_temperature(&weights.path)?;
            kept.iter().for_each(tell_of_temperature);
        }
    }
    if let Some(kept) = weights.classifier.take_thresholds(&weights.path)? {
        let images = counted(kept.samples as usize, "image");
        say(format_args!("labels are those above the thresholds that were best on {images} of the validation part"));
    }
    if weights.classifier.averaged {
        say(format_args!("the weights are the averages of --ema or --lookahead"));
    }
    let config = weights.compute_as_trained(settings::finish(layers.clone(), Ranks::One)?)?;
    let top = matches.get_one("top").copied().unwrap_or(if form == OutputForm::Csv { 1 } else { 5 });
    let top = top.min(weights.classifier.classes.len());

    let images = Arc::new(images(given, &config.train, &layers, weights.classifier.kind())?);
    settings::tell_of_idle_devices(&layers);
    let rank = Rank::alone();
    let device = rank.device(&config)?;
    let batch = config.train.batch_per_shard(1).min(images.len());
    let forward = |x, classes| weights.model.forward(x, classes);
    let mut program = weights.classifier.program(&forward, device.as_ref(), batch)?;
    let mut explanations = Explanations::begin(matches, &weights, device.as_ref(), &images)?;
    let pool = DecodePool::new(rank.loader_threads(&config.train)).map_err(Failure::error)?;

    let kind = weights.classifier.kind();
    let mut output = Output::new(form == OutputForm::Json);
    if form == OutputForm::Csv {
        output.text(match kind {
            TaskKind::Classification => header(top),
            TaskKind::MultiLabel => format!("{},labels", header(top)),
            TaskKind::Regression => header_of_values(&weights.classifier.classes),
        });
    }
    let (mut unreadable, mut unexplained) = (0, None);
    let crops = arguments::given_crops(matches);
    weights.classifier.predict_each(program.as_mut(), &pool, images, &crops, top, |found| match found {
        // After the first failure to write nothing else is printed.
        Ok(_) if unexplained.is_some() => {}
        Ok((index, prediction)) => {
            let written = explanations.as_mut().map(|explanations| explanations.write(index, &prediction)).transpose();
            let heatmap = written.unwrap_or_else(|failure| {
                unexplained = Some(failure);
                None
            });
            match form {
                OutputForm::Json => output.json(object(&prediction, heatmap.as_deref())),
                OutputForm::Csv => output.text(row(&prediction, kind)),
                OutputForm::Text => {
                    lines(&prediction, heatmap.as_deref()).into_iter().for_each(|line| output.text(line))
                }
            }
        }
        Err(BadSample { name, problem }) => {
            say_failure(&failed!("{name}: {problem}"));
            unreadable += 1;
        }
    })?;
    output.finish()?;
    if let Some(failure) = unexplained {
        return Err(failure);
    }
    // Each of these images has its own line.
    Failure::told(u8::from(unreadable > 0))
}

/// A positive number.
fn temperature_value(text: &str) -> Result<f64, &'static str> {
    let value = text.parse().ok().filter(|value: &f64| value.is_finite() && *value > 0.0);
    value.ok_or("must be a number above 0")
}

/// Says that probabilities are not the model's own.
fn tell_of_temperature(kept: &CalibrationRecord) {
    let CalibrationRecord { temperature, samples, .. } = kept;
    let images = counted(*samples as usize, "image");
    say(format_args!(
        "probabilities are those at temperature {temperature:.3}, fitted on {images} of the validation part; --temperature 1 gives the model's own"
    ));
}

/// The form of the output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OutputForm {
    Text,
    Json,
    Csv,
}

/// What is named by a path.
enum PredictInput {
    Image(PathBuf),
    DataSet(PathBuf),
    /// The bytes of standard input.
    Input(Vec<u8>),
}

/// The path that means standard input.
const INPUT: &str = "-";

/// An image from standard input.
fn input() -> Result<PredictInput, Failure> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return Err(usage!("-: standard input is a terminal; pipe an image into it, or name a file"));
    }
    let mut bytes = Vec::new();
    let read = stdin.lock().take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| failed!("-: cannot read standard input: {error}"))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let limit = MAX_FILE_BYTES >> 20;
        return Err(failed!("-: standard input is longer than {limit} MiB, the limit of an image"));
    }
    Ok(PredictInput::Input(bytes))
}

/// The given files, and the images in the given folders.
fn given_paths<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> Result<Vec<PredictInput>, Failure> {
    let (mut all, mut left_out) = (Vec::new(), LeftOut::default());
    let mut reads_input = false;
    for path in paths {
        if path == Path::new(INPUT) {
            if std::mem::replace(&mut reads_input, true) {
                return Err(usage!("-: standard input holds one image; name it once"));
            }
            all.push(input()?);
            continue;
        }
        if !path.is_dir() {
            let is_data_set = holds_unlabelled(path);
            all.push(if is_data_set { PredictInput::DataSet(path.clone()) } else { PredictInput::Image(path.clone()) });
            continue;
        }
        match list_images(path, &mut left_out) {
            Ok(inside) => all.extend(inside.into_iter().map(PredictInput::Image)),
            Err(_) if holds_unlabelled(path) => all.push(PredictInput::DataSet(path.clone())),
            Err(error) => return Err(Failure::error(error)),
        }
    }
    warn_of_left_out(&left_out);
    Ok(all)
}

/// The images to read, of which data sets have many. Warns of settings that have no effect on any of them.
fn images(
    given: Vec<PredictInput>,
    config: &TrainConfig,
    layers: &LayeredConfig,
    task: TaskKind,
) -> Result<Images, Failure> {
    let mut images = Images::new(config.reading());
    let mut found: Vec<(DataKind, DataLayout)> = Vec::new();
    for given in given {
        found.push(match given {
            PredictInput::Image(path) => {
                images.add_file(path);
                (DataKind::Folder, DataLayout::ClassFolders)
            }
            PredictInput::Input(bytes) => {
                images.add_bytes(bytes, INPUT.to_owned());
                (DataKind::Folder, DataLayout::ClassFolders)
            }
            PredictInput::DataSet(path) => {
                let data = open_unlabelled(&path, &config.open_options()).map_err(Failure::error)?;
                data.warnings.iter().for_each(warn);
                data.parts.into_iter().for_each(|part| images.add_part(part));
                (data.kind, data.layout)
            }
        });
    }
    found.dedup();
    let idle = |&(kind, layout): &(DataKind, DataLayout)| {
        let surroundings = Surroundings {
            kind,
            task,
            layout,
            has_blocks: false,
            has_parts: true,
            is_padded: false,
            is_launched: false,
        };
        layers.without_effect(&surroundings, |setting| weights::is_checked(PREDICTION, setting))
    };
    let lines =
        found.iter().map(idle).reduce(|idle, more| idle.into_iter().filter(|line| more.contains(line)).collect());
    lines.into_iter().flatten().for_each(warn);
    Ok(images)
}

/// The image, one line per class, and where its heatmap is.
fn lines(prediction: &Prediction, heatmap: Option<&Path>) -> Vec<String> {
    let line = |guess: &Guess| format!("  {:>8}  {} ({})", percent(guess.probability), guess.class, guess.index);
    let number = |found: &PredictedValue| format!("  {:>8.4}  {}", found.value, found.name);
    let lines = prediction.top.iter().map(line).chain(prediction.values.iter().map(number));
    let labels = (!prediction.labels.is_empty()).then(|| format!("  labels: {}", prediction.labels.join(", ")));
    let heatmap = heatmap.map(|path| format!("  heatmap: {}", path.display()));
    std::iter::once(prediction.image.clone()).chain(lines).chain(labels).chain(heatmap).collect()
}

/// The object of an image.
fn object(prediction: &Prediction, heatmap: Option<&Path>) -> Value {
    let mut object = json!(prediction);
    if let Some(path) = heatmap {
        object["heatmap"] = json!(path);
    }
    object
}

/// The names of the columns.
fn header(top: usize) -> String {
    let more = (2..=top).map(|place| format!(",class_{place},probability_{place}"));
    format!("path,class,probability{}", more.collect::<String>())
}

fn header_of_values(names: &[String]) -> String {
    format!("path{}", names.iter().map(|name| format!(",{}", field(name))).collect::<String>())
}

/// The labels of a row are between `|`, as tables for training may have them.
fn row(prediction: &Prediction, kind: TaskKind) -> String {
    let labels = (kind == TaskKind::MultiLabel).then(|| format!(",{}", field(&prediction.labels.join("|"))));
    let values: String = prediction.values.iter().map(|found| format!(",{}", found.value)).collect();
    let guesses = prediction.top.iter().map(|guess| format!(",{},{}", field(&guess.class), guess.probability));
    let (guesses, labels) = (guesses.collect::<String>(), labels.unwrap_or_default());
    format!("{}{guesses}{labels}{values}", field(&prediction.image))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_table() {
        let check = |image: &str, classes: &[&str], expected: &str| {
            let guess = |(index, class): (usize, &&str)| Guess { index, class: (*class).to_owned(), probability: 0.25 };
            let top = classes.iter().enumerate().map(guess).collect();
            let prediction = Prediction { image: image.to_owned(), top, ..Prediction::default() };
            assert_eq!(row(&prediction, TaskKind::Classification), expected);
        };
        check("a/b.jpg", &["rose"], "a/b.jpg,rose,0.25");
        check("a b.jpg", &["rose", "lily"], "a b.jpg,rose,0.25,lily,0.25");
        check("a,b.jpg", &["red, white"], "\"a,b.jpg\",\"red, white\",0.25");
        check("a\"b\".jpg", &["rose\nlily"], "\"a\"\"b\"\".jpg\",rose lily,0.25");
        assert_eq!(header(1), "path,class,probability");
        assert_eq!(header(3), "path,class,probability,class_2,probability_2,class_3,probability_3");
    }
}
