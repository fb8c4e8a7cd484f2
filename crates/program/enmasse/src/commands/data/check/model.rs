//! `--model RUN`: what the features of a model tell of the data: labels that are probably wrong, images unlike all others, and images
//! that are nearly the same.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches};
use enmasse_charts::{LabelledImage, image_sheet};
use enmasse_datasets::TaskKind;
use enmasse_image::{EvalTransform, Resizer};
use enmasse_system::files::write_whole;
use enmasse_train::{Features, LabelIssue, Neighborhood, TrainingData, label_issues};
use enmasse_wording::grouped;

use super::finding::{Finding, Item};
use super::look::CheckedPart;
use crate::command_line::arguments;
use crate::command_line::settings::{self, Ranks, cores};
use crate::commands::embed::features;
use crate::commands::weights::{self, Source};
use crate::failure::{Failure, failed, usage};

/// Others that vote on the class of an image.
const NEIGHBORS: usize = 10;
/// More images than this take too long: each is compared with all others.
const MAX_IMAGES: usize = 50_000;
/// Images on a contact sheet, at most, and their edges in pixels.
const SHEET: usize = 48;
const EDGE: usize = 96;

/// The flags.
pub fn flags() -> [Arg; 2] {
    [
        arguments::option("model", "RUN|WEIGHTS").id("source").value_parser(arguments::path).help(
            "Also compare images by the features of this model: list labels that are probably wrong, the least likely first, images unlike all others, and images that are nearly the same",
        ),
        arguments::option("sheets", "DIR")
            .value_parser(arguments::path)
            .requires("source")
            .help("Draw the first 48 images of each of these lists as DIR/mislabelled.svg, DIR/outliers.svg and DIR/alike.svg"),
    ]
}

/// The lists of a model, if one is named.
pub fn findings(matches: &ArgMatches, data: &TrainingData, parts: &[CheckedPart]) -> Result<Vec<Finding>, Failure> {
    if !matches.contains_id("source") {
        return Ok(Vec::new());
    }
    let images: usize = parts.iter().map(|part| part.looks.len()).sum();
    if images > MAX_IMAGES {
        let (images, most) = (grouped(images as u64), grouped(MAX_IMAGES as u64));
        return Err(usage!(
            "--model: compares each image with all others, and {images} are more than {most}; name fewer images"
        ));
    }
    let mut layers = settings::layers(matches)?;
    let source = Source::find(matches, &mut layers)?;
    let weights = weights::open(source, &layers, data.kind, true)?;
    let config = weights.compute_as_trained(settings::finish(layers, Ranks::One)?)?;
    let mut all = Features { width: 0, values: Vec::new(), labels: Vec::new() };
    for part in parts {
        let found = features(&weights, &config, &part.dataset, None)?;
        all.width = found.width;
        all.values.extend(found.values);
        all.labels.extend(found.labels);
    }
    let neighborhoods = all.neighborhoods(NEIGHBORS, cores());
    let seen = Seen { parts, neighborhoods: &neighborhoods };
    let lists = [("mislabelled", seen.mislabelled(data)), ("outliers", seen.outliers()), ("alike", seen.alike())];
    if let Some(folder) = matches.get_one::<PathBuf>("sheets") {
        std::fs::create_dir_all(folder).map_err(|error| failed!("cannot create {}: {error}", folder.display()))?;
        for (name, (_, images)) in &lists {
            seen.draw(&folder.join(format!("{name}.svg")), name, images)?;
        }
    }
    Ok(lists.into_iter().map(|(_, (finding, _))| finding).collect())
}

/// The images of all parts, as a model sees them.
struct Seen<'a> {
    parts: &'a [CheckedPart],
    neighborhoods: &'a [Neighborhood],
}

/// A finding, and the images of its cases in their order, each with what to write below it.
type Listed = (Finding, Vec<(usize, String)>);

impl Seen<'_> {
    /// The part of an image, and its number there.
    fn place(&self, index: usize) -> (&CheckedPart, usize) {
        let mut end = 0;
        let place = self.parts.iter().position(|part| {
            end += part.looks.len();
            index < end
        });
        let part = &self.parts[place.unwrap_or_default()];
        (part, index + part.looks.len() - end)
    }

    fn name(&self, index: usize) -> String {
        let (part, index) = self.place(index);
        part.name(index)
    }

    /// Images whose neighbours have another class.
    fn mislabelled(&self, data: &TrainingData) -> Listed {
        let classes = if data.task == TaskKind::Classification { data.classes.len() } else { 0 };
        let known = || self.neighborhoods.iter().filter(|found| found.label < classes);
        let probabilities: Vec<f64> = known().flat_map(|found| found.probabilities(classes)).collect();
        let labels: Vec<usize> = known().map(|found| found.label).collect();
        let images: Vec<usize> = known().map(|found| found.index).collect();
        let issues = label_issues(&probabilities, &labels, classes);
        let matter = |issue: &LabelIssue| {
            let own = &data.classes[labels[issue.index]];
            let rather = &data.classes[issue.rather];
            (images[issue.index], format!("{own}, rather {rather}"))
        };
        let listed: Vec<(usize, String)> = issues.iter().map(matter).collect();
        let item = |(index, matter): &(usize, String)| Item::of_file(self.name(*index), matter.clone());
        let said = ["is probably of another class", "are probably of another class"];
        let finding = Finding::counted("mislabelled", "image", said, listed.iter().map(item).collect());
        (finding, listed)
    }

    /// Images farther from their neighbours than three quartile distances above the upper quartile (J. W. Tukey's "far out").
    fn outliers(&self) -> Listed {
        let mut sorted: Vec<f64> = self.neighborhoods.iter().map(Neighborhood::distance).collect();
        sorted.sort_by(f64::total_cmp);
        let quartile = |quarters: usize| sorted.get(sorted.len() * quarters / 4).copied().unwrap_or(f64::INFINITY);
        let limit = quartile(3) + 3.0 * (quartile(3) - quartile(1));
        let mut far: Vec<&Neighborhood> = self.neighborhoods.iter().filter(|found| found.distance() > limit).collect();
        far.sort_by(|a, b| b.distance().total_cmp(&a.distance()));
        let images: Vec<(usize, String)> = far.iter().map(|found| (found.index, self.name(found.index))).collect();
        let said = ["is unlike all others", "are unlike all others"];
        let items = images.iter().map(|(_, name)| Item::file(name.clone())).collect();
        (Finding::counted("outliers", "image", said, items), images)
    }

    /// Images as near to another one as a tenth of what is usual, each pair once.
    fn alike(&self) -> Listed {
        let nearest = |found: &Neighborhood| found.near.first().map(|near| (1.0 - near.cosine, near.index));
        let mut distances: Vec<f64> =
            self.neighborhoods.iter().filter_map(nearest).map(|(distance, _)| distance).collect();
        distances.sort_by(f64::total_cmp);
        let limit = distances.get(distances.len() / 2).map_or(0.0, |median| median / 10.0);
        let mut pairs: Vec<(f64, [usize; 2])> = self
            .neighborhoods
            .iter()
            .filter_map(|found| {
                nearest(found).map(|(distance, other)| (distance, [found.index.min(other), found.index.max(other)]))
            })
            .filter(|(distance, _)| *distance < limit)
            .collect();
        pairs.sort_by(|(a, pair), (b, other)| a.total_cmp(b).then(pair.cmp(other)));
        pairs.dedup_by_key(|(_, pair)| *pair);
        let item = |(_, pair): &(f64, [usize; 2])| Item::of_files(pair.iter().map(|&index| self.name(index)).collect());
        let said = ["of images is nearly the same to the model", "of images are nearly the same to the model"];
        let finding = Finding::counted("alike", "pair", said, pairs.iter().map(item).collect());
        let images = pairs.into_iter().flat_map(|(_, pair)| pair).map(|index| (index, self.name(index)));
        (finding, images.collect())
    }

    /// Draws the first of some images, if there are any.
    fn draw(&self, path: &Path, title: &str, images: &[(usize, String)]) -> Result<(), Failure> {
        let transform = EvalTransform::new(EDGE);
        let mut resizer = Resizer::new();
        let drawn = images.iter().filter_map(|(index, label)| {
            let (part, index) = self.place(*index);
            let mut pixels = vec![0; EDGE * EDGE * 3];
            transform.fit(&part.dataset.read(index).ok()?, &mut resizer, &mut pixels);
            Some((pixels, label))
        });
        let drawn: Vec<(Vec<u8>, &String)> = drawn.take(SHEET).collect();
        if drawn.is_empty() {
            return Ok(());
        }
        let labelled = drawn.iter().map(|(pixels, label)| LabelledImage { width: EDGE, height: EDGE, pixels, label });
        let sheet = image_sheet(title, &labelled.collect::<Vec<_>>()).map_err(Failure::error)?;
        write_whole(path, |file| file.write_all(sheet.as_bytes())).map_err(Failure::error)
    }
}
