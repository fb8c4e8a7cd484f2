//! The page of a report: one file that needs nothing else, without scripts, for light and dark screens, phones and paper.
//!
//! Names of runs, classes and files are other people's text. In HTML maud escapes them; in Markdown `markdown_text` does. Charts
//! that lie in a run folder are shown as images, in which nothing of theirs can run.

use std::path::Path;

use enmasse_charts::data_address;
use enmasse_datasets::TaskKind;
use enmasse_train::{RunConfig, SettingGroup, SettingOrigins};
use enmasse_wording::{clock, counted};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::evaluated::{Evaluated, Shown};
use super::record::UsedSetting;
use super::tables::{self, Table, markdown_text};
use super::{Reported, RunRecord};
use crate::commands::eval::figures::{Figures, OfScores, curves, reliability_chart};
use crate::report::{balance, percent};

/// Larger charts of a run folder are left out.
const MAX_CHART: u64 = 8 << 20;

/// Colours as those of the charts.
pub const STYLE: &str = "
:root{color-scheme:light dark;--page:#fff;--text:#222;--minor:#595959;--line:#ddd;--strong:#4477aa}
@media (prefers-color-scheme:dark){:root{--page:#15181c;--text:#e8e8e8;--minor:#a9afb6;--line:#31363c;--strong:#6fa8dc}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1rem;background:var(--page);color:var(--text);font:15px/1.5 Helvetica,Arial,'DejaVu Sans',sans-serif}
h1{font-size:1.6rem;margin:.5rem 0}h2{font-size:1.3rem;margin:2.5rem 0 .5rem;border-top:1px solid var(--line);padding-top:1rem}h3{font-size:1.05rem;margin:1.5rem 0 .5rem}
p{margin:.4rem 0}.minor{color:var(--minor)}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left;white-space:normal;overflow-wrap:anywhere;min-width:8rem}
.text td{text-align:left;white-space:normal;overflow-wrap:anywhere}.text td:nth-child(3){min-width:6.5rem}.text th{text-align:left}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;margin:.5rem 0}dt{color:var(--minor)}dd{margin:0;overflow-wrap:anywhere}
.chart{max-width:100%;height:auto}
.images{display:grid;grid-template-columns:repeat(auto-fill,minmax(16rem,1fr));gap:1rem}
figure{margin:0;font-size:.85rem;overflow-wrap:anywhere;break-inside:avoid}figure img{max-width:100%;display:block}.pair{display:grid;grid-template-columns:1fr 1fr;gap:.3rem;align-items:end}.pair img{width:100%}
summary{cursor:pointer;color:var(--strong)}
@media print{body{max-width:none}h2{break-before:page}h2:first-of-type{break-before:auto}}
";

/// A self-contained page.
pub fn html(runs: &[Reported]) -> String {
    let title = title(runs);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="generator" content=(concat!("enmasse ", env!("CARGO_PKG_VERSION")));
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) }
                @if runs.len() > 1 {
                    (table(&tables::comparison(runs)))
                    p.minor { "Speed is the median of whole epochs after the first; speed-up is against the first run." }
                }
                @for run in runs {
                    (section(run, runs.len() > 1))
                }
            }
        }
    };
    page.into_string()
}

/// The tables and sentences of the page as Markdown.
pub fn markdown(runs: &[Reported]) -> String {
    let mut text = format!("# {}\n", markdown_text(&title(runs)));
    if runs.len() > 1 {
        text += &format!("\n{}", tables::comparison(runs).markdown());
    }
    for run in runs {
        text += &format!("\n## {}\n\n", markdown_text(&run.record.name));
        text.extend(facts(run).into_iter().map(|(name, value)| format!("- {name}: {}\n", markdown_text(&value))));
        text.extend(warnings(run).iter().map(|warning| format!("- warning: {}\n", markdown_text(warning))));
        if let Ok(evaluated) = &run.evaluated {
            text += &format!("\n{}", tables::classes(evaluated).markdown());
        }
        text += &format!("\n{}", tables::settings(&run.record).markdown());
    }
    text
}

fn title(runs: &[Reported]) -> String {
    match runs {
        [one] => one.record.name.clone(),
        several => counted(several.len(), "run"),
    }
}

/// All about a run.
fn section(run: &Reported, is_one_of_several: bool) -> Markup {
    let record = &run.record;
    let evaluated = run.evaluated.as_ref().ok();
    let warnings = warnings(run);
    html! {
        @if is_one_of_several { h2 { (record.name) } }
        dl { @for (name, value) in facts(run) { dt { (name) } dd { (value) } } }
        @if !warnings.is_empty() {
            h3 { "Warnings" }
            ul { @for warning in warnings { li { (warning) } } }
        }
        @if let Some(curves) = record.curves() {
            h3 { "Training" }
            (PreEscaped(curves))
        }
        @if let Some(evaluated) = evaluated {
            h3 { (if evaluated.values.is_empty() { "Classes" } else { "Labels and numbers" }) }
            (table(&tables::classes(evaluated)))
            @if let Some(matrix) = matrix(evaluated) {
                h3 { "Confusion" }
                div.wide { (PreEscaped(matrix)) }
            }
            @for chart in of_scores(evaluated) { div.wide { (PreEscaped(chart)) } }
            (images("Most certain mistakes", &evaluated.mistakes))
            (images("Least certain images", &evaluated.uncertain))
        }
        @let charts = charts(record);
        @if !charts.is_empty() {
            h3 { "Data" }
            @for chart in charts { p { (chart) } }
        }
        h3 { "Settings" }
        (settings(&record.config, record.origins.as_ref()))
    }
}

/// What a run is about, in the order of questions.
fn facts(run: &Reported) -> Vec<(&'static str, String)> {
    let record = &run.record;
    let train = &record.config.train;
    let data = train.data.as_ref().map_or("the embedded data set shapes".to_owned(), |path| path.display().to_string());
    let mut facts = vec![("model", train.model.clone()), ("data", data)];
    if let Some(task) = train.task.filter(|task| *task != TaskKind::Classification) {
        facts.push(("task", task.to_string()));
    }
    let best = record.best_epoch.as_ref().map(|epoch| format!(", epoch {} of {}", epoch.number(), record.epochs.len()));
    facts.push(("best", format!("{}{}", record.best, best.unwrap_or_default())));
    match &run.evaluated {
        Ok(evaluated) => {
            let Evaluated { part, figures, .. } = evaluated;
            facts.push((part, figures_line(evaluated)));
            let calibration = figures.as_ref().and_then(Figures::calibration_line);
            facts.extend(calibration.map(|line| ("probabilities", line)));
        }
        Err(reason) => facts.push(("not evaluated", reason.clone())),
    }
    if let Some(test) = &record.test {
        facts.push(("test part", format!("{}: {}", counted(test.samples as usize, "image"), test.figures())));
    }
    facts.extend(speed(record).map(|speed| ("speed", speed)));
    facts
}

/// The figures of an evaluation.
pub fn figures_line(Evaluated { found, figures, .. }: &Evaluated) -> String {
    let images = counted(found.samples as usize, "image");
    let figure = |(name, value): (&String, &f64)| format!("{name} {value:.4}, ");
    let further: String = found.metrics.iter().map(figure).collect();
    let accuracy = figures.as_ref().zip(found.accuracy).map(|(figures, accuracy)| {
        let beside = balance::beside(&found.per_class, false);
        format!("accuracy {}{}{beside}, ", percent(accuracy), figures.interval_text())
    });
    let accuracy = accuracy.unwrap_or_default();
    format!("{images}: {accuracy}{further}loss {:.4}", found.loss)
}

/// How fast training was, and what bounded it.
fn speed(record: &RunRecord) -> Option<String> {
    let images = record.images_per_second()?;
    let ranks = counted(record.ranks(), "rank");
    let epoch = record.epoch_seconds().map(|seconds| format!(", {} an epoch", clock(seconds))).unwrap_or_default();
    let bound = record.bound().zip(record.waits()).map(|(bound, [data, ranks])| {
        format!(
            "; bounded by {bound}: {} of the time went on waiting for images, {} on sums over ranks",
            percent(data),
            percent(ranks)
        )
    });
    Some(format!(
        "{images:.1} images/s on {ranks}{epoch}, {} in all{}",
        clock(record.seconds()),
        bound.unwrap_or_default()
    ))
}

/// What is known to be wrong with the data or the results.
fn warnings(run: &Reported) -> Vec<String> {
    let record = &run.record;
    let skipped = (record.unreadable > 0).then(|| {
        format!("{} cannot be read and was left out: logs/unreadable.txt", counted(record.unreadable, "image"))
    });
    let mut lines: Vec<String> = skipped.into_iter().collect();
    if let Ok(evaluated) = &run.evaluated {
        lines.extend(evaluated.warnings.iter().cloned());
        if evaluated.found.unreadable > 0 {
            let images = counted(evaluated.found.unreadable as usize, "image");
            lines.push(format!("{images} of the {} cannot be read, and do not count", evaluated.part));
        }
        let per_class = &evaluated.found.per_class;
        lines.extend(balance::never_predicted(per_class, &evaluated.classes));
        lines.extend(balance::never_evaluated(per_class, &evaluated.classes));
    }
    lines
}

fn matrix(evaluated: &Evaluated) -> Option<String> {
    let title = format!("confusion matrix, {}", evaluated.part);
    evaluated.found.confusion.as_ref()?.draw(&title, &evaluated.classes).ok()
}

/// The curves of the classes, and how far probabilities can be believed.
fn of_scores(evaluated: &Evaluated) -> Vec<String> {
    let Evaluated { part, found, figures, classes, .. } = evaluated;
    let of_scores = figures.as_ref().and_then(|figures| figures.of_scores.as_ref());
    let Some((scores, OfScores { calibration, ranked, .. })) = found.scores.as_ref().zip(of_scores) else {
        return Vec::new();
    };
    vec![curves(part, classes, scores, ranked), reliability_chart(part, calibration)]
}

/// Images with what is predicted of each, if there are any.
pub fn images(title: &str, images: &[Shown]) -> Markup {
    html! {
        @if !images.is_empty() {
            h3 { (title) }
            div.images {
                @for image in images {
                    figure {
                        div.pair {
                            @match &image.image {
                                Some(address) => { img src=(address) alt=(image.name); }
                                None => { p.minor { "cannot be read any more" } }
                            }
                            @if let Some(address) = &image.heatmap {
                                img src=(address) alt={ "where " (image.predicted) " comes from" };
                            }
                        }
                        figcaption {
                            b { (image.truth) }
                            @if image.truth != image.predicted { " predicted as " b { (image.predicted) } }
                            @if let Some(probability) = image.probability { ", " (percent(probability)) }
                            br;
                            span.minor { (image.name) }
                        }
                    }
                }
            }
        }
    }
}

fn table(table: &Table) -> Markup {
    html! {
        div.wide {
            table {
                thead { tr { @for (name, _) in &table.columns { th { (name) } } } }
                tbody { @for row in &table.rows { tr { @for cell in row { td { (cell.shown) } } } } }
            }
        }
    }
}

/// The settings of a run: those that were given or differ from their defaults with where they come from, and the others folded up.
pub fn settings(config: &RunConfig, origins: Option<&SettingOrigins>) -> Markup {
    html! {
        (settings_table(UsedSetting::of(config, origins, true), true))
        details {
            summary { "Settings at their defaults" }
            (settings_table(UsedSetting::of(config, origins, false), false))
        }
    }
}

fn settings_table(settings: Vec<UsedSetting>, own: bool) -> Markup {
    let mut group: Option<SettingGroup> = None;
    html! {
        div.wide {
            table.text {
                thead { tr { th { "setting" } th { "value" } @if own { th { "from" } } th { } } }
                @for UsedSetting { setting, value, origin } in settings {
                    @if group.replace(setting.group) != Some(setting.group) {
                        tr { th colspan=(if own { "4" } else { "3" }) { (setting.group) } }
                    }
                    tr {
                        td { (setting.name) }
                        td { (value) }
                        @if own { td { (origin) } }
                        td.minor { (setting.summary) }
                    }
                }
            }
        }
    }
}

/// The charts that training made of its data.
fn charts(record: &RunRecord) -> Vec<Markup> {
    let files = [
        (record.paths.class_distribution(), "images of each class"),
        (record.paths.augmented(), "training images after augmentation"),
    ];
    files.iter().filter_map(|(path, words)| chart(path, words)).collect()
}

/// A chart of a run folder.
pub fn chart_bytes(path: &Path) -> Option<Vec<u8>> {
    // A folder of other people may link to files of this machine.
    let is_small = path.symlink_metadata().ok().is_some_and(|file| file.is_file() && file.len() <= MAX_CHART);
    is_small.then(|| std::fs::read(path).ok()).flatten()
}

fn chart(path: &Path, words: &str) -> Option<Markup> {
    let bytes = chart_bytes(path)?;
    Some(html! { img.chart src=(data_address("image/svg+xml", &bytes)) alt=(words); })
}
