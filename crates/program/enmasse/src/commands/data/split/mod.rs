//! `enmasse data split DATA OUT`: the parts of a run as folders or as a table, drawn as training draws them.

mod fresh;
mod parts;

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command};
use enmasse_datasets::TaskKind;
use enmasse_system::files::write_whole;
use enmasse_train::TrainingData;
use enmasse_wording::counted;
use fresh::{Fresh, Link};
use parts::{SplitImage, SplitPart, entries};
use serde_json::json;

use super::opened::Opened;
use super::scan::Scan;
use super::targets::noun;
use crate::command_line::arguments::{SOURCE, option, path, settings, switch};
use crate::failure::{Failure, failed, usage};
use crate::output::csv::exact;
use crate::output::{Output, warn_of_left_out};
use crate::ranks::interrupt::Interrupts;

/// The settings that apply to it.
const SETTINGS: &str = "split split_seed json";

/// Separates the labels of an image in a table.
const SEPARATOR: &str = "|";

/// The command line of `enmasse data split`.
pub fn command() -> Command {
    Command::new("split")
        .about("Write the parts of a data set as folders train/ and val/, or as a table")
        .after_help(
            "A run on DATA with the same --split and --split-seed draws the same validation part. The images of test/ are \
             taken from the training part, so that part stays the same with and without them.",
        )
        .arg(
            Arg::new("data").value_name("DATA").required(true).help(
                "Class folders, images with --label-pattern, or a manifest: each image must be a file of its own",
            ),
        )
        .arg(
            Arg::new("out")
                .value_name("OUT")
                .required(true)
                .value_parser(path)
                .help("Folder to make, or with --list the table; must be new"),
        )
        .arg(
            option("link", "KIND")
                .value_parser(Link::ALL.map(Link::word))
                .default_value(Link::Hard.word())
                .conflicts_with("list")
                .help("How images come into OUT: links of either kind, or copies"),
        )
        .arg(switch("list", "Write a CSV table of path, label and split instead, and no images; of labels and numbers only this"))
        .arg(fraction("val", "Share of each class for validation [default: 0.2, as in training]"))
        .arg(fraction("test", "Share of each class for a test part [default: 0]"))
        .args(settings(&[SETTINGS, SOURCE].join(" ")))
}

fn fraction(name: &'static str, help: &'static str) -> Arg {
    let value = |text: &str| {
        let fraction = text.parse().ok().filter(|fraction| (0.0..1.0).contains(fraction));
        fraction.ok_or("must be at least 0 and below 1")
    };
    option(name, "FRACTION").value_parser(value).help(help)
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let _interrupts = Interrupts::watch()?;
    let share = |name: &str, default: f64| matches.get_one::<f64>(name).copied().unwrap_or(default);
    let (validation, test) = (share("val", 0.2), share("test", 0.0));
    if validation + test >= 1.0 {
        return Err(usage!("--val and --test: nothing would be left for training; lower one of them"));
    }
    let out = matches.get_one::<PathBuf>("out").cloned().unwrap_or_default();
    if out.symlink_metadata().is_ok() {
        return Err(usage!("{}: exists already; name a new folder or file", out.display()));
    }
    let opened = Opened::with_fraction(matches, validation)?;
    warn_of_left_out(&opened.data.left_out);
    if opened.data.has_parts {
        return Err(failed!(
            "{}: comes in parts for training and validation, so there is nothing to split",
            opened.root.display()
        ));
    }
    let entries = entries(&opened, test)?;
    let word = matches.get_one::<String>("link").map_or("", String::as_str);
    let link = Link::ALL.into_iter().find(|link| link.word() == word).unwrap_or(Link::Hard);
    let way = match matches.get_flag("list") {
        true => {
            write_list(&out, &opened.data, &entries)?;
            "list"
        }
        false if opened.data.task != TaskKind::Classification => {
            let nouns = noun(opened.data.task);
            return Err(usage!(
                "images with {nouns}s cannot be put into folders of classes; give --list to write a table"
            ));
        }
        false => {
            check_classes(&opened.data.classes, &entries)?;
            write_folders(&out, &entries, link)?;
            link.word()
        }
    };

    let count = |part: SplitPart| entries.iter().filter(|entry| entry.part == part).count();
    let counts = SplitPart::ALL.map(count);
    let mut output = Output::new(opened.config.program.json);
    match output.is_json() {
        true => output.json(json!({
            "event": "split", "data": opened.root, "out": out, "way": way,
            "train": counts[0], "val": counts[1], "test": counts[2]
        })),
        false => {
            let parts = SplitPart::ALL.iter().zip(counts).filter(|(_, count)| *count > 0);
            let parts = parts.map(|(part, count)| format!("{} for {}", counted(count, "image"), part.purpose()));
            output.text(format_args!("wrote {}: {}", out.display(), parts.collect::<Vec<_>>().join(", ")));
        }
    }
    output.finish()
}

/// Fails if a part would lack a class: no run reads such folders.
fn check_classes(classes: &[String], entries: &[SplitImage]) -> Result<(), Failure> {
    let found: HashSet<(SplitPart, &str)> = entries.iter().map(|entry| (entry.part, entry.class.as_str())).collect();
    let parts = SplitPart::ALL.into_iter().filter(|part| entries.iter().any(|entry| entry.part == *part));
    for part in parts {
        if let Some(class) = classes.iter().find(|class| !found.contains(&(part, class.as_str()))) {
            return Err(failed!(
                "the class {class:?} has too few images for a part for {}: raise --{}, or add images",
                part.purpose(),
                part.word()
            ));
        }
    }
    Ok(())
}

/// Writes `OUT/PART/CLASS/IMAGE`.
fn write_folders(out: &Path, entries: &[SplitImage], link: Link) -> Result<(), Failure> {
    let fresh = Fresh::begin(out)?;
    let mut scan = Scan::new("writing", entries.len());
    for entry in entries {
        fresh.add(entry, link)?;
        scan.step();
    }
    fresh.finish()
}

/// Writes a row for each image: its path, its class, labels or numbers, and its part. Paths of images below the table's folder are
/// relative to it.
fn write_list(out: &Path, data: &TrainingData, entries: &[SplitImage]) -> Result<(), Failure> {
    let (columns, cells) = columns(data, entries)?;
    let parent = out.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    let folder = parent.canonicalize().map_err(|error| failed!("{}: {error}", parent.display()))?;
    write_whole(out, |file| {
        writeln!(file, "path,{columns},split")?;
        for (SplitImage { file: path, part, .. }, cells) in entries.iter().zip(&cells) {
            let path = path.strip_prefix(&folder).unwrap_or(path);
            writeln!(file, "{},{cells},{}", exact(&path.display().to_string()), part.word())?;
        }
        Ok(())
    })
    .map_err(Failure::error)
}

/// The columns of classes, labels or numbers in the table, and the fields of each image in them.
fn columns(data: &TrainingData, entries: &[SplitImage]) -> Result<(String, Vec<String>), Failure> {
    let joined = |fields: &mut dyn Iterator<Item = String>| fields.collect::<Vec<_>>().join(",");
    match data.task {
        TaskKind::Classification => Ok(("label".to_owned(), entries.iter().map(|entry| exact(&entry.class)).collect())),
        TaskKind::Regression => {
            let numbers = |entry: &SplitImage| joined(&mut entry.targets.iter().map(f32::to_string));
            Ok((joined(&mut data.classes.iter().map(|name| exact(name))), entries.iter().map(numbers).collect()))
        }
        TaskKind::MultiLabel => {
            if let Some(label) = data.classes.iter().find(|label| label.contains(SEPARATOR)) {
                return Err(failed!(
                    "the label {label:?} has a {SEPARATOR}, which separates labels in a table; rename it"
                ));
            }
            let own = |entry: &SplitImage| {
                let own = data.classes.iter().zip(&entry.targets).filter(|(_, target)| **target > 0.0);
                own.map(|(label, _)| label.as_str()).collect::<Vec<_>>()
            };
            // A separator tells that the column has labels, also where no image has two of them.
            let are_plain = entries.iter().all(|entry| own(entry).len() < 2);
            let cell = |entry: &SplitImage| match own(entry).as_slice() {
                [only] if are_plain => exact(&format!("{only}{SEPARATOR}")),
                several => exact(&several.join(SEPARATOR)),
            };
            Ok(("labels".to_owned(), entries.iter().map(cell).collect()))
        }
    }
}
