//! `enmasse data pack DATA FILE`: a data set in one file, which trains like the folder and is read faster.

use std::path::PathBuf;

use clap::builder::PossibleValue;
use clap::{Arg, ArgMatches, Command};
use enmasse_data::{BadSample, skip_limit};
use enmasse_datasets::{PackForm, PackOptions, Packed, Unpacked, pack};
use enmasse_system::files::folder_of;
use enmasse_train::{OnBadSample, TrainError};
use enmasse_wording::{counted, grouped, mebibytes};
use serde_json::json;

use super::opened::{Opened, WHOLE_MACHINE};
use super::scan::Scan;
use super::targets::among;
use crate::command_line::arguments::{self, SOURCE, count, data_as, option, settings_with};
use crate::failure::{Failure, usage};
use crate::output::{Output, say};
use crate::ranks::interrupt::Interrupts;
use crate::report::skipped::Skipped;

/// The settings that apply to it.
const SETTINGS: &str = "\
    size convert_rgb exif_transpose on_bad_sample split split_seed loader_threads timeout json";

/// The quality of JPEG files that are written.
const QUALITY: usize = 90;

const ABOUT: &str = "\
The file has all parts of the data set, and the names of its classes and images. Pass it to train, eval and predict \
in the place of DATA. Image files are kept byte for byte, so training gives the same bits as with the folder. Smaller images \
(--resize, --form raw) are read faster, and are other images: crops have less detail.

Examples:
  enmasse data pack flower_photos flowers.enmasse
  enmasse data pack imagenet imagenet.enmasse --resize 256
  enmasse data pack imagenet imagenet.enmasse --form raw --size 224
  enmasse train flowers.enmasse";

/// The command line of `enmasse data pack`.
pub fn command() -> Command {
    let form = [
        PossibleValue::new("jpeg").alias("jpg").help("Image files, with their own pixels or with --resize"),
        PossibleValue::new("raw")
            .help("Squares of pixels with the edge --size: the shorter side is resized, the middle kept"),
    ];
    let default = [WHOLE_MACHINE, &[("size", "with --form raw the data set's own; a folder needs it")]].concat();
    Command::new("pack")
        .about("Pack a data set into one file, which is read faster")
        .after_help(ABOUT)
        .arg(data_as("The data set to pack").required(true))
        .arg(
            Arg::new("file")
                .value_name("FILE")
                .required(true)
                .value_parser(arguments::path)
                .help("The file to write, such as photos.enmasse; it must not exist"),
        )
        .arg(
            option("form", "FORM")
                .aliases(["write-mode", "write_mode"])
                .value_parser(form)
                .help("What is stored of an image [default: jpeg; raw for CIFAR and MNIST]"),
        )
        .arg(
            count("resize", "PIXELS", "Resize images whose shorter side is longer than this, and store them as JPEG")
                .aliases(["max-resolution", "max_resolution"]),
        )
        .arg(
            count("quality", "Q", "Quality of the JPEG files that are written, up to 100 [default: 90]")
                .aliases(["jpeg-quality", "jpeg_quality"]),
        )
        .args(settings_with(&[SETTINGS, SOURCE].join(" "), &default))
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let path = matches.get_one::<PathBuf>("file").cloned().unwrap_or_default();
    let _interrupts = Interrupts::watch_writer(folder_of(&path))?;
    let opened = Opened::new(matches)?;
    let form = form(matches, &opened)?;
    let pool = opened.pool()?;
    let Opened { config, root, data, .. } = opened;
    let total = data.parts().map(|(_, part)| part.len()).sum();
    let has_test = data.test.is_some();
    let among = among(&data);
    let parts = [data.train, data.validation];
    let test = data.test;
    let classes = data.classes;
    let most_skipped = match config.train.bad_samples() {
        OnBadSample::Error => 0,
        OnBadSample::Skip => skip_limit(total),
        OnBadSample::Substitute => usize::MAX,
    };
    let options = PackOptions { form, most_skipped };
    let unpacked = Unpacked { root: root.clone(), kind: data.kind, task: data.task, classes, parts, test };

    let mut skipped = Skipped::default();
    let mut scan = Scan::new("packing", total);
    let each = |bad: Option<BadSample>| {
        scan.step();
        bad.and_then(|sample| skipped.add(&sample)).into_iter().for_each(say);
    };
    let packed = pack(&unpacked, &options, &pool, &path, each).map_err(TrainError::of_batch)?;
    let Packed { samples: [train, validation, test], bytes } = packed;
    let others = match has_test {
        true => format!(", {} for validation and {} for test", grouped(validation as u64), grouped(test as u64)),
        false => format!(" and {} for validation", grouped(validation as u64)),
    };
    let mut output = Output::new(config.program.json);
    match output.is_json() {
        true => output.json(json!({
            "event": "pack", "data": root, "file": path, "kind": unpacked.kind, "task": unpacked.task,
            "classes": unpacked.classes.len(), "train": train, "validation": validation, "test": test,
            "unreadable": total - train - validation - test, "bytes": bytes
        })),
        false => output.text(format_args!(
            "{}: {} for training{others}, {among}; {}",
            path.display(),
            counted(train, "image"),
            mebibytes(bytes as usize)
        )),
    }
    skipped.line().into_iter().for_each(say);
    output.finish()
}

/// What becomes of the images. Fails if a flag has no effect beside another one.
fn form(matches: &ArgMatches, opened: &Opened) -> Result<PackForm, Failure> {
    let Opened { config, data, .. } = opened;
    let native = data.kind.native_size();
    let count = |name: &str| matches.get_one::<usize>(name).copied();
    let (resize, quality) = (count("resize"), count("quality"));
    let refuse = |flag: &str, reason: &str| Err(usage!("--{flag}: {reason}"));
    let named = matches.get_one::<String>("form").map(String::as_str);
    if named.unwrap_or(if native.is_some() { "raw" } else { "jpeg" }) == "raw" {
        return match (resize, quality, config.train.size.or(native)) {
            (Some(_), ..) => refuse("resize", "has no effect with --form raw, whose squares have the edge --size"),
            (None, Some(_), _) => refuse("quality", "has no effect with --form raw; leave it out, or use --form jpeg"),
            (None, None, Some(size)) => Ok(PackForm::Raw { size }),
            (None, None, None) => refuse("form raw", "images in folders have many sizes; add --size PIXELS"),
        };
    }
    if matches.contains_id("size") {
        return refuse("size", "has no effect with --form jpeg; --resize makes large images smaller");
    }
    if quality.is_some() && resize.is_none() && native.is_none() {
        return refuse("quality", "has no effect without --resize: image files keep their pixels");
    }
    let quality = u8::try_from(quality.unwrap_or(QUALITY)).unwrap_or(u8::MAX);
    Ok(PackForm::Files { resize, quality })
}
