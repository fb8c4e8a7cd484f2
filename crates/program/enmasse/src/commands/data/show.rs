//! `enmasse data show DATA`: what training makes of the images, to be looked at before a run.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{ArgMatches, Command};
use enmasse_charts::contact_sheet;
use enmasse_data::{Dataset, Sampler, Sharding, TrainOrder};
use enmasse_datasets::TaskKind;
use enmasse_image::{Canvas, EvalTransform, Image, ImageRegion, RegionRequest, Resizer, TrainTransform, Transform};
use enmasse_system::files::write_whole;
use enmasse_train::{Preparation, SETTINGS, Setting, SettingGroup, draw_classes};
use enmasse_wording::counted;
use serde_json::json;

use super::opened::Opened;
use super::targets::{json_of_image, noun};
use crate::command_line::arguments::{count, data, file, flag, settings};
use crate::failure::Failure;
use crate::output::{Output, warn, warn_of_left_out};
use crate::ranks::interrupt::Interrupts;

/// Settings of the data that change nothing on the sheet: its images are read once, at full size, and must be readable.
const WITHOUT_EFFECT: [&str; 5] = ["data", "num_classes", "decode", "on_bad_sample", "stage"];

const ABOUT: &str = "\
Each sample is shown as validation sees it, in a frame, and beside it as training sees it in this epoch and the next \
ones, by all flags of augmentation. They are the first samples of the epoch, in the order of training. With --mixup \
or --cutmix each is mixed with its neighbour in that order, as in training with an even global batch.";

/// The command line of `enmasse data show`.
pub fn command() -> Command {
    let is_shown = |setting: &&Setting| setting.group == SettingGroup::Data && !WITHOUT_EFFECT.contains(&setting.name);
    Command::new("show")
        .about("Draw augmented training samples, and the sizes of the classes")
        .after_help(ABOUT)
        .args(data())
        .arg(file("sheet", "Where to draw the samples, as PNG").default_value("augmented.png"))
        .arg(file("classes", "Where to draw the number of images of each class, as SVG").default_value("classes.svg"))
        .arg(count("samples", "N", "Samples on the sheet").default_value("32"))
        .arg(count("versions", "N", "Augmented versions of each sample").default_value("4"))
        .arg(count("epoch", "N", "The epoch of the first version, counted from 1").default_value("1"))
        .args(SETTINGS.iter().filter(is_shown).map(flag))
        .args(settings("seed json"))
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let _interrupts = Interrupts::watch()?;
    let opened = Opened::new(matches)?;
    let Opened { config, data, .. } = &opened;
    warn_of_left_out(&data.left_out);
    let number = |name: &str| matches.get_one::<usize>(name).copied().unwrap_or(1);
    let file = |name: &str| matches.get_one::<PathBuf>(name).cloned().unwrap_or_default();
    let samples = number("samples");
    let versions = number("versions");
    let epoch = number("epoch") - 1;
    let (sheet, classes) = (file("sheet"), file("classes"));

    let preparation = Preparation::of(&config.train, data);
    let dataset = data.train.as_ref();
    let sampler = config.train.training_sampler(data.train.as_ref());
    let (validation, training) = (preparation.evaluation, preparation.train);
    validation.check().and_then(|()| training.check()).map_err(Failure::error)?;
    let mut chosen = first_samples(dataset, sampler, config.train.seed, epoch as u64, samples)?;
    let epochs = epoch as u64..(epoch + versions) as u64;
    let epochs = match training.mixing() {
        None => epochs.map(|epoch| (epoch, Pairs::new())).collect(),
        Some(_) => epochs
            .map(|epoch| Ok((epoch, pairs(dataset, sampler, config.train.seed, epoch, &chosen)?)))
            .collect::<Result<_, Failure>>()?,
    };
    let view = Samples { dataset, validation, training, seed: config.train.seed, epochs };
    let mut groups = Vec::new();
    let mut failed = None;
    chosen.retain(|&index| match view.group(index) {
        Ok(group) => {
            groups.push(group);
            true
        }
        // As in training, and in `data stats`.
        Err(failure) => {
            warn(format_args!("skipped an image that cannot be read: {}", failure.message()));
            failed = Some(failure);
            false
        }
    });
    if let Some(failure) = failed.filter(|_| groups.is_empty()) {
        return Err(failure);
    }
    let png = contact_sheet(view.training.size(), &groups).map_err(Failure::error)?;
    write(&sheet, &png)?;
    // Of numbers there is nothing to count.
    let has_counts = data.task != TaskKind::Regression;
    if has_counts {
        write(&classes, draw_classes(data).as_bytes())?;
    }

    let mut output = Output::new(config.program.json);
    match output.is_json() {
        true => {
            let sample = |&index: &usize| {
                let (key, value) = json_of_image(data, dataset, index);
                json!({ "index": index, "name": data.train.name(index), key: value })
            };
            output.json(json!({
                "event": "show", "data": opened.root, "task": data.task, "sheet": sheet,
                "classes": has_counts.then_some(classes), "versions": versions,
                "augmentation": view.training.to_string(), "samples": chosen.iter().map(sample).collect::<Vec<_>>()
            }));
        }
        false => {
            output.text(format_args!("augmentation: {}", view.training));
            let samples = counted(chosen.len(), "sample");
            let versions = counted(versions, "version");
            output.text(format_args!("wrote {}: {samples}, each in {versions}", sheet.display()));
            match has_counts {
                true => {
                    let known = counted(data.classes.len(), noun(data.task));
                    output.text(format_args!("wrote {}: {known}", classes.display()));
                }
                false => output.text(format_args!(
                    "not written: {}, since images have numbers and no classes; enmasse data stats has their range",
                    classes.display()
                )),
            }
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

/// For samples the pair of which each is one, in the order of the epoch.
type Pairs = HashMap<usize, [usize; 2]>;

/// The pairs in which these samples are mixed in an epoch.
fn pairs(dataset: &dyn Dataset, sampler: Sampler, seed: u64, epoch: u64, samples: &[usize]) -> Result<Pairs, Failure> {
    let wanted: HashSet<usize> = samples.iter().copied().collect();
    // The smallest batch that consists of whole pairs.
    let batch = match sampler {
        Sampler::Resampled { repeats, .. } => 2 * repeats,
        Sampler::Shuffle | Sampler::Blocks | Sampler::Distributed { .. } => 2,
    };
    let sharding = Sharding::one(0, 1, batch.min(dataset.len()));
    let order = TrainOrder::of(dataset, sampler, seed, &sharding).map_err(Failure::error)?.epoch(epoch);
    let mut pairs = Pairs::new();
    for batch in (0..order.batches()).map(|batch| order.global_batch(batch)) {
        for (place, sample) in batch.iter().enumerate().filter(|(_, sample)| wanted.contains(sample)) {
            if let Some(partner) = order.partner(0, place) {
                pairs.entry(*sample).or_insert([place.min(partner), place.max(partner)].map(|place| batch[place]));
            }
        }
    }
    Ok(pairs)
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    write_whole(path, |file| file.write_all(bytes)).map_err(Failure::error)
}

/// Makes the images of the sheet.
struct Samples<'a> {
    dataset: &'a dyn Dataset,
    validation: EvalTransform,
    training: TrainTransform,
    seed: u64,
    /// With the pairs of each, if images are mixed.
    epochs: Vec<(u64, Pairs)>,
}

impl Samples<'_> {
    /// A sample as validation sees it, and as training sees it in each epoch.
    fn group(&self, index: usize) -> Result<Vec<Vec<u8>>, Failure> {
        let image = self.read(index)?;
        let size = self.training.size();
        let mut group = vec![vec![0; size * size * 3]];
        self.validation.fit(&image, &mut Resizer::default(), &mut group[0]);
        for (epoch, pairs) in &self.epochs {
            let own = self.augmented(&image, index, *epoch);
            group.push(match pairs.get(&index) {
                None => own,
                Some(&pair) => self.mixed(own, index, pair, *epoch)?,
            });
        }
        Ok(group)
    }

    fn read(&self, index: usize) -> Result<Image, Failure> {
        let mut view = ImageRegion::default();
        self.dataset.read_part(index, &RegionRequest::whole, &mut view).map_err(Failure::error)?;
        Ok(view.image().clone())
    }

    fn augmented(&self, image: &Image, index: usize, epoch: u64) -> Vec<u8> {
        let mut canvas = Canvas::new(image.clone());
        self.training.apply(&mut canvas, self.seed, epoch, index as u64);
        canvas.image().pixels().to_vec()
    }

    /// A sample's augmented pixels mixed with those of the other one of its pair.
    fn mixed(&self, mut own: Vec<u8>, index: usize, pair: [usize; 2], epoch: u64) -> Result<Vec<u8>, Failure> {
        let [first, second] = pair;
        let is_first = index == first;
        let partner = if is_first { second } else { first };
        let mut other = self.augmented(&self.read(partner)?, partner, epoch);
        let images = if is_first { [&mut own[..], &mut other] } else { [&mut other[..], &mut own] };
        self.training.mix(images, self.seed, epoch, first as u64);
        Ok(own)
    }
}
