//! `enmasse predict RUN|WEIGHTS PATH…`: the most probable classes of images, and of all images in folders.

mod explain;
mod input;
mod rows;
mod table;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Arg, ArgMatches, Command, value_parser};
use enmasse_data::{BadSample, Dataset, DecodePool};
use enmasse_datasets::{DataKind, TaskKind};
use enmasse_parquet::TableColumn;
use enmasse_train::{CalibrationRecord, Images, Prediction};
use enmasse_wording::{counted, grouped};
use serde_json::json;

use self::explain::Explanations;
use self::input::{INPUT, Names, given_paths};
use self::table::{Table, TableForm, TablePlace};
use crate::command_line::arguments::{self, ONE_DEVICE};
use crate::command_line::settings::{self, Ranks};
use crate::commands::weights::{self, OF_A_RUN, Source, Weights};
use crate::failure::{Failure, failed, usage};
use crate::output::{Output, say, say_failure};
use crate::ranks::Rank;
use crate::ranks::interrupt::Interrupts;

/// The settings that apply to it.
const PREDICTION: &str = "\
    model prefix size channels mean std interpolation crop_pct batch devices threads loader_threads precision isa exact \
    convert_rgb exif_transpose path_column manifest_root cache_dir cache_limit json";

const EXAMPLES: &str = "\
Examples:
  enmasse predict runs/a rose.jpg tulip.jpg
  enmasse predict runs/a photos --csv > classes.csv
  enmasse predict runs/a photos --out classes.parquet
  find photos -name '*.jpg' | enmasse predict runs/a --files-from - --out classes.csv --resume
  enmasse predict runs/a new.csv --path-column file
  enmasse predict runs/a photos --explain heatmaps
  enmasse predict runs/a 'shards/new-{000..009}.tar' data/test-00000-of-00001.parquet
  curl -s https://example.org/rose.jpg | enmasse predict runs/a -
  enmasse predict resnet34.pth photos --model resnet34 --top 1
  enmasse predict hf:timm/resnet18.a1_in1k rose.jpg";

/// The flag with a file of names.
const FILES_FROM: &str = "files-from";

/// The command line of `enmasse predict`.
pub fn command() -> Command {
    Command::new("predict")
        .about("The most probable classes of images")
        .after_help(EXAMPLES)
        .arg(arguments::source())
        .arg(
            Arg::new("images")
                .value_name("PATH")
                .required_unless_present(FILES_FROM)
                .num_args(1..)
                .value_parser(value_parser!(PathBuf))
                .help("Image files, folders (all images in them, at any depth, in the order of their paths), manifests, WebDataset archives, Parquet files and packed files. Labels do not count. - reads one image from standard input"),
        )
        .arg(arguments::file(
            FILES_FROM,
            "Also predict the image files whose names are in this file, one a line. - reads names from standard input, and predicts them as they come",
        ))
        .arg(arguments::count("top", "K", "Classes to tell of each image [default: 5, in a table 1]"))
        .arg(temperature())
        .arg(arguments::switch(
            "csv",
            "Print a table: path, class, probability, and class_2, probability_2 and so on with --top",
        ))
        .args(table::flags())
        .args(arguments::crops())
        .args(explain::flags())
        .args(arguments::settings_with(PREDICTION, &[OF_A_RUN, ONE_DEVICE].concat()))
}

/// The flag with the temperature of probabilities.
pub fn temperature() -> Arg {
    arguments::option("temperature", "T").value_parser(temperature_value).help("Divide the logits by T before they become probabilities [default: what eval fitted on the run's validation part, otherwise 1]")
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let _interrupts = Interrupts::watch()?;
    let mut layers = settings::layers(matches)?;
    let is_json = layers.config().program.json;
    let place = TablePlace::of(matches)?;
    let form = OutputForm::of(is_json, matches.get_flag("csv"), place.is_some())?;
    if let Some(whole) = place.as_ref().and_then(TablePlace::finished) {
        say(format_args!("--resume: {} is whole; nothing left to do", whole.display()));
        return Ok(());
    }
    let names = matches.get_one::<PathBuf>(FILES_FROM);
    if names.is_some_and(|names| *names == *INPUT) && paths(matches).any(|path| *path == *INPUT) {
        return Err(usage!("-: standard input has either an image or names of images; leave one of them out"));
    }
    // Folders are listed before the weights, which may be large, are read.
    let given = given_paths(paths(matches))?;
    let names = names.map(|names| Names::open(names)).transpose()?;
    let source = Source::find(matches, &mut layers)?;
    let mut weights = weights::open(source, &layers, DataKind::Folder, true)?;
    weights.classifier.require_classes()?;
    weights.report();
    take_kept(&mut weights, matches.get_one("temperature").copied())?;
    let config = weights.compute_as_trained(settings::finish(layers.clone(), Ranks::One)?)?;
    let is_table = form == OutputForm::Csv || place.as_ref().is_some_and(|place| place.form != TableForm::JsonLines);
    let top = matches.get_one("top").copied().unwrap_or(if is_table { 1 } else { 5 });
    let top = top.min(weights.classifier.classes.len());
    let crops = arguments::given_crops(matches);

    let kind = weights.classifier.kind();
    let images = input::images(given, &config.train, &layers, (kind, names.is_some()))?;
    let origin = || format!("{} --top={top} {}", weights.classifier.digest(), arguments::crops_flag(&crops));
    let table = place.map(|place| place.begin(&origin())).transpose()?;
    settings::tell_of_idle_devices(&layers);
    let rank = Rank::alone();
    let device = rank.device(&config)?;
    let batch = config.train.batch_per_shard(1);
    let batch = if names.is_some() { batch } else { batch.min(images.len().max(1)) };
    let forward = |x, classes| weights.model.forward(x, classes);
    let mut program = weights.classifier.program(&forward, device.as_ref(), batch)?;
    let explanations = Explanations::begin(matches, &weights, device.as_ref())?;
    let pool = DecodePool::new(rank.loader_threads(&config.train)).map_err(Failure::error)?;

    let columns = rows::columns(kind, top, &weights.classifier.classes);
    let output = Output::new(is_json);
    let mut results = Results { output, form, kind, table, explanations, failure: None, unreadable: 0 };
    if form == OutputForm::Csv {
        results.output.text(rows::header(&columns));
    }
    let mut predict = |mut images: Images| {
        if let Some(table) = &mut results.table {
            images.retain(|image| !table.is_done(image));
        }
        if images.len() == 0 {
            return Ok(());
        }
        let images = Arc::new(images);
        let each = |found: Result<_, &BadSample>| results.add(&images, found);
        weights.classifier.predict_each(program.as_mut(), &pool, images.clone(), &crops, top, each)?;
        results.end_of_piece()
    };
    predict(images)?;
    for names in names.into_iter().flatten() {
        let mut images = Images::new(config.train.reading());
        names?.into_iter().for_each(|name| images.add_file(name));
        predict(images)?;
    }
    results.finish(columns)
}

/// Takes what an evaluation kept in the run folder, and says what predictions follow from.
pub fn take_kept(weights: &mut Weights, temperature: Option<f64>) -> Result<(), Failure> {
    match temperature {
        Some(_) if weights.classifier.kind() == TaskKind::Regression => {
            return Err(usage!("--temperature: is for probabilities, and this run predicts numbers; leave it out"));
        }
        Some(given) => weights.classifier.temperature = given,
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
    Ok(())
}

/// The PATHs.
fn paths(matches: &ArgMatches) -> impl Iterator<Item = &PathBuf> {
    matches.get_many("images").into_iter().flatten()
}

/// Where predictions go.
struct Results {
    output: Output,
    form: OutputForm,
    kind: TaskKind,
    table: Option<Table>,
    explanations: Option<Explanations>,
    /// Why something could not be written.
    failure: Option<Failure>,
    unreadable: usize,
}

impl Results {
    /// Takes the prediction of one of `images`, or why there is none. Breaks once something cannot be written.
    fn add(&mut self, images: &Images, found: Result<(usize, Prediction), &BadSample>) -> ControlFlow<()> {
        match found {
            Ok((index, prediction)) => self.write(images, index, &prediction).map_or_else(
                |failure| {
                    self.failure = Some(failure);
                    ControlFlow::Break(())
                },
                ControlFlow::Continue,
            ),
            Err(BadSample { name, problem }) => {
                say_failure(&failed!("{name}: {problem}"));
                self.unreadable += 1;
                ControlFlow::Continue(())
            }
        }
    }

    fn write(&mut self, images: &Images, index: usize, prediction: &Prediction) -> Result<(), Failure> {
        let explain = |explanations: &mut Explanations| explanations.write(images, index, prediction);
        let heatmap = self.explanations.as_mut().map(explain).transpose()?;
        let heatmap = heatmap.as_deref();
        match (&mut self.table, self.form) {
            (Some(table), _) => table.push(&rows::object(prediction, heatmap))?,
            (None, OutputForm::Json) => self.output.json(rows::object(prediction, heatmap)),
            (None, OutputForm::Csv) => self.output.text(rows::row(prediction, self.kind)),
            (None, OutputForm::Text) => {
                rows::lines(prediction, heatmap).into_iter().for_each(|line| self.output.text(line));
            }
        }
        Ok(())
    }

    /// After images that were predicted together: what is known of them survives this process.
    fn end_of_piece(&mut self) -> Result<(), Failure> {
        match self.failure.take() {
            Some(failure) => Err(failure),
            None => self.table.as_mut().map_or(Ok(()), Table::flush),
        }
    }

    fn finish(mut self, columns: Vec<TableColumn>) -> Result<(), Failure> {
        if let Some(table) = self.table {
            let (rows, resumed) = (table.rows, table.resumed);
            let out = table.finish(columns, self.kind)?;
            self.output.json(json!({
                "event": "predict", "file": out, "images": rows, "resumed": resumed, "unreadable": self.unreadable
            }));
            if !self.output.is_json() {
                let earlier = match resumed {
                    0 => String::new(),
                    resumed => format!(", {} of them by earlier commands", grouped(resumed)),
                };
                let images = counted(rows as usize, "image");
                self.output.text(format_args!("wrote {}: {images}{earlier}", out.display()));
            }
        }
        self.output.finish()?;
        // Each of these images has its own line.
        Failure::told(u8::from(self.unreadable > 0))
    }
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

/// The form of what is printed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OutputForm {
    Text,
    Json,
    Csv,
}

impl OutputForm {
    fn of(is_json: bool, is_csv: bool, has_table: bool) -> Result<Self, Failure> {
        match (is_json, is_csv) {
            (true, true) => Err(usage!("--csv: cannot be combined with --json; use one of them")),
            (false, true) if has_table => Err(usage!("--csv: prints a table, and --out writes one; use one of them")),
            (true, false) => Ok(OutputForm::Json),
            (false, true) => Ok(OutputForm::Csv),
            (false, false) => Ok(OutputForm::Text),
        }
    }
}
