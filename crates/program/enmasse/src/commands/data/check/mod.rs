//! `enmasse data check DATA`: reads every image of every part, and tells what is wrong with the data set.

mod alike;
mod beside;
mod finding;
mod look;
mod model;
mod sizes;

use clap::{ArgMatches, Command};
use enmasse_datasets::TaskKind;
use enmasse_train::TrainingData;
use enmasse_wording::{counted, one_line};
use finding::{Finding, Item};
use look::{CheckedPart, ImageReport, look};
use serde_json::{Value, json};
use sizes::Sizes;

use super::opened::{Opened, WHOLE_MACHINE};
use super::targets::{Summary, noun};
use crate::command_line::arguments::{SOURCE, data, settings_with};
use crate::failure::Failure;
use crate::output::Output;
use crate::ranks::interrupt::Interrupts;

/// The settings that apply to it.
const SETTINGS: &str = "convert_rgb exif_transpose split split_seed loader_threads timeout json";

const ABOUT: &str = "\
A problem is what ends a run, or makes its figures wrong: images that cannot be read, a class without images in a \
part, the same image in two parts or in two classes. Labels and numbers are checked as classes are. All else is a note.
Exit code 0: no problems; 1: some.";

/// A table of classes has at most so many rows.
const ROWS: usize = 40;

/// Characters of a class's name for which there is room in the table.
const MAX_WIDTH: usize = 40;

/// The command line of `enmasse data check`.
pub fn command() -> Command {
    Command::new("check")
        .about("Read every image, and tell what is wrong; the exit code is 1 where something is")
        .after_help(ABOUT)
        .args(data())
        .args(model::flags())
        .args(settings_with(&[SETTINGS, SOURCE].join(" "), WHOLE_MACHINE))
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let _interrupts = Interrupts::watch()?;
    let opened = Opened::new(matches)?;
    let data = &opened.data;
    let parts = look(&opened)?;
    let sizes = Sizes::of(parts.iter().flat_map(|part| &part.looks).filter_map(|look| look.size));
    let (problems, mut notes) = findings(&opened, &parts);
    notes.extend(model::findings(matches, data, &parts)?.into_iter().filter(|finding| finding.count > 0));

    let mut output = Output::new(opened.config.program.json);
    match output.is_json() {
        true => {
            let list = |findings: &[Finding]| findings.iter().map(Finding::to_json).collect::<Vec<Value>>();
            let parts = parts.iter().map(|part| {
                json!({
                    "part": part.name, "samples": part.looks.len(), "counts": counts(data, part),
                    "targets": Summary::of(data, part.dataset.as_ref()).to_json()
                })
            });
            output.json(json!({
                "event": "check", "data": opened.root, "kind": data.kind, "task": data.task, "classes": data.classes,
                "parts": parts.collect::<Vec<_>>(), "sizes": sizes.to_json(), "problems": list(&problems), "notes": list(&notes)
            }));
        }
        false => {
            output.text(format_args!("data:    {}, {}", opened.root.display(), data.kind.name()));
            table(data, &parts).iter().for_each(|line| output.text(line));
            for part in &parts {
                let lines = Summary::of(data, part.dataset.as_ref()).lines();
                lines.iter().for_each(|line| output.text(format_args!("{}: {line}", part.name)));
            }
            output.text(format_args!("sizes:   {}", sizes.in_words()));
            notes.iter().for_each(|note| output.text(format_args!("note:    {note}")));
            problems.iter().for_each(|problem| output.text(format_args!("problem: {problem}")));
            output.text(match problems.len() {
                0 => "no problems".to_owned(),
                count => counted(count, "kind") + " of problems",
            });
        }
    }
    output.finish()?;
    Failure::told(u8::from(!problems.is_empty()))
}

/// What is wrong, and what is merely worth knowing.
fn findings(opened: &Opened, parts: &[CheckedPart]) -> (Vec<Finding>, Vec<Finding>) {
    let mut problems = vec![unreadable(parts), lacking(&opened.data, parts)];
    let mut notes =
        vec![misnamed(parts), converted(parts), beside::left_out(&opened.data.left_out), beside::files(parts)];
    let alike = alike::find(&opened.data, parts);
    problems.extend([alike.of_two_classes, alike.in_two_parts]);
    notes.extend([alike.repeated, alike.near]);
    let some = |findings: Vec<Finding>| findings.into_iter().filter(|finding| finding.count > 0).collect();
    (some(problems), some(notes))
}

/// The images of all parts with some matter, each with this.
fn with_matter(parts: &[CheckedPart], matter: impl Fn(&ImageReport) -> Option<String>) -> Vec<Item> {
    let of_part = |part: &CheckedPart| {
        let found = part.looks.iter().enumerate().filter_map(|(index, look)| Some((index, matter(look)?)));
        found.map(|(index, matter)| Item::of_file(part.name(index), matter)).collect::<Vec<_>>()
    };
    parts.iter().flat_map(of_part).collect()
}

/// Images that cannot be read.
fn unreadable(parts: &[CheckedPart]) -> Finding {
    Finding::counted("unreadable", "image", ["cannot be read"; 2], with_matter(parts, |look| look.fault.clone()))
}

/// The number of images of each class, or with each label; nothing of numbers.
fn counts(data: &TrainingData, part: &CheckedPart) -> Option<Vec<usize>> {
    (data.task != TaskKind::Regression).then(|| data.class_counts(part.dataset.as_ref()))
}

/// Classes or labels that have no images in a part.
fn lacking(data: &TrainingData, parts: &[CheckedPart]) -> Finding {
    let of_part = |part: &CheckedPart| {
        let counts = counts(data, part).unwrap_or_default();
        let empty = counts.into_iter().zip(&data.classes).filter(|(count, _)| *count == 0);
        empty.map(|(_, class)| Item::of_class(class, part.name)).collect::<Vec<_>>()
    };
    let items: Vec<Item> = parts.iter().flat_map(of_part).collect();
    Finding::counted("lacking", noun(data.task), ["lacks images in a part", "lack images in a part"], items)
}

/// Images whose extension is that of another format.
fn misnamed(parts: &[CheckedPart]) -> Finding {
    let items = with_matter(parts, |look| Some(look.misnamed?.name().to_owned()));
    Finding::counted("misnamed", "image", ["by another format's name; its content counts"; 2], items)
}

/// Images that are not RGB, which a run converts.
fn converted(parts: &[CheckedPart]) -> Finding {
    let items = with_matter(parts, |look| look.converted.map(str::to_owned));
    Finding::counted("converted", "image", ["is not RGB and is converted", "are not RGB and are converted"], items)
}

/// The number of images of each class in each part; of many classes the range alone.
fn table(data: &TrainingData, parts: &[CheckedPart]) -> Vec<String> {
    let classes = &data.classes;
    let noun = noun(data.task);
    let Some(counts) = parts.iter().map(|part| counts(data, part)).collect::<Option<Vec<Vec<usize>>>>() else {
        return parts.iter().map(|part| format!("{}: {}", part.name, counted(part.looks.len(), "image"))).collect();
    };
    if classes.len() > ROWS {
        let range = |(part, counts): (&CheckedPart, &Vec<usize>)| {
            let least = counts.iter().min().copied().unwrap_or(0);
            let most = counts.iter().max().copied().unwrap_or(0);
            let images = counted(part.looks.len(), "image");
            let classes = counted(classes.len(), noun);
            format!("{}: {images} in {classes}, {least} to {most} of each", part.name)
        };
        return parts.iter().zip(&counts).map(range).collect();
    }
    let widest = classes.iter().map(|class| class.chars().count()).max().unwrap_or(0).clamp(5, MAX_WIDTH);
    let row = |name: &str, cells: &[String]| {
        let cells: String = cells.iter().map(|cell| format!("  {cell:>10}")).collect();
        format!("{:<widest$}{cells}", one_line(name))
    };
    let titles: Vec<String> = parts.iter().map(|part| part.name.to_owned()).collect();
    let mut lines = vec![row(noun, &titles)];
    for (label, class) in classes.iter().enumerate() {
        let cells: Vec<String> = counts.iter().map(|counts| counts[label].to_string()).collect();
        lines.push(row(class, &cells));
    }
    let sums: Vec<String> = parts.iter().map(|part| part.looks.len().to_string()).collect();
    lines.push(row("all", &sums));
    lines
}
