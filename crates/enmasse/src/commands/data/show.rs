//! `enmasse data show DATA`: what training makes of the pictures, to be looked at before a run.

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command};
use enmasse_charts::contact_sheet;
use enmasse_data::{
    Canvas, Dataset, EvalTransform, Resizer, Sampler, Sharding, TrainOrder, TrainTransform, Transform, View, Wanted,
};
use enmasse_files::write_whole;
use enmasse_train::{Group, Preparation, SETTINGS, draw_classes};
use enmasse_wording::counted;
use serde_json::json;

use super::opened::Opened;
use crate::arguments::{count, data, path, settings};
use crate::failure::Failure;
use crate::interrupt::Interrupts;
use crate::output::{Output, warn_of_left_out};

/// Settings of the data that change nothing on the sheet: its pictures are decoded at full size, and must be readable.
const WITHOUT_EFFECT: &[&str] = &["data", "num_classes", "decode", "on_bad_sample"];

const ABOUT: &str = "\
Each sample is shown as validation sees it, in a frame, and beside it as training sees it in this epoch and the next
ones, by all flags of augmentation. They are the first samples of the epoch, in the order of training.";

/// The command line of `enmasse data show`.
pub fn command() -> Command {
    let of_data = SETTINGS.iter().filter(|setting| setting.group == Group::Data).map(|setting| setting.name);
    let shown: Vec<&str> = of_data.filter(|name| !WITHOUT_EFFECT.contains(name)).chain(["seed", "json"]).collect();
    let file = |name: &'static str, usual: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("FILE").value_parser(path).default_value(usual).help(help)
    };
    Command::new("show")
        .about("Draw augmented training samples, and the sizes of the classes")
        .after_help(ABOUT)
        .args(data())
        .arg(file("sheet", "augmented.png", "Where to draw the samples, as PNG"))
        .arg(file("classes", "classes.svg", "Where to draw the number of pictures of each class, as SVG"))
        .arg(count("samples", "N", "Samples on the sheet").default_value("32"))
        .arg(count("versions", "N", "Augmented versions of each sample").default_value("4"))
        .arg(count("epoch", "N", "The epoch of the first version, counted from 1").default_value("1"))
        .args(settings(&shown))
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let _interrupts = Interrupts::watch()?;
    let opened = Opened::new(matches)?;
    let Opened { config, data, .. } = &opened;
    warn_of_left_out(&data.left_out);
    let number = |name: &str| matches.get_one::<usize>(name).copied().unwrap_or(1);
    let file = |name: &str| matches.get_one::<PathBuf>(name).cloned().unwrap_or_default();
    let (samples, versions, epoch) = (number("samples"), number("versions"), number("epoch") - 1);
    let (sheet, classes) = (file("sheet"), file("classes"));

    let preparation = Preparation::of(config, data);
    let view = Samples {
        dataset: data.train.as_ref(),
        validation: preparation.evaluation,
        training: preparation.train,
        seed: config.seed,
        epochs: epoch as u64..(epoch + versions) as u64,
    };
    view.validation.check().and_then(|()| view.training.check()).map_err(Failure::error)?;
    let sampler = config.training_sampler();
    let chosen = first_samples(data.train.as_ref(), sampler, config.seed, epoch as u64, samples)?;
    let groups = chosen.iter().map(|&index| view.group(index)).collect::<Result<Vec<_>, _>>()?;
    let png = contact_sheet(view.training.size(), &groups).map_err(Failure::error)?;
    write(&sheet, &png)?;
    write(&classes, draw_classes(data).as_bytes())?;

    let mut output = Output::new(config.json);
    match output.is_json() {
        true => {
            let sample = |&index: &usize| json!({ "index": index, "name": data.train.name(index), "class": data.classes[data.train.label(index)] });
            output.json(json!({
                "event": "show", "data": opened.root, "sheet": sheet, "classes": classes, "versions": versions,
                "augmentation": view.training.to_string(), "samples": chosen.iter().map(sample).collect::<Vec<_>>()
            }));
        }
        false => {
            output.text(format_args!("augmentation: {}", view.training));
            let (samples, versions) = (counted(chosen.len(), "sample"), counted(versions, "version"));
            output.text(format_args!("wrote {}: {samples}, each in {versions}", sheet.display()));
            output.text(format_args!("wrote {}: {}", classes.display(), counted(data.classes.len(), "class")));
        }
    }
    output.finish()
}

/// The first different samples of an epoch, in its order.
fn first_samples(
    dataset: &dyn Dataset,
    sampler: Sampler,
    seed: u64,
    epoch: u64,
    count: usize,
) -> Result<Vec<usize>, Failure> {
    let order = TrainOrder::of(dataset, sampler, seed, &Sharding::one(0, 1, 1)).map_err(Failure::error)?;
    let epoch = order.epoch(epoch);
    let mut seen = HashSet::new();
    let entries = (0..epoch.batches()).flat_map(|entry| epoch.global_batch(entry));
    Ok(entries.filter(|&index| seen.insert(index)).take(count).collect())
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    write_whole(path, |file| file.write_all(bytes)).map_err(Failure::error)
}

/// Makes the pictures of the sheet.
struct Samples<'a> {
    dataset: &'a dyn Dataset,
    validation: EvalTransform,
    training: TrainTransform,
    seed: u64,
    epochs: std::ops::Range<u64>,
}

impl Samples<'_> {
    /// A sample as validation sees it, and as training sees it in each epoch.
    fn group(&self, index: usize) -> Result<Vec<Vec<u8>>, Failure> {
        let mut view = View::default();
        self.dataset.read_part(index, &Wanted::whole, &mut view).map_err(Failure::error)?;
        let size = self.training.size();
        let mut group = vec![vec![0; size * size * 3]];
        self.validation.fit(view.picture(), &mut Resizer::default(), &mut group[0]);
        for epoch in self.epochs.clone() {
            let mut canvas = Canvas::new(view.picture().clone());
            self.training.apply(&mut canvas, self.seed, epoch, index as u64);
            group.push(canvas.picture().pixels().to_vec());
        }
        Ok(group)
    }
}
