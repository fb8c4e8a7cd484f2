//! `enmasse report RUN…`: what was trained on what, how well it does and how fast it was, as one file to send to others.
//!
//! A run folder says most of it. Its best weights are evaluated again on its validation part, for the classes, the mistakes and
//! the images themselves; where the data are gone, the report says so and has the rest.

pub mod evaluated;
pub mod open_run;
pub mod page;
pub mod record;
mod tables;

use std::io::Write;
use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command};
use enmasse_system::files::write_whole;
use enmasse_wording::counted;

use crate::command_line::arguments::{self, ONE_DEVICE};
use crate::command_line::settings;
use crate::failure::{Failure, usage};
use crate::output::{Output, warn};
use crate::ranks::interrupt::Interrupts;
use evaluated::{Evaluated, Galleries, evaluate};
use open_run::OpenRun;
use record::RunRecord;

/// Settings that apply to the evaluation.
const EVALUATION: &str = "data batch devices threads loader_threads precision isa cache_dir cache_limit";

/// Images of each kind that a report shows, unless `--images` says otherwise.
const IMAGES: usize = 24;

const EXAMPLES: &str = "\
Examples:
  enmasse report runs/a --html report.html
  enmasse report runs/one runs/two --html report.html --csv runs.csv --markdown runs.md";

/// A run, as it is reported.
pub struct Reported {
    record: RunRecord,
    /// The evaluation of its best weights, or why there is none.
    evaluated: Result<Evaluated, String>,
}

/// The command line of `enmasse report`.
pub fn command() -> Command {
    let runs = Arg::new("runs").value_name("RUN").required(true).num_args(1..).value_parser(arguments::path);
    Command::new("report")
        .about("One file about runs: curves, classes, confusion, mistakes as images, speed, settings")
        .after_help(EXAMPLES)
        .arg(runs.help("Run folders; several are compared, each with the speed of the first"))
        .arg(arguments::file("html", "Write a page that holds everything itself, for any browser, screen or printer"))
        .arg(arguments::file("csv", "Write the table of the runs as CSV"))
        .arg(arguments::file("markdown", "Write the tables as Markdown"))
        .arg(
            arguments::option("images", "N")
                .value_parser(|text: &str| text.parse::<usize>().map_err(|_| "must be a whole number"))
                .help(format!("Mistakes, and least certain images, to show of each run [default: {IMAGES}]")),
        )
        .args(arguments::settings_with(EVALUATION, &defaults()))
}

/// What settings default to here.
fn defaults() -> Vec<(&'static str, &'static str)> {
    let own = [
        ("data", "the data of the run"),
        ("batch", "64 images at once"),
        ("precision", "as in the run"),
        ("isa", "as in the run"),
    ];
    own.into_iter().chain(ONE_DEVICE.iter().copied()).collect()
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let _interrupts = Interrupts::watch()?;
    let [html, csv, markdown] = ["html", "csv", "markdown"].map(|name| matches.get_one::<PathBuf>(name));
    if [html, csv, markdown].iter().all(Option::is_none) {
        return Err(usage!("name what to write: --html FILE, --csv FILE or --markdown FILE"));
    }
    let folders: Vec<&PathBuf> = matches.get_many("runs").into_iter().flatten().collect();
    if folders.len() > 1 && arguments::given(matches).any(|(name, _)| name == "data") {
        return Err(usage!("--data: is for one run; name one, or leave it out"));
    }
    let images = matches.get_one("images").copied().unwrap_or(IMAGES);
    let records = folders.iter().map(|folder| RunRecord::open(folder)).collect::<Result<Vec<_>, _>>()?;
    let runs: Vec<Reported> = folders
        .iter()
        .zip(records)
        .map(|(folder, record)| {
            let opened = settings::layers(matches).and_then(|layers| OpenRun::open(folder, layers, true));
            let evaluated = opened.and_then(|run| evaluate(&run, Galleries { extremes: images, examples: 0 }));
            let evaluated = evaluated.map_err(|failure| failure.message().to_owned());
            if let Err(reason) = &evaluated {
                warn(format_args!("{}: not evaluated: {reason}", folder.display()));
            }
            Reported { record, evaluated }
        })
        .collect();
    let mut output = Output::new(false);
    let forms: [(_, &dyn Fn() -> String); 3] = [
        (html, &|| page::html(&runs)),
        (csv, &|| tables::comparison(&runs).csv()),
        (markdown, &|| page::markdown(&runs)),
    ];
    for (path, text) in forms {
        let Some(path) = path else { continue };
        write_whole(path, |file| file.write_all(text().as_bytes())).map_err(Failure::error)?;
        output.text(format_args!("wrote {}: a report of {}", path.display(), counted(runs.len(), "run")));
    }
    output.finish()
}
