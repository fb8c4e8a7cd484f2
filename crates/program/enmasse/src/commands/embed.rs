//! `enmasse embed DATA --weights RUN|WEIGHTS --out FILE`: the features of all images, for other programs.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{ArgMatches, Command};
use enmasse_data::{Batch, Dataset, DecodePool, EvalLoader, Sharding};
use enmasse_datasets::TaskKind;
use enmasse_device::Program;
use enmasse_image::EvalTransform;
use enmasse_parquet::{Cell, TableColumn, TableWriter};
use enmasse_system::files::write_whole;
use enmasse_train::{Features, RunConfig, TrainingData};
use enmasse_wording::counted;

use crate::command_line::arguments::{self, ONE_DEVICE, SOURCE};
use crate::command_line::settings::{self, Ranks};
use crate::commands::weights::{self, OF_A_RUN, Source, Weights};
use crate::failure::{Failure, failed, usage};
use crate::output::csv::field;
use crate::output::{Output, warn, warn_of_left_out};
use crate::ranks::Rank;
use crate::ranks::interrupt::Interrupts;

/// The settings that apply to it, besides [`SOURCE`].
const EMBEDDING: &str = "\
    model prefix size channels mean std interpolation crop_pct batch devices threads loader_threads precision isa exact \
    convert_rgb exif_transpose on_bad_sample split split_seed";

const EXAMPLES: &str = "\
Examples:
  enmasse embed photos --weights runs/a --out features.npy
  enmasse embed photos --weights runs/a --out features.parquet
  enmasse embed photos --weights resnet34.pth --model resnet34 --layer layer3 --out layer3.npy";

/// The command line of `enmasse embed`.
pub fn command() -> Command {
    let weights = arguments::option("weights", "RUN|WEIGHTS").id("source").required(true).value_parser(arguments::path);
    let layer = "The layer whose output they are, by the beginning of its parameters' names [default: what the last layer reads]";
    Command::new("embed")
        .about("Features of images with their paths, classes and parts: as a Parquet file, or as a NumPy array with a table beside it")
        .after_help(EXAMPLES)
        .arg(arguments::data_as("Data as for train").required(true))
        .arg(
            weights
                .help("Run folder, or weights file (.pth, .ckpt or .safetensors) with torchvision's or timm's names"),
        )
        .arg(arguments::file("out", "Write them to this file, FILE.parquet, or FILE.npy and the table FILE.csv").required(true))
        .arg(arguments::option("layer", "NAME").help(layer))
        .args(arguments::settings_with(&format!("{EMBEDDING} {SOURCE}"), &[OF_A_RUN, ONE_DEVICE].concat()))
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let _interrupts = Interrupts::watch()?;
    let out = matches.get_one::<PathBuf>("out").cloned().unwrap_or_default();
    let is_array = out.extension().is_some_and(|ending| ending == "npy");
    if !is_array && out.extension().is_none_or(|ending| ending != "parquet") {
        let out = out.display();
        return Err(usage!("--out {out}: features are written as a NumPy array, FILE.npy, or a table, FILE.parquet"));
    }
    let mut layers = settings::layers(matches)?;
    let source = Source::find(matches, &mut layers)?;
    let root = layers.config().train.data.clone().unwrap_or_default();
    let data = TrainingData::open(&root, &layers.config().train.open_options())?;
    let weights = weights::open(source, &layers, data.kind, true)?;
    weights.report();
    let config = weights.compute_as_trained(settings::finish(layers, Ranks::One)?)?;
    warn_of_left_out(&data.left_out);
    data.warnings.iter().for_each(warn);
    let layer = matches.get_one::<String>("layer").map(String::as_str);
    let mut parts = Vec::new();
    for (part, images) in data.parts() {
        let found = features(&weights, &config, images, layer)?;
        let unreadable = found.labels.iter().filter(|label| **label < 0).count();
        if unreadable > 0 {
            let images = counted(unreadable, "image");
            warn(format_args!("{images} of the {part} part cannot be read: left out"));
        }
        parts.push((part, images, found));
    }
    let width = parts.first().map_or(0, |(.., features)| features.width);
    let rows: usize = parts.iter().map(|(.., features)| features.rows().count()).sum();
    let write = |path: &Path, write: &dyn Fn(&mut dyn Write) -> io::Result<()>| {
        write_whole(path, |file| write(file)).map_err(Failure::error)
    };
    let classes = (&data.classes[..], data.task == TaskKind::Classification);
    let mut output = Output::new(false);
    let images = counted(rows, "image");
    if !is_array {
        write(&out, &|file| {
            let texts = ["path", "class", "part"].map(|name| TableColumn::Text(name.to_owned()));
            let features = TableColumn::Numbers("features".to_owned(), width);
            let mut table = TableWriter::new(file, texts.into_iter().chain([features]).collect())?;
            each_image(&parts, classes, |[path, class, part], row| {
                table.row(&[Cell::Text(path), Cell::Text(class), Cell::Text(part), Cell::Numbers(row)])
            })?;
            table.finish().map(drop)
        })?;
        output.text(format_args!("{images}, {width} features each, with paths and classes: {}", out.display()));
        return output.finish();
    }
    write(&out, &|file| {
        file.write_all(&header(rows, width))?;
        each_image(&parts, classes, |_, row| row.iter().try_for_each(|value| file.write_all(&value.to_le_bytes())))
    })?;
    let table = out.with_extension("csv");
    write(&table, &|file| {
        writeln!(file, "path,class,part")?;
        each_image(&parts, classes, |[path, class, part], _| writeln!(file, "{},{},{part}", field(path), field(class)))
    })?;
    let (out, table) = (out.display(), table.display());
    output.text(format_args!("{images}, {width} features each: {out}, with paths and classes in {table}"));
    output.finish()
}

/// Calls `each` with the name, class and part of each image that can be read, and with its features.
fn each_image(
    parts: &[(&'static str, &Arc<dyn Dataset>, Features)],
    (classes, has_classes): (&[String], bool),
    mut each: impl FnMut([&str; 3], &[f32]) -> io::Result<()>,
) -> io::Result<()> {
    for (part, images, features) in parts {
        let known = features.labels.iter().enumerate().filter(|(_, label)| **label >= 0);
        for ((index, _), (row, label)) in known.zip(features.rows()) {
            // Labels and numbers have no class.
            let class = classes.get(label).filter(|_| has_classes).map_or("", String::as_str);
            each([&images.name(index), class, part], row)?;
        }
    }
    Ok(())
}

/// The features of a data set, on one device.
pub fn features(
    weights: &Weights,
    config: &RunConfig,
    images: &Arc<dyn Dataset>,
    layer: Option<&str>,
) -> Result<Features, Failure> {
    let batch = config.train.batch_per_shard(1).min(images.len().max(1));
    Extractor::new(weights, config, batch, layer)?.features(images, &mut |_| ())
}

/// Computes features on one device.
pub struct Extractor {
    program: Box<dyn Program>,
    pool: DecodePool,
    transform: EvalTransform,
    batch: usize,
}

impl Extractor {
    /// Of a layer, or of what the last layer reads, `batch` images at once.
    pub fn new(weights: &Weights, config: &RunConfig, batch: usize, layer: Option<&str>) -> Result<Self, Failure> {
        let rank = Rank::alone();
        let device = rank.device(config)?;
        let forward = |x, classes| weights.model.forward(x, classes);
        let program = weights.classifier.features(&forward, device.as_ref(), batch, layer)?;
        let pool = DecodePool::new(rank.loader_threads(&config.train)).map_err(Failure::error)?;
        Ok(Extractor { program, pool, transform: weights.classifier.transform.clone(), batch })
    }

    /// The features of all images. `done` hears before each batch how many images are done.
    pub fn features(&mut self, images: &Arc<dyn Dataset>, done: &mut dyn FnMut(usize)) -> Result<Features, Failure> {
        let sharding = Sharding::one(0, 1, self.batch);
        let loader = EvalLoader::new(&self.pool, images.clone(), self.transform.clone(), sharding);
        let loader = loader.map_err(Failure::error)?.skip_unreadable(true);
        let mut count = 0;
        let mut proceed = |batch: &Batch| {
            done(count);
            count += batch.places().count();
            Ok(true)
        };
        let found = Features::compute(self.program.as_mut(), &loader, images.len(), None, &mut proceed)?;
        found.ok_or_else(|| failed!("the features are not complete"))
    }
}

/// The beginning of a NumPy array of f32 in version 1.0 of the format, whose length is a multiple of 64.
fn header(rows: usize, width: usize) -> Vec<u8> {
    let words = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}");
    let length = (10 + words.len() + 1).next_multiple_of(64) - 10;
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend((length as u16).to_le_bytes());
    header.extend(format!("{words:<0$}\n", length - 1).into_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_fill_multiples_of_64_bytes() {
        for (rows, width) in [(0, 0), (1000, 1280), (usize::MAX, 4)] {
            let found = header(rows, width);
            let length = usize::from(u16::from_le_bytes([found[8], found[9]]));
            assert_eq!((found.len() % 64, found.len(), found.last()), (0, 10 + length, Some(&b'\n')));
            let words = String::from_utf8_lossy(&found[10..]).into_owned();
            assert!(
                words.starts_with(&format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}"))
            );
        }
    }
}
