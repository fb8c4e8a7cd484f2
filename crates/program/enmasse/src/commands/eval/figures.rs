//! The figures of `eval` that counts do not give: how sure the accuracy is, areas under the classes' curves, and calibration with the
//! temperature of a validation part. Also their charts, and the temperature's file.

use std::io::Write;
use std::path::Path;

use enmasse_charts::{ClassCurves, MAX_CURVES, ReliabilityBin, class_curves, reliability};
use enmasse_system::files::write_whole;
use enmasse_train::{
    Calibration, CalibrationRecord, Evaluation, Probabilities, Ranked, RunPaths, Scores, accuracy_interval,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::images::Part;
use super::task::Task;
use crate::failure::{Failure, failed};
use crate::output::warn;
use crate::report::percent;

/// What is known beside the counts.
pub struct Figures {
    /// The ends of the accuracy's 95 % interval.
    pub interval: Option<[f64; 2]>,
    /// None for too many outputs.
    pub of_scores: Option<OfScores>,
}

/// What the outputs for every image tell.
pub struct OfScores {
    pub calibration: Calibration,
    /// The temperature of a validation part, and the calibration error with it.
    pub temperature: Option<(f64, f64)>,
    /// By label.
    pub ranked: Vec<Ranked>,
}

impl Figures {
    pub fn of(found: &Evaluation, part: Part) -> Self {
        let correct = found.accuracy.unwrap_or(f64::NAN) * found.samples as f64;
        let interval = accuracy_interval(correct.round() as u64, found.samples);
        let of_scores = found.scores.as_ref().map(|scores| {
            let probabilities = Probabilities::new(scores);
            // Fitted on the images that it is evaluated on, it would flatter a test.
            let fitted = if part == Part::Validation { probabilities.fit_temperature() } else { None };
            OfScores {
                calibration: probabilities.calibration(1.0),
                temperature: fitted.map(|fitted| (fitted, probabilities.calibration(fitted).ece)),
                ranked: probabilities.ranked(),
            }
        });
        if of_scores.is_none() {
            warn(format_args!(
                "areas under curves and calibration are not computed: {} images times {} classes are more than {} outputs",
                found.samples + found.unreadable,
                found.per_class.classes().len(),
                Scores::MAX_VALUES
            ));
        }
        Figures { interval, of_scores }
    }

    /// The figures of a class; none if they are not known.
    pub fn ranked(&self, label: usize) -> Ranked {
        let own = self.of_scores.as_ref().and_then(|figures| figures.ranked.get(label).copied());
        own.unwrap_or_default()
    }

    /// Their means over classes.
    pub fn macro_average(&self) -> Ranked {
        self.of_scores.as_ref().map(|figures| Ranked::macro_average(&figures.ranked)).unwrap_or_default()
    }

    /// What follows the accuracy.
    pub fn interval_text(&self) -> String {
        let text = |[low, high]: [f64; 2]| format!(" (95 % interval {:.1} to {:.1})", low * 100.0, high * 100.0);
        self.interval.map(text).unwrap_or_default()
    }

    /// The line on calibration.
    pub fn calibration_line(&self) -> Option<String> {
        let OfScores { calibration: Calibration { ece, brier, .. }, temperature, .. } = self.of_scores.as_ref()?;
        let with =
            |(temperature, ece): &(f64, f64)| format!("; at temperature {temperature:.3} it is {}", percent(*ece));
        let with = temperature.as_ref().map(with).unwrap_or_default();
        Some(format!(
            "calibration: Brier score {brier:.4}, expected error of probabilities (ECE) {}{with}",
            percent(*ece)
        ))
    }

    /// Adds their keys.
    pub fn add_to(&self, event: &mut Value) {
        let own = self.of_scores.as_ref();
        let Ranked { roc_auc, average_precision } = self.macro_average();
        event["accuracy_interval"] = json!(self.interval);
        event["roc_auc"] = json!(roc_auc);
        event["average_precision"] = json!(average_precision);
        event["ece"] = json!(own.map(|own| own.calibration.ece));
        event["brier"] = json!(own.map(|own| own.calibration.brier));
        event["temperature"] = json!(own.and_then(|own| own.temperature).map(|(temperature, _)| temperature));
    }
}

impl Task {
    /// Writes the charts that are asked for.
    pub fn draw_figures(&self, found: &Evaluation, figures: &Figures) -> Result<(), Failure> {
        let write =
            |path: &Path, svg: String| write_whole(path, |file| file.write_all(svg.as_bytes())).map_err(Failure::error);
        let of_scores = |flag: &str| {
            let known = found.scores.as_ref().zip(figures.of_scores.as_ref());
            known.ok_or_else(|| failed!("{flag}: the outputs for so many images of so many classes are not kept"))
        };
        let part = self.images.part.describe();
        if let Some(path) = &self.shown.curves {
            let (scores, OfScores { ranked, .. }) = of_scores("--curves")?;
            write(path, curves(part, &self.images.classes, scores, ranked))?;
        }
        if let Some(path) = &self.shown.reliability {
            let (_, OfScores { calibration, .. }) = of_scores("--reliability")?;
            write(path, reliability_chart(part, calibration))?;
        }
        Ok(())
    }

    /// Keeps the temperature in the folder of the run whose validation part this is, and says so. A folder that cannot be written
    /// is a warning.
    pub fn keep_temperature(&self, found: &Evaluation, figures: &Figures) -> Option<String> {
        let OfScores { calibration, temperature, .. } = figures.of_scores.as_ref()?;
        let ((temperature, ece_at_temperature), optimizer_step) =
            (*temperature).zip(self.weights.classifier.optimizer_step)?;
        if !self.validates_run || self.crops.len() > 1 {
            return None;
        }
        let (ece, samples) = (calibration.ece, found.samples);
        let record = CalibrationRecord { temperature, ece, ece_at_temperature, samples, optimizer_step };
        let path = RunPaths::new(&self.weights.path).calibration();
        keep(&path, "the temperature is", &record)?;
        Some(format!("{} keeps the temperature, and predict uses it", path.display()))
    }
}

/// Writes a record of a run as JSON. A folder that cannot be written is a warning of `what` is not kept, and there is nothing then.
pub fn keep(path: &Path, what: &str, record: &impl Serialize) -> Option<()> {
    let text = format!("{:#}\n", json!(record));
    let written = write_whole(path, |file| file.write_all(text.as_bytes()));
    written.map_err(|error| warn(format_args!("{what} not kept: {error}"))).ok()
}

/// The chart of how often the model is right over how sure it is.
pub fn reliability_chart(part: &str, calibration: &Calibration) -> String {
    let bins = calibration.bins.iter().map(|bin| ReliabilityBin {
        samples: bin.samples,
        confidence: bin.confidence,
        accuracy: bin.accuracy,
    });
    let title = format!("reliability, {part}: ECE {}", percent(calibration.ece));
    reliability(&title, &bins.collect::<Vec<_>>())
}

/// The chart of the classes, or of the worst of many.
pub fn curves(part: &str, names: &[String], scores: &Scores, ranked: &[Ranked]) -> String {
    let mut labels: Vec<usize> = (0..ranked.len()).collect();
    let mut title = format!("curves of the classes, {part}");
    if labels.len() > MAX_CURVES {
        title =
            format!("curves of the {MAX_CURVES} of {} classes with the least average precision, {part}", labels.len());
        labels.retain(|&label| ranked[label].average_precision.is_some());
        let least = |label: usize| ranked[label].average_precision.unwrap_or_default();
        labels.sort_by(|&a, &b| least(a).total_cmp(&least(b)));
        labels.truncate(MAX_CURVES);
    }
    let probabilities = Probabilities::new(scores);
    let of_class = |&label: &usize| {
        let ranking = probabilities.ranking(label);
        let Ranked { roc_auc, average_precision } = ranked[label];
        ClassCurves {
            name: names.get(label).cloned().unwrap_or_else(|| label.to_string()),
            figures: format!("AUC {}, AP {}", area(roc_auc), area(average_precision)),
            roc: ranking.roc(),
            precision_recall: ranking.precision_recall(),
        }
    };
    class_curves(&title, &labels.iter().map(of_class).collect::<Vec<_>>())
}

/// An area, or that there is none.
pub fn area(area: Option<f64>) -> String {
    area.map_or_else(|| "-".to_owned(), |area| format!("{area:.3}"))
}
