//! The line of progress: what is under way, how fast, and how long it will take, in the room that the terminal has.

use std::time::{Duration, Instant};

use enmasse_train::Progress;
use enmasse_wording::{clock, grouped, mebibytes};

/// An image takes about a third of a training step's arithmetic to validate. Used until a validation was measured.
const VALIDATION_SPEEDUP: f64 = 3.0;

/// The line of progress is replaced no more often than this.
pub const REDRAW: Duration = Duration::from_millis(100);

/// Bounds of the bar, in characters.
const BAR: std::ops::RangeInclusive<usize> = 8..=32;

/// The plan of a run, as far as its duration depends on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Course {
    /// Number of epochs; 0 for an evaluation alone.
    pub epochs: u64,
    /// The optimiser step after which the run ends early.
    pub max_steps: Option<u64>,
    /// Images of an optimiser step.
    pub global_batch: u64,
    /// Images of a validation.
    pub validation: u64,
    /// Epochs from one validation to the next.
    pub val_every: u64,
}

/// Measures a run as it goes.
#[derive(Debug, Default)]
pub struct Meter {
    course: Course,
    /// The part under way.
    part: Option<RunPart>,
    /// When its first step was done, and the images done by then.
    first: Option<(Instant, u64)>,
    /// Images of an epoch's training.
    epoch: u64,
    /// Latest images per second of training and of validation.
    training: Option<f64>,
    validation: Option<f64>,
}

/// A part of a run: an epoch, its validation, or an evaluation that belongs to no epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RunPart {
    epoch: u64,
    is_of_epochs: bool,
    validating: bool,
}

impl RunPart {
    fn of(progress: &Progress) -> Self {
        let Progress { epoch, epochs, validating, .. } = *progress;
        RunPart { epoch, is_of_epochs: epochs > 0, validating }
    }
}

/// What the line shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProgressLine {
    what: String,
    /// From 0 to 1.
    share: f64,
    unit: Unit,
    /// Images or bytes per second, and seconds until the end of the part; unknown after the first step.
    pace: Option<(f64, f64)>,
    /// That of training or validation.
    loss: Option<f64>,
    /// Seconds until the end of the run, unless that is the same.
    run_left: Option<f64>,
}

/// What is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Unit {
    #[default]
    Images,
    Bytes,
}

impl Meter {
    /// Measures a run of this course.
    pub fn new(course: Course) -> Self {
        Meter { course, ..Meter::default() }
    }

    /// Whether this step is the first one of a part.
    pub fn is_new_part(&self, progress: &Progress) -> bool {
        self.part != Some(RunPart::of(progress))
    }

    /// Takes in a step that was done at `now`.
    pub fn step(&mut self, progress: &Progress, now: Instant) -> ProgressLine {
        if self.is_new_part(progress) {
            self.part = Some(RunPart::of(progress));
            self.first = None;
        }
        let known = if progress.validating { &mut self.validation } else { &mut self.training };
        // The first step of a part is slower than the others: data is read, and memory touched, for the first time.
        match self.first {
            Some((began, samples)) => {
                let seconds = now.saturating_duration_since(began).as_secs_f64().max(1e-9);
                *known = Some((progress.samples - samples) as f64 / seconds);
            }
            None => self.first = Some((now, progress.samples)),
        }
        let rate = *known;
        if !progress.validating {
            self.epoch = progress.total;
        }
        let Course { epochs, max_steps, global_batch, .. } = self.course;
        let allowed = max_steps
            .map_or(u64::MAX, |most| most.saturating_sub(progress.optimizer_step).saturating_mul(global_batch));
        let rest = progress.total.saturating_sub(progress.samples);
        let rest = if progress.validating { rest } else { rest.min(allowed) };
        let pace = rate.map(|rate| (rate, rest as f64 / rate));
        let run_left = pace
            .filter(|_| epochs > 0 && progress.epochs > 0)
            .map(|(_, left)| left + self.after(progress, rest, allowed));
        ProgressLine {
            what: self.what(),
            share: progress.samples as f64 / progress.total.max(1) as f64,
            unit: Unit::Images,
            pace,
            loss: Some(progress.loss),
            run_left: run_left.filter(|run| pace.is_some_and(|(_, left)| *run > left)),
        }
    }

    /// Seconds from the end of the part to the end of the run, where training may still take so many images.
    fn after(&self, progress: &Progress, rest: u64, allowed: u64) -> f64 {
        let further = self.course.epochs.saturating_sub(progress.epoch + 1).saturating_mul(self.epoch);
        let to_train = further.min(if progress.validating { allowed } else { allowed - rest });
        let started_epochs = to_train.div_ceil(self.epoch.max(1));
        let validations = started_epochs.div_ceil(self.course.val_every.max(1)) + u64::from(!progress.validating);
        // Where validation has not been measured, training has.
        let training = self.training.or(self.validation).unwrap_or(f64::INFINITY);
        let validation = self.validation.unwrap_or(training * VALIDATION_SPEEDUP);
        to_train as f64 / training + validations as f64 * self.course.validation as f64 / validation
    }

    fn what(&self) -> String {
        let of_epochs = |part: &RunPart| part.is_of_epochs && self.course.epochs > 0;
        let Some(RunPart { epoch, validating, .. }) = self.part.filter(of_epochs) else {
            return "evaluation".to_owned();
        };
        format!("epoch {}/{}{}", epoch + 1, self.course.epochs, if validating { " validation" } else { "" })
    }
}

impl ProgressLine {
    /// A look at images, of which `done` of `total` took so many seconds.
    pub fn of_scan(what: &str, done: usize, total: usize, seconds: f64) -> Self {
        let rate = done as f64 / seconds.max(1e-9);
        ProgressLine {
            what: what.to_owned(),
            share: done as f64 / total.max(1) as f64,
            pace: Some((rate, (total - done) as f64 / rate)),
            ..ProgressLine::default()
        }
    }

    /// A transfer of which `done` of `total` bytes are there; the last `recent` of them took so many seconds.
    pub fn of_transfer(what: &str, done: u64, total: u64, recent: u64, seconds: f64) -> Self {
        let rate = recent as f64 / seconds.max(1e-9);
        ProgressLine {
            what: what.to_owned(),
            share: done as f64 / total.max(1) as f64,
            unit: Unit::Bytes,
            pace: (recent > 0).then(|| (rate, total.saturating_sub(done) as f64 / rate)),
            ..ProgressLine::default()
        }
    }

    /// Whether it says how long the rest will take.
    pub fn has_estimate(&self) -> bool {
        self.pace.is_some()
    }

    /// The line, narrower than `width`: what does not fit is left out, the least important first.
    pub fn line(&self, width: usize) -> String {
        let room = width.saturating_sub(1);
        let percent = format!(" {:>3.0} %", (self.share * 100.0).floor());
        let (rate, left) = match (self.pace, self.run_left) {
            (None, _) => (String::new(), String::new()),
            (Some((rate, left)), run) => {
                let run = run.map_or(String::new(), |run| format!(", run {}", clock(run)));
                let rate = match self.unit {
                    Unit::Images => format!("{} images/s", grouped(rate.round() as u64)),
                    Unit::Bytes => format!("{}/s", mebibytes(rate as usize)),
                };
                (rate, format!("{} left{run}", clock(left)))
            }
        };
        // In the order of their importance, and each with its place in the line.
        let loss = self.loss.map_or(String::new(), |loss| format!("loss {loss:.4}"));
        let parts = [(2, left), (0, rate), (1, loss)];
        let mut used = self.what.chars().count() + percent.len();
        let mut chosen: Vec<&(usize, String)> = Vec::new();
        for part in parts.iter().filter(|(_, text)| !text.is_empty()) {
            if used + 2 + part.1.len() <= room {
                used += 2 + part.1.len();
                chosen.push(part);
            }
        }
        chosen.sort();
        let rest: String = chosen.iter().map(|(_, text)| format!("  {text}")).collect();
        let line = format!("{}{}{percent}{rest}", self.what, bar(self.share, room - used.min(room)));
        line.chars().take(room).collect()
    }
}

/// A bar with a blank before it, in the given room; nothing where that is too small.
fn bar(share: f64, room: usize) -> String {
    let cells = room.saturating_sub(3).min(*BAR.end());
    if cells < *BAR.start() {
        return String::new();
    }
    let full = ((share.clamp(0.0, 1.0) * cells as f64) as usize).min(cells);
    format!(" [{}{}]", "=".repeat(full), " ".repeat(cells - full))
}

/// The line before the first step of an epoch, counted from 0.
pub fn waiting(epoch: u64, epochs: u64, width: usize) -> String {
    let line = format!("epoch {}/{epochs}: first step…", epoch + 1);
    line.chars().take(width.saturating_sub(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(epoch: u64, validating: bool, optimizer_step: u64, samples: u64) -> Progress {
        let total = if validating { 30 } else { 100 };
        let step_loss = 0.5;
        let loss = 0.5;
        let images_per_second = f64::NAN;
        let learning_rate = 0.1;
        Progress {
            epoch,
            epochs: 3,
            validating,
            optimizer_step,
            step_loss,
            learning_rate,
            samples,
            total,
            loss,
            images_per_second,
            loss_scale: None,
        }
    }

    /// Three epochs of 100 images, each in ten steps, and of 30 to validate on.
    const COURSE: Course = Course { epochs: 3, max_steps: None, global_batch: 10, validation: 30, val_every: 1 };

    #[test]
    fn speed_and_time_left() {
        let began = Instant::now();
        let mut meter = Meter::new(COURSE);
        let mut check = |seconds: u64, progress: Progress, pace: Option<(f64, f64)>, run_left: Option<f64>| {
            let view = meter.step(&progress, began + Duration::from_secs(seconds));
            assert_eq!((view.pace, view.run_left), (pace, run_left), "{progress:?}");
        };
        // The first step takes ten seconds, every other one a second; a validation of 30 images is guessed at a second.
        check(10, progress(0, false, 1, 10), None, None);
        check(11, progress(0, false, 2, 20), Some((10.0, 8.0)), Some(8.0 + 20.0 + 3.0));
        check(19, progress(0, false, 10, 100), Some((10.0, 0.0)), Some(20.0 + 3.0));
        // Validation is measured from here on.
        check(20, progress(0, true, 10, 10), None, None);
        check(21, progress(0, true, 10, 25), Some((15.0, 5.0 / 15.0)), Some(5.0 / 15.0 + 24.0));
        // In later epochs the first step is not waited for. The last validation is the end.
        check(60, progress(2, false, 21, 10), Some((10.0, 9.0)), Some(9.0 + 2.0));
        check(70, progress(2, true, 30, 15), Some((15.0, 1.0)), None);
    }

    #[test]
    fn a_limit_of_steps_is_the_end() {
        let began = Instant::now();
        let mut meter = Meter::new(Course { max_steps: Some(13), ..COURSE });
        let mut check = |seconds: u64, progress: Progress, left: f64, run_left: Option<f64>| {
            let view = meter.step(&progress, began + Duration::from_secs(seconds));
            assert_eq!((view.pace.map_or(0.0, |(_, left)| left), view.run_left), (left, run_left), "{progress:?}");
        };
        check(1, progress(0, false, 1, 10), 0.0, None);
        check(2, progress(0, false, 2, 20), 8.0, Some(8.0 + 3.0 + 2.0));
        check(11, progress(0, true, 10, 10), 0.0, None);
        check(12, progress(0, true, 10, 20), 1.0, Some(1.0 + 3.0 + 3.0));
        check(13, progress(1, false, 11, 10), 2.0, Some(2.0 + 3.0));
        check(15, progress(1, false, 13, 30), 0.0, Some(3.0));
    }

    #[test]
    fn lines_of_any_width() {
        let view = ProgressLine {
            what: "epoch 3/10".to_owned(),
            share: 0.537,
            unit: Unit::Images,
            pace: Some((812.4, 5.4)),
            loss: Some(0.4312),
            run_left: Some(80.0),
        };
        let check = |width: usize, expected: &str| assert_eq!(view.line(width), expected, "{width}");
        check(
            120,
            "epoch 3/10 [=================               ]  53 %  812 images/s  loss 0.4312  0:05 left, run 1:20",
        );
        check(80, "epoch 3/10 [======      ]  53 %  812 images/s  loss 0.4312  0:05 left, run 1:20");
        check(60, "epoch 3/10  53 %  812 images/s  0:05 left, run 1:20");
        check(40, "epoch 3/10  53 %  0:05 left, run 1:20");
        check(20, "epoch 3/10  53 %");
        check(5, "epoc");
        check(0, "");
        for width in 0..200 {
            assert!(view.line(width).chars().count() <= width.saturating_sub(1), "{width}");
        }
        let first = ProgressLine { pace: None, run_left: None, ..view.clone() };
        assert_eq!(first.line(60), "epoch 3/10 [==============             ]  53 %  loss 0.4312");
        let evaluation = ProgressLine { what: "evaluation".to_owned(), run_left: None, ..view };
        assert_eq!(evaluation.line(40), "evaluation [====     ]  53 %  0:05 left");
    }

    #[test]
    fn a_scan() {
        let view = ProgressLine::of_scan("reading", 150, 600, 1.5);
        assert_eq!(view.line(60), "reading [====              ]  25 %  100 images/s  0:05 left");
    }

    #[test]
    fn a_transfer() {
        // The rest of a file of which half was there before.
        let view = ProgressLine::of_transfer("a.gz", 6 << 20, 8 << 20, 2 << 20, 4.0);
        assert_eq!(view.line(60), "a.gz [==================      ]  75 %  0.5 MiB/s  0:04 left");
        assert_eq!(ProgressLine::of_transfer("a.gz", 0, 8, 0, 0.0).line(20), "a.gz   0 %");
    }

    #[test]
    fn an_evaluation_alone() {
        let began = Instant::now();
        let mut meter = Meter::new(Course::default());
        assert!(!meter.step(&progress(0, true, 0, 15), began).has_estimate());
        let view = meter.step(&progress(0, true, 0, 20), began + Duration::from_secs(1));
        assert_eq!((view.what.as_str(), view.pace, view.run_left), ("evaluation", Some((5.0, 2.0)), None));
    }
}
