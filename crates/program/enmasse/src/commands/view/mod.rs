//! `enmasse view [RUN…]` and `enmasse train --dashboard`: runs as pages for a browser on this machine, while they train and afterwards.
//!
//! All that a page shows is read from run folders, so a page costs training nothing but that. Addresses name a run by its place in a
//! table.

mod answer_page;
mod answers;
mod background;
mod board;
mod metrics;
mod model;
mod nearest;
mod page;
mod ranks;
pub mod run;
mod samples;
mod series;
mod watch;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use clap::{Arg, ArgMatches, Command};
use enmasse_train::{RUNS, RunPaths};

use super::report::page::{STYLE, chart_bytes};
use crate::command_line::arguments::{self, option};
use crate::failure::{Failure, failed};
use crate::output::{Output, say};
use crate::ranks::interrupt::Interrupts;
use crate::web::{Request, Response, Server, Site, Stream};
use answers::{Answers, Neighbors};
use background::Background;
use board::Board;
use model::Models;
use page::CHARTS;
use run::Seen;
use samples::Samples;
use watch::{Runs, Source, below};

/// The flag of `train`.
pub const DASHBOARD: &str = "dashboard";

/// Without news a stream has a comment after this time, which tells whether its client is still there.
const SILENCE: Duration = Duration::from_secs(15);

const SCRIPT: &str = include_str!("view.js");
const OWN_STYLE: &str = include_str!("view.css");

/// A mark for the tab.
const ICON: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 16 16\"><path d=\"M2 13l4-7 3 4 5-8\" fill=\"none\" \
    stroke=\"#4477aa\" stroke-width=\"2\"/></svg>";

const EXAMPLES: &str = "\
Examples:
  enmasse view
  enmasse view runs/one runs/two --port 8000";

/// The command line of `enmasse view`.
pub fn command() -> Command {
    let runs = Arg::new("runs").value_name("RUN").num_args(0..).value_parser(arguments::path);
    Command::new("view")
        .about("A page of runs for a browser on this machine: curves, figures, logs; drop an image on it")
        .after_help(EXAMPLES)
        .arg(runs.help(format!("Run folders [default: those in {RUNS}]")))
        .arg(
            option("port", "P")
                .value_parser(port)
                .help("The port on this machine; 0 takes any [default: from 6006 on]"),
        )
}

/// The flag of `enmasse train` that shows the run.
pub fn dashboard_flag() -> Arg {
    let flag = option(DASHBOARD, "PORT").num_args(0..=1).default_missing_value("auto").value_parser(dashboard_port);
    flag.help("Show the run as a page for a browser on this machine")
}

fn port(text: &str) -> Result<u16, &'static str> {
    text.parse().map_err(|_| "must be a port, from 0 to 65535")
}

fn dashboard_port(text: &str) -> Result<Option<u16>, &'static str> {
    if text == "auto" { Ok(None) } else { port(text).map(Some) }
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let _interrupts = Interrupts::watch()?;
    let named: Vec<PathBuf> = matches.get_many("runs").into_iter().flatten().cloned().collect();
    let (source, from) = match named.as_slice() {
        [] => (Source::Below(RUNS.into()), RUNS.to_owned()),
        // A folder of runs is as good as its runs.
        [one] if !RunPaths::new(one).holds_run() && !below(one).is_empty() => {
            (Source::Below(one.clone()), one.display().to_string())
        }
        several => {
            if let Some(other) = several.iter().find(|folder| !RunPaths::new(*folder).holds_run()) {
                return Err(failed!("{}: is not a run folder", other.display()));
            }
            (Source::Folders { folders: named, are_own: false }, String::new())
        }
    };
    let pages = Pages { runs: Runs::watch(source)?, from, computing: Some(Computing::start()?) };
    let server = Server::start(matches.get_one("port").copied(), Arc::new(pages))?;
    let mut output = Output::new(false);
    output.text(format_args!("open {} in a browser; Ctrl-C ends it", server.link()));
    output.finish()?;
    loop {
        // A signal ends this process.
        std::thread::park();
    }
}

/// The page of a run of this process, for as long as the result is held. None if it was not asked for.
pub fn dashboard(matches: &ArgMatches, run: &Path) -> Result<Option<Server>, Failure> {
    let Some(port) = matches.get_one::<Option<u16>>(DASHBOARD) else { return Ok(None) };
    let source = Source::Folders { folders: vec![run.to_owned()], are_own: true };
    let pages = Pages { runs: Runs::watch(source)?, from: String::new(), computing: None };
    let server = Server::start(*port, Arc::new(pages))?;
    say(format_args!("the run as a page: {}", server.link()));
    Ok(Some(server))
}

/// What is served.
struct Pages {
    runs: Arc<Runs>,
    /// Where runs are looked for.
    from: String,
    /// None beside training, whose processors it would take.
    computing: Option<Computing>,
}

/// What computes for the pages.
struct Computing {
    models: Models,
    background: Background,
    answers: Answers,
    samples: Arc<Board<Samples>>,
}

impl Computing {
    fn start() -> Result<Self, Failure> {
        let (models, background) = (Models::start()?, Background::start()?);
        Ok(Computing { models, background, answers: Answers::new(), samples: samples::board() })
    }
}

impl Site for Pages {
    fn answer(&self, request: &Request) -> Response {
        let parts: Vec<&str> = request.path.split('/').skip(1).collect();
        match (request.method.as_str(), parts.as_slice()) {
            ("POST", ["run", place, "image"]) => self.image(place, request).unwrap_or_else(Response::not_found),
            ("POST", ["run", place, "predictions"]) => self.samples(place).unwrap_or_else(Response::not_found),
            ("POST", _) => Response::refused(StatusCode::METHOD_NOT_ALLOWED, "images are sent to the page of a run"),
            (_, [""]) => Response::page(page::all(&self.runs.all(), &self.from)),
            (_, ["style.css"]) => Response::style(&format!("{STYLE}{OWN_STYLE}")),
            (_, ["view.js"]) => Response::script(SCRIPT),
            (_, ["icon.svg"]) => Response::svg(ICON),
            (_, ["metrics"]) => Response::metrics(metrics::text(&self.runs.all())),
            (_, ["events"]) => Response::events(self.events(None)),
            (_, ["run", place, rest @ ..]) => self.of_run(place, rest).unwrap_or_else(Response::not_found),
            _ => Response::not_found(),
        }
    }
}

impl Pages {
    fn of_run(&self, place: &str, rest: &[&str]) -> Option<Response> {
        let place = place.parse().ok()?;
        let run = self.runs.get(place)?;
        Some(match rest {
            [] => Response::page(page::one(place, &run, self.computing.is_some())),
            ["events"] => Response::events(self.events(Some(place))),
            ["predictions"] => {
                Response::page(samples::page(place, &run, self.computing.as_ref()?.samples.get(place as u64).as_ref()))
            }
            ["predictions", "events"] => Response::events(self.computing.as_ref()?.samples.events(place as u64)),
            ["image", number, rest @ ..] => return self.sent(place, &run, number.parse().ok()?, rest),
            ["curves.svg"] => Response::svg(run.curves.get_or_init(|| page::curves(&run)).as_str()),
            [file] => {
                let name = file.strip_suffix(".svg")?;
                let chart = CHARTS.iter().find(|chart| chart.name == name)?;
                Response::svg(chart_bytes(&chart.path(&run))?)
            }
            _ => return None,
        })
    }

    fn image(&self, place: &str, request: &Request) -> Option<Response> {
        let place = place.parse().ok()?;
        let computing = self.computing.as_ref()?;
        let run = self.runs.get(place)?;
        let root = run.paths.root();
        let image = request.upload();
        let answer = match image.is_empty() {
            true => Err("no image was sent".to_owned()),
            false => computing.models.ask(root.to_owned(), image.to_vec()),
        };
        Some(match answer {
            Ok(answer) => {
                let sent = computing.answers.keep(place, root.to_owned(), image, answer, &computing.background);
                Response::page(answer_page::answer(&run, &sent))
            }
            Err(line) => {
                Response::page(answer_page::no_answer(place, &run, &line)).with_status(StatusCode::UNPROCESSABLE_ENTITY)
            }
        })
    }

    /// What belongs to an image that was sent.
    fn sent(&self, place: usize, run: &Seen, number: u64, rest: &[&str]) -> Option<Response> {
        let board = &self.computing.as_ref()?.answers.board;
        let sent = board.get(number).filter(|sent| sent.place == place)?;
        Some(match (rest, &sent.neighbors) {
            ([], _) => Response::page(answer_page::answer(run, &sent)),
            (["events"], _) => Response::events(board.events(number)),
            ([near], Neighbors::Found(found)) => {
                Response::png(found.images.get(near.parse::<usize>().ok()?)?.thumbnail.clone()?)
            }
            _ => return None,
        })
    }

    /// Has images predicted, and shows how far that is.
    fn samples(&self, place: &str) -> Option<Response> {
        let place = place.parse().ok()?;
        let computing = self.computing.as_ref()?;
        let run = self.runs.get(place)?;
        samples::ask(&computing.samples, place, run.paths.root().to_owned(), &computing.background);
        Some(Response::page(samples::page(place, &run, computing.samples.get(place as u64).as_ref())))
    }

    /// The changing part of a page, now and after each change. A client that is too slow for them gets the latest one.
    fn events(&self, place: Option<usize>) -> Stream {
        let (runs, from) = (self.runs.clone(), self.from.clone());
        Box::new(move |stream: &mut dyn Write| {
            let mut version = 0;
            loop {
                let Some(found) = runs.wait(place, version, SILENCE) else {
                    stream.write_all(b": still here\n\n")?;
                    continue;
                };
                version = found;
                let part = match place.map(|place| (place, runs.get(place))) {
                    None => page::all_live(&runs.all(), &from),
                    Some((place, Some(run))) => page::one_live(place, &run),
                    Some((_, None)) => return Ok(()),
                };
                stream.write_all(event(&part.into_string()).as_bytes())?;
            }
        })
    }
}

/// Text as an event: each line of it has a name.
fn event(text: &str) -> String {
    let lines = text.split(['\n', '\r']).map(|line| format!("data: {line}\n"));
    lines.chain(["\n".to_owned()]).collect()
}
