//! The pages of all runs and of a run. Foreign text is escaped by maud.

use enmasse_charts::training_curves;
use enmasse_wording::{clock, counted};
use maud::{DOCTYPE, Markup, html};

use super::answer_page::form;
use super::ranks;
use super::run::{Seen, State};
use crate::commands::report;
use crate::report::percent;

/// Seconds after which a browser without scripts loads a page of a run that goes on again.
pub const RELOAD: &str = "10";

/// What a page is around its content.
pub struct Frame<'a> {
    pub title: &'a str,
    /// What there is to wait for, for a browser without scripts: seconds, and an address if it is another one.
    pub reload: Option<String>,
    /// Whether it is the page of all runs.
    pub is_first: bool,
}

impl Frame<'_> {
    pub fn around(&self, content: &Markup) -> String {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { (self.title) }
                    link rel="stylesheet" href="/style.css";
                    link rel="icon" href="/icon.svg" type="image/svg+xml";
                    @if let Some(reload) = &self.reload { noscript { meta http-equiv="refresh" content=(reload); } }
                    script src="/view.js" defer {}
                }
                body {
                    @if !self.is_first { nav aria-label="pages" { a href="/" { "all runs" } } }
                    p.offline role="status" { "enmasse does not answer: the page shows what was last known." }
                    main { (content) }
                }
            }
        };
        page.into_string()
    }
}

/// The page of all runs.
pub fn all(runs: &[std::sync::Arc<Seen>], from: &str) -> String {
    let content = html! {
        h1 { "Runs" }
        div #live data-events="/events" { (all_live(runs, from)) }
    };
    let is_live = runs.iter().any(|run| run.state == State::Running);
    Frame { title: "enmasse: runs", reload: is_live.then(|| RELOAD.to_owned()), is_first: true }.around(&content)
}

/// The part of it that changes.
pub fn all_live(runs: &[std::sync::Arc<Seen>], from: &str) -> Markup {
    html! {
        @if runs.is_empty() {
            p { "There are no runs in " (from) " yet. The first one appears here." }
        } @else {
            div.wide {
                table {
                    thead {
                        tr {
                            @for name in ["run", "state", "epochs", "train loss", "val loss", "val accuracy", "best", "images/s", "time left"] {
                                th scope="col" { (name) }
                            }
                        }
                    }
                    tbody { @for (place, run) in runs.iter().enumerate() { (row(place, run)) } }
                }
            }
            div.beside {
                @for (place, run) in runs.iter().enumerate().filter(|(_, run)| !run.points.is_empty()) {
                    figure {
                        figcaption { a href=(address(place)) { (run.name) } }
                        (curves_image(place, run))
                    }
                }
            }
        }
    }
}

fn row(place: usize, run: &Seen) -> Markup {
    let last = run.last.as_ref();
    html! {
        tr {
            td { a href=(address(place)) { (run.name) } }
            td { (state(run)) }
            td { (epochs(run)) }
            td { (number(last.and_then(|epoch| epoch.train_loss))) }
            td { (number(last.and_then(|epoch| epoch.val_loss))) }
            td { (share(last.and_then(|epoch| epoch.val_accuracy))) }
            td { (run.best.as_ref().map_or("–".to_owned(), ToString::to_string)) }
            td { (speed(last.and_then(|epoch| epoch.images_per_second))) }
            td { (run.left.map_or("–".to_owned(), clock)) }
        }
    }
}

/// The page of a run.
pub fn one(place: usize, run: &Seen, computes: bool) -> String {
    let content = html! {
        h1 { (run.name) }
        div #live data-events={ (address(place)) "/events" } { (one_live(place, run)) }
        @if computes {
            (form(place))
            p { a href={ (address(place)) "/predictions" } { "Sample predictions" } " of the validation part: mistakes, uncertain images, and others." }
        }
        (settings(run))
    };
    let reload = (run.state == State::Running).then(|| RELOAD.to_owned());
    Frame { title: &format!("enmasse: {}", run.name), reload, is_first: false }.around(&content)
}

/// The part of it that changes.
pub fn one_live(place: usize, run: &Seen) -> Markup {
    let last = run.last.as_ref();
    let mut figures = vec![("epochs", epochs(run))];
    if let Some(epoch) = last {
        let known = |name: &'static str, value: Option<f64>, shown: fn(Option<f64>) -> String| {
            value.filter(|value| value.is_finite()).map(|value| (name, shown(Some(value))))
        };
        let values = [
            known("train loss", epoch.train_loss, number),
            known("validation loss", epoch.val_loss, number),
            known("train accuracy", epoch.train_accuracy, share),
            known("validation accuracy", epoch.val_accuracy, share),
            known("learning rate", epoch.learning_rate, small),
            known("images/s", epoch.images_per_second, speed),
            known("waiting for images", epoch.data_wait, share),
            known("waiting for ranks", epoch.rank_wait, share),
        ];
        figures.extend(values.into_iter().flatten());
        figures.push(("time of an epoch", clock(epoch.seconds)));
        figures.push(("ranks", epoch.world_size.max(1).to_string()));
    }
    figures.extend(run.left.map(|left| ("time left", clock(left))));
    let further = run.further.iter().map(|(name, value)| {
        let shown = if name.ends_with("accuracy") { share(Some(*value)) } else { number(Some(*value)) };
        (name.replace('_', " "), shown)
    });
    html! {
        p { (state(run)) " " (subject(run)) }
        @if let (Some(asked), State::Running) = (run.asked(), run.state) {
            progress aria-label="epochs" max=(asked) value=(run.epochs.min(asked)) {}
        }
        @for problem in run.problem.iter().chain(&run.failure) { p.problem role="alert" { (problem) } }
        dl.figures {
            @for (name, value) in &figures { div { dt { (name) } dd { (value) } } }
            @for (name, value) in further { div { dt { (name) } dd { (value) } } }
        }
        @if let Some(best) = &run.best { p { "Best: " (best) } }
        @if let Some(straggler) = &run.straggler { p.problem { "Others wait for " (straggler) "." } }
        @if let Some(test) = &run.test {
            p { "Test part: " (counted(test.samples as usize, "image")) ": " (test.figures()) }
        }
        @if !run.points.is_empty() {
            h2 { "Training" }
            div.wide { (curves_image(place, run)) }
        }
        @if let Some(epoch) = last { (ranks::table(&epoch.ranks)) }
        @let charts: Vec<_> = CHARTS.iter().filter(|chart| chart.path(run).is_file()).collect();
        @for chart in charts {
            h2 { (chart.title) }
            div.wide { img.chart src={ (address(place)) "/" (chart.name) ".svg?after=" (run.epochs) } alt=(chart.title); }
        }
        @if !run.log.is_empty() {
            h2 { "Log" }
            pre tabindex="0" aria-label="the last lines of the log" { (run.log) }
        }
    }
}

/// A chart that training draws into a run folder.
pub struct Chart {
    pub name: &'static str,
    title: &'static str,
    path: fn(&enmasse_train::RunPaths) -> std::path::PathBuf,
}

impl Chart {
    pub fn path(&self, run: &Seen) -> std::path::PathBuf {
        (self.path)(&run.paths)
    }
}

/// The charts by the name in their addresses.
pub const CHARTS: [Chart; 3] = [
    Chart {
        name: "confusion",
        title: "Confusion in the validation of the best epoch",
        path: enmasse_train::RunPaths::confusion_matrix,
    },
    Chart { name: "classes", title: "Images of each class", path: enmasse_train::RunPaths::class_distribution },
    Chart { name: "augmented", title: "Training images after augmentation", path: enmasse_train::RunPaths::augmented },
];

/// The curves as SVG, with the best epoch marked.
pub fn curves(run: &Seen) -> String {
    let best = run.best.as_ref().and_then(|best| best.value.map(|value| (best, value)));
    let marked = best.and_then(|(best, value)| {
        let is_best = |point: &&enmasse_charts::EpochPoint| point.val_accuracy == value || point.val_loss == value;
        run.points.iter().find(is_best).map(|point| (point.epoch, best.to_string()))
    });
    training_curves(&run.name, &run.points, marked.as_ref().map(|(epoch, words)| (*epoch, words.as_str())))
}

fn curves_image(place: usize, run: &Seen) -> Markup {
    let alt = format!("loss and accuracy of {} over {}", run.name, counted(run.epochs as usize, "epoch"));
    html! { img.chart.curves src={ (address(place)) "/curves.svg?after=" (run.epochs) } alt=(alt); }
}

fn settings(run: &Seen) -> Markup {
    html! {
        @if let Some(config) = &run.config {
            h2 { "Settings" }
            (report::page::settings(config, run.origins.as_ref()))
        }
    }
}

fn subject(run: &Seen) -> String {
    let Some(config) = &run.config else { return String::new() };
    let data = config.train.data.as_ref().map_or("the embedded data set".to_owned(), |path| path.display().to_string());
    let devices = config.program.devices.as_ref().map(|devices| format!(", on {devices}")).unwrap_or_default();
    format!("{} on {data}{devices}", config.train.model)
}

/// That of a run.
pub fn address(place: usize) -> String {
    format!("/run/{place}")
}

fn state(run: &Seen) -> Markup {
    html! { span class={ "state " (run.state.name()) } { (run.state.name()) } }
}

fn epochs(run: &Seen) -> String {
    match run.asked() {
        Some(asked) => format!("{} of {asked}", run.epochs),
        None => run.epochs.to_string(),
    }
}

fn number(value: Option<f64>) -> String {
    value.filter(|value| value.is_finite()).map_or("–".to_owned(), |value| format!("{value:.4}"))
}

fn small(value: Option<f64>) -> String {
    value.filter(|value| value.is_finite()).map_or("–".to_owned(), |value| format!("{value:.2e}"))
}

fn share(value: Option<f64>) -> String {
    value.filter(|value| value.is_finite()).map_or("–".to_owned(), percent)
}

fn speed(value: Option<f64>) -> String {
    value.filter(|value| value.is_finite()).map_or("–".to_owned(), |value| format!("{value:.1}"))
}
