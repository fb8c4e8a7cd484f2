//! `enmasse data stats DATA`: mean and std per channel of the training part, and its images' sizes.

use std::collections::BTreeMap;

use clap::{ArgMatches, Command};
use enmasse_data::{BadSample, DataError};
use enmasse_dataset_tools::Moments;
use enmasse_datasets::DataKind;
use enmasse_image::{EvalTransform, ImageRegion, RegionRequest, Resizer, Transform};
use enmasse_train::{OnBadSample, TrainError};
use enmasse_wording::counted;
use serde_json::json;

use super::opened::{Opened, WHOLE_MACHINE};
use super::scan::Scan;
use super::targets::{Summary, among};
use crate::command_line::arguments::{SOURCE, data, settings_with};
use crate::failure::Failure;
use crate::output::{Output, say, warn_of_left_out};
use crate::ranks::interrupt::Interrupts;
use crate::report::skipped::Skipped;

/// The settings that apply to it.
const SETTINGS: &str = "\
    size channels convert_rgb exif_transpose on_bad_sample split split_seed loader_threads \
    timeout json";

const ABOUT: &str = "\
The numbers are those of --mean and --std: over all pixels of the training part, on the scale 0 to 1. Images of a \
folder count as validation shows them to the model, at --size, so each has the same weight.";

/// The most frequent size is told if at least this share of the images has it, in percent.
const TELLING: usize = 5;

/// The command line of `enmasse data stats`.
pub fn command() -> Command {
    Command::new("stats")
        .about("Mean and std of the training images, and their sizes")
        .after_help(ABOUT)
        .args(data())
        .args(settings_with(&[SETTINGS, SOURCE].join(" "), WHOLE_MACHINE))
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let _interrupts = Interrupts::watch()?;
    let opened = Opened::new(matches)?;
    let Opened { config, root, data, .. } = &opened;
    warn_of_left_out(&data.left_out);
    let size = config.train.image_size(data.kind.native_size());
    let channels = config.train.channels.unwrap_or(data.kind.normalization().channels());
    let transform = EvalTransform { grayscale: channels == 1, ..data.kind.eval_transform(size) };
    transform.check().map_err(Failure::error)?;
    let found = look(&opened, &transform)?;

    let [mean, std] = [found.moments.mean(), found.moments.std()].map(|values| values[..channels].to_vec());
    let summary = Summary::of(data, data.train.as_ref());
    let mut output = Output::new(config.program.json);
    match output.is_json() {
        true => output.json(json!({
            "event": "stats", "data": root, "kind": data.kind, "task": data.task, "classes": data.classes.len(),
            "targets": summary.to_json(), "samples": found.samples,
            "unreadable": data.train.len() - found.samples, "size": size, "mean": mean, "std": std,
            "sizes": found.sizes.iter().map(|((width, height), count)| [width, height, count]).collect::<Vec<_>>()
        })),
        false => {
            output.text(format_args!("training: {} {}", counted(found.samples, "image"), among(data)));
            summary.lines().iter().for_each(|line| output.text(format_args!("targets:  {line}")));
            output.text(format_args!("sizes:    {}", found.sizes_in_words()));
            let whole = if data.kind == DataKind::Folder { format!(" at {size}x{size}") } else { String::new() };
            output.text(format_args!("pixels{whole}: --mean {} --std {}", list(&mean), list(&std)));
        }
    }
    found.skipped.line().into_iter().for_each(say);
    output.finish()
}

/// `0.4914,0.4822,0.4465`.
fn list(values: &[f64]) -> String {
    values.iter().map(|value| format!("{value:.4}")).collect::<Vec<_>>().join(",")
}

/// What the training part is like.
#[derive(Default)]
struct PartStatistics {
    moments: Moments,
    /// The readable images.
    samples: usize,
    skipped: Skipped,
    /// The images of each width and height.
    sizes: BTreeMap<(usize, usize), usize>,
}

impl PartStatistics {
    /// `32x32`, or the extremes by the number of pixels and the most frequent size.
    fn sizes_in_words(&self) -> String {
        let sizes = || self.sizes.iter().map(|(&(width, height), &count)| (width, height, count));
        let area = |&(width, height, _): &(usize, usize, usize)| width * height;
        let (smallest, largest) = (sizes().min_by_key(area), sizes().max_by_key(area));
        match (smallest, largest, sizes().max_by_key(|&(.., count)| count)) {
            (Some((width, height, _)), ..) if self.sizes.len() == 1 => format!("{width}x{height}"),
            (Some((w, h, _)), Some((width, height, _)), Some((frequent_width, frequent_height, count))) => {
                let percent = (100 * count + self.samples / 2) / self.samples;
                let usual = format!(", most often {frequent_width}x{frequent_height} ({percent} %)");
                format!("{w}x{h} to {width}x{height}{}", if percent >= TELLING { &usual } else { "" })
            }
            _ => "no images".to_owned(),
        }
    }
}

/// An image's size, and the sums over its pixels.
type ImageMoments = Result<((usize, usize), Moments), DataError>;

/// Reads the training part.
fn look(opened: &Opened, transform: &EvalTransform) -> Result<PartStatistics, Failure> {
    let Opened { config, data, .. } = opened;
    let train = data.train.clone();
    let transform = transform.clone();
    let look = move |index: usize, view: &mut ImageRegion| -> ImageMoments {
        train.read_part(index, &RegionRequest::whole, view)?;
        let image = view.image();
        let mut shown = vec![0; transform.size * transform.size * 3];
        transform.fit(image, &mut Resizer::default(), &mut shown);
        Ok(((image.width(), image.height()), Moments::of(&shown)))
    };
    let skips = config.train.bad_samples() != OnBadSample::Error;
    let mut found = PartStatistics::default();
    let mut scan = Scan::new("reading", data.train.len());
    let take = |index: usize, look: ImageMoments| {
        scan.step();
        match look {
            Ok((size, moments)) => {
                found.moments.add(&moments);
                found.samples += 1;
                *found.sizes.entry(size).or_default() += 1;
            }
            Err(error) if skips && error.is_unreadable() => {
                let sample = BadSample::new(data.train.name(index), &error);
                found.skipped.add(&sample).into_iter().for_each(say);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    };
    let pool = opened.pool()?;
    pool.scan(&data.train, look, take).map_err(TrainError::of_batch)?;
    match found.samples {
        0 => Err(Failure::error(DataError::nothing_readable(&opened.root, "training"))),
        _ => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_numbers() {
        let check = |sizes: &[(usize, usize, usize)], expected: &str| {
            let samples = sizes.iter().map(|size| size.2).sum();
            let sizes = sizes.iter().map(|&(width, height, count)| ((width, height), count)).collect();
            assert_eq!(PartStatistics { samples, sizes, ..PartStatistics::default() }.sizes_in_words(), expected);
        };
        check(&[], "no images");
        check(&[(32, 32, 7)], "32x32");
        check(&[(9, 20, 1), (10, 10, 2), (500, 375, 5)], "10x10 to 500x375, most often 500x375 (63 %)");
        check(&[(10, 10, 1), (11, 10, 40)], "10x10 to 11x10, most often 11x10 (98 %)");
        let many: Vec<_> = (1..=30).map(|side| (side, side, 1)).collect();
        check(&many, "1x1 to 30x30");
        assert_eq!(list(&[0.49139968, 0.5]), "0.4914,0.5000");
    }
}
