//! A run's reports: for people on a terminal, for scripts, and in each rank's log.

pub mod balance;
pub mod data_bound;
pub mod device_warnings;
pub mod facts;
pub mod loss_scale;
pub mod progress;
pub mod rank_log;
pub mod skipped;
pub mod stragglers;
pub mod traced;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::Instant;

use enmasse_data::BadSample;
use enmasse_system::machine::ProcessorTime;
use enmasse_train::{
    Callback, CallbackResult, Control, DoneRecord, EpochRecord, Evaluation, Progress, RunConfig, RunEvent, RunPaths,
    SaveReason, Saved, Started, StepRecord, StoppedRecord, Straggler, Survival, TestRecord, Traced, TrainConfig, short,
};
pub use enmasse_wording::percent;
use enmasse_wording::{counted, grouped, mebibytes, one_line, shell_word, speed};

use crate::failure::Failure;
use crate::output::screen;
use crate::output::{Output, say, say_block};
use crate::report::balance::Validations;
use crate::report::data_bound::DataBound;
use crate::report::facts::facts;
use crate::report::loss_scale::Skips;
use crate::report::progress::{Course, Meter, REDRAW, waiting};
use crate::report::rank_log::RankLog;
use crate::report::skipped::Skipped;
use crate::report::stragglers::Stragglers;

/// Reports a run: facts, a line of progress on a terminal, a line per epoch, the end. Only the first rank prints, unless
/// the others are allowed to; each rank's log has all of its own lines.
#[derive(Default)]
pub struct Reporter {
    audience: Audience,
    /// Printed first: the ranks.
    introduction: Vec<String>,
    /// Printed after the other facts.
    settings: Vec<String>,
    log: Option<RankLog>,
    /// The images that cannot be read.
    skipped: Skipped,
    /// Whether it said how many images were converted to RGB.
    told_converted: bool,
    /// How long training waits for images.
    data_bound: DataBound,
    stragglers: Stragglers,
    validations: Validations,
    /// The steps that loss scaling skips.
    skips: Skips,
    /// How long the run is, as far as the configuration says.
    course: Course,
    /// Number of ranks, once it is known.
    world_size: usize,
    /// Steps between lines about steps; 0 for none.
    log_every: u64,
    meter: Meter,
    /// When the line of progress was last replaced.
    drawn: Option<Instant>,
    /// Whether it said how long the rest takes.
    estimated: bool,
}

/// The audience of a rank.
#[derive(Default)]
pub enum Audience {
    /// People and scripts: this is the first rank.
    Everybody(Output),
    /// People reading standard error, with the rank's number in front.
    Marked(usize),
    /// Only the log.
    #[default]
    Nobody,
}

impl Audience {
    /// Prints the last lines, for everybody.
    fn finish(self, say: impl FnOnce(&mut Output)) -> Result<(), Failure> {
        let Audience::Everybody(mut output) = self else { return Ok(()) };
        say(&mut output);
        output.finish()
    }
}

impl Reporter {
    /// Reports an evaluation, or a run once it is introduced.
    pub fn new(audience: Audience) -> Self {
        Reporter { audience, world_size: 1, ..Reporter::default() }
    }

    /// Makes it a run of this configuration, whose ranks have `cores` cores each, and adds the ranks and the settings to the
    /// facts.
    pub fn introduce(self, ranks: Vec<String>, config: &RunConfig, cores: usize) -> Self {
        let TrainConfig { epochs, max_steps, val_every, .. } = config.train;
        let course = Course { epochs: epochs as u64, max_steps, val_every, ..Course::default() };
        let settings = facts::fine_tuning(&config.train).into_iter().chain([facts::settings(config)]).collect();
        let log_every = config.program.log_every;
        let data_bound = DataBound::new(cores);
        // Images that stay grey are what was asked for.
        let told_converted = config.train.channels == Some(1);
        Reporter { introduction: ranks, settings, course, log_every, data_bound, told_converted, ..self }
    }

    /// Says more of accuracies if classes differ in size in training.
    pub fn unbalanced(self, is_unbalanced: bool) -> Self {
        Reporter { validations: Validations::new(is_unbalanced), ..self }
    }

    /// Also writes the lines to a log, but only once the run begins: before that the folder may turn out to be another
    /// run's.
    pub fn log_to(self, log: RankLog) -> Self {
        Reporter { log: Some(log), ..self }
    }

    /// The end of the run, with suggested commands.
    pub fn done(mut self, done: &DoneRecord) -> Result<(), Failure> {
        self.facts(self.skipped.line());
        self.facts(self.validations.warnings().collect::<Vec<_>>());
        if let Audience::Everybody(output) = &mut self.audience {
            let run = shell_word(&done.run);
            output.text(format_args!("evaluate: enmasse eval {run}"));
            output.text(format_args!("predict:  enmasse predict {run} IMAGE..."));
        }
        // Scripts and people look for the time in the last line.
        let mut memory = mebibytes(done.peak_rss_bytes as usize);
        let files = mebibytes(done.run_bytes as usize);
        if self.world_size > 1 {
            memory.push_str(&format!(" over {} ranks", self.world_size));
        }
        let balanced = self.validations.beside_best();
        let best = match (done.best.value, done.best.metric.as_str()) {
            (None, _) => "no whole epoch yet".to_owned(),
            (Some(accuracy), "val_accuracy") => format!("best validation accuracy {}{balanced}", percent(accuracy)),
            (Some(_), _) => format!("best {}{balanced}", done.best),
        };
        let run = done.run.display();
        self.line(
            LineKind::Figure,
            format!("done in {:.1} s: {best}; peak memory {memory}; {run}: {files}", done.seconds),
        );
        self.audience.finish(|output| output.json(RunEvent::Done(done).to_line()))
    }

    /// The end of a run that only tried whether everything works.
    pub fn tried(mut self, batches: usize, done: &DoneRecord) -> Result<(), Failure> {
        let batches = if batches == 1 { "1 batch".to_owned() } else { format!("{} batches", grouped(batches as u64)) };
        let memory = mebibytes(done.peak_rss_bytes as usize);
        let text = format!("done in {:.1} s: {batches} of training and of validation; nothing is kept", done.seconds);
        self.line(LineKind::Figure, format!("{text}; peak memory {memory}"));
        self.audience.finish(|output| output.json(RunEvent::Done(done).to_line()))
    }

    /// The run stopped before its end, as requested, and is saved.
    pub fn stopped(mut self, run: Option<&Path>, epoch: u64, samples: u64) -> Result<(), Failure> {
        self.facts(self.skipped.line());
        let run = run.unwrap_or(Path::new(""));
        let images = counted(samples as usize, "image");
        let command = resume_command(run);
        let text = match epoch < self.course.epochs {
            true => format!("stopped in epoch {}, after {images}; continue with: {command}", epoch + 1),
            false => format!("stopped in the test at the end; continue with: {command}"),
        };
        self.line(LineKind::Command, text);
        let record = StoppedRecord { epoch, samples, run: run.to_owned() };
        self.audience.finish(|output| output.json(RunEvent::Stopped(&record).to_line()))
    }

    /// Writes the reason for the run's end to the log; the program's end prints it for people.
    pub fn failed(&mut self, failure: &Failure) {
        screen::clear();
        if let Some(log) = &mut self.log {
            log.line(&format!("error: {}", failure.message()));
        }
    }

    /// Removes the line of progress, and prints the last lines. The result is that of the output.
    pub fn finish(mut self, say: impl FnOnce(&mut Output)) -> Result<(), Failure> {
        screen::clear();
        self.facts(self.skipped.line());
        self.audience.finish(say)
    }

    fn facts(&mut self, lines: impl IntoIterator<Item = String>) {
        lines.into_iter().for_each(|line| self.line(LineKind::Fact, line));
    }

    /// An event for scripts.
    fn event(&mut self, event: RunEvent) {
        if let Audience::Everybody(output) = &mut self.audience {
            output.json(event.to_line());
        }
    }

    fn line(&mut self, kind: LineKind, text: String) {
        if let Some(log) = &mut self.log {
            log.line(&text);
        }
        match (&mut self.audience, kind) {
            (Audience::Everybody(_), LineKind::Fact)
            | (Audience::Everybody(_) | Audience::Nobody, LineKind::Survival) => {
                say_block(fitted(&text, screen::width()))
            }
            (Audience::Everybody(output), LineKind::Figure) => {
                let width = screen::width().filter(|_| output.is_json() || io::stdout().is_terminal());
                output.block(fitted(&text, width));
            }
            (Audience::Everybody(output), LineKind::Command) => output.text(text),
            (Audience::Marked(rank), _) => say(format_args!("[rank {rank}] {text}")),
            (Audience::Nobody, _) => {}
        }
    }

    /// Shows a line of progress where there is somebody to see it; `line` makes it for the width of the terminal.
    fn show(&mut self, line: impl FnOnce(usize) -> String) {
        let width = if matches!(self.audience, Audience::Everybody(_)) { screen::width() } else { None };
        if let Some(width) = width {
            screen::show(&line(width));
            self.drawn = Some(Instant::now());
        }
    }

    /// Shows that an epoch has begun: its first step may take long.
    fn wait_for(&mut self, epoch: u64) {
        let epochs = self.course.epochs;
        self.show(|width| waiting(epoch, epochs, width));
    }
}

/// A line in the width of a terminal.
fn fitted(text: &str, width: Option<usize>) -> String {
    let text = one_line(text);
    match width {
        Some(width) => screen::wrap(&text, width),
        None => text,
    }
}

/// The kind of a line.
#[derive(Clone, Copy)]
enum LineKind {
    /// For people, besides the figures.
    Fact,
    /// For people, from any rank, as far as its launcher shows it: the first one may be the one that is gone.
    Survival,
    /// A result.
    Figure,
    /// It ends with a command to copy, which a break would split.
    Command,
}

impl Callback for Reporter {
    fn on_fit_start(&mut self, started: &Started, _: &mut Control) -> CallbackResult {
        self.log.iter_mut().for_each(RankLog::open);
        let lines =
            self.introduction.drain(..).chain(facts(started)).chain(self.settings.drain(..)).collect::<Vec<_>>();
        self.facts(lines);
        let global_batch = started.global_batch as u64;
        let validation = started.evaluated_samples as u64;
        self.validations.begin(&started.classes);
        self.world_size = started.world_size;
        self.course = Course { global_batch, validation, ..self.course };
        self.meter = Meter::new(self.course);
        self.data_bound.begin(started, ProcessorTime::gather());
        self.skipped.resume(&started.unreadable);
        if let Some(run) = &started.run {
            self.skipped.listed_in(RunPaths::new(run).unreadable());
        }
        self.event(RunEvent::Start(started));
        self.wait_for(started.resumed.map_or(0, |resumed| resumed.epoch));
        Ok(())
    }

    /// The log has every image; the screen a warning, and a few names at the end.
    fn on_bad_sample(&mut self, sample: &BadSample, _: &mut Control) -> CallbackResult {
        let warning = self.skipped.add(sample);
        if let Some(log) = &mut self.log {
            log.line(&format!("skipped {sample}"));
        }
        match (&self.audience, warning) {
            (Audience::Everybody(_), Some(line)) => say(line),
            (Audience::Marked(rank), Some(line)) => say(format_args!("[rank {rank}] {line}")),
            (Audience::Nobody, _) | (_, None) => {}
        }
        Ok(())
    }

    fn on_train_batch_end(&mut self, progress: &Progress, _: &mut Control) -> CallbackResult {
        if self.log_every > 0 && progress.optimizer_step.is_multiple_of(self.log_every) {
            self.step(&StepRecord::from(progress));
        }
        let skips = progress.loss_scale.and_then(|loss_scale| self.skips.step(loss_scale));
        self.facts(skips);
        self.draw(progress);
        Ok(())
    }

    fn on_validation_batch_end(&mut self, progress: &Progress, _: &mut Control) -> CallbackResult {
        self.draw(progress);
        Ok(())
    }

    fn on_straggler(&mut self, epoch: u64, straggler: &Straggler, _: &mut Control) -> CallbackResult {
        let line = self.stragglers.line(epoch, straggler);
        self.facts(line);
        Ok(())
    }

    fn on_trace(&mut self, traced: &Traced, _: &mut Control) -> CallbackResult {
        self.facts(traced::lines(traced));
        Ok(())
    }

    fn on_validation_end(&mut self, found: &Evaluation, _: &mut Control) -> CallbackResult {
        self.validations.add(found);
        Ok(())
    }

    fn on_test_end(&mut self, record: &TestRecord, _: &mut Control) -> CallbackResult {
        self.line(LineKind::Figure, test_line(record));
        self.event(RunEvent::Test(record));
        Ok(())
    }

    fn on_fit_end(&mut self, control: &mut Control) -> CallbackResult {
        self.facts(control.reason().map(|reason| format!("stopped early: {reason}")));
        Ok(())
    }

    /// Prints an epoch's line once its checkpoint is written, so that a run killed after the line resumes after that epoch.
    fn on_checkpoint(&mut self, saved: &Saved, _: &mut Control) -> CallbackResult {
        if let SaveReason::EpochEnd(record) = saved.reason {
            self.epoch(record);
        }
        Ok(())
    }

    fn on_survival(&mut self, survival: &Survival, _: &mut Control) -> CallbackResult {
        screen::clear();
        self.line(LineKind::Survival, survival_line(survival));
        Ok(())
    }
}

/// What a rank saved after the death of another one.
fn survival_line(survival: &Survival) -> String {
    match survival {
        Survival::Saved { step } => {
            format!("another rank is gone: saved after step {step}, the last one that is finished")
        }
        Survival::Unsaved { step, reason } => {
            format!("another rank is gone, and step {step}, the last one that is finished, is not saved: {reason}")
        }
    }
}

impl Reporter {
    /// Draws the line of progress again, if that is due.
    fn draw(&mut self, progress: &Progress) {
        let now = Instant::now();
        let is_new = self.meter.is_new_part(progress);
        let view = self.meter.step(progress, now);
        let is_due = self.drawn.is_none_or(|drawn| now.saturating_duration_since(drawn) >= REDRAW);
        let is_first_estimate = view.has_estimate() && !self.estimated;
        if is_new || is_due || is_first_estimate || !screen::is_shown() {
            self.estimated = view.has_estimate();
            self.show(|width| view.line(width));
        }
    }

    fn step(&mut self, record: &StepRecord) {
        let StepRecord { epoch, step, loss, learning_rate, images_per_second, .. } = *record;
        let place = format!("epoch {}/{}", epoch + 1, self.course.epochs);
        let rate = short(learning_rate);
        let speed = speed(images_per_second).map_or_else(String::new, |speed| format!("  {speed}"));
        self.line(LineKind::Figure, format!("{place}  step {step}  loss {loss:.4}  lr {rate}{speed}"));
        self.event(RunEvent::Step(record));
    }

    fn epoch(&mut self, record: &EpochRecord) {
        let epochs = self.course.epochs;
        let balanced = self.validations.epoch(record);
        epoch_lines(record, balanced, epochs).into_iter().for_each(|line| self.line(LineKind::Figure, line));
        if record.converted > 0 && !std::mem::replace(&mut self.told_converted, true) {
            let images = counted(record.converted as usize, "image");
            let refusal = "--no-convert-rgb refuses images that are not RGB";
            self.line(LineKind::Fact, format!("converted: {images} of this epoch to RGB; {refusal}"));
        }
        let data_bound = self.data_bound.epoch(record, ProcessorTime::gather());
        let straggler = record.straggler.as_ref().and_then(|found| self.stragglers.line(record.epoch, found));
        self.facts(data_bound.into_iter().chain(straggler));
        self.event(RunEvent::Epoch(record));
        if record.epoch + 1 < epochs {
            self.wait_for(record.epoch + 1);
        }
    }
}

/// An epoch in a line of 80 characters, the balanced accuracy and further metrics and skipped steps in other ones, and whether it is a part of an epoch.
fn epoch_lines(record: &EpochRecord, balanced: Option<String>, epochs: u64) -> Vec<String> {
    let metrics = record.metrics.iter().map(|(name, value)| format!("{name} {value:.4}"));
    let metrics: String = balanced.into_iter().chain(metrics).map(|figure| format!("  {figure}")).collect();
    let metrics = (!metrics.is_empty()).then(|| format!("  {metrics}"));
    let part = record.partial.then(|| "    a part of the epoch, up to --max-steps".to_owned());
    let skipped = record.loss_scale.filter(|_| record.skipped_steps > 0).map(|scale| {
        let steps = counted(record.skipped_steps as usize, "step");
        let verb = if record.skipped_steps == 1 { "was" } else { "were" };
        format!("    {steps} {verb} skipped: gradients overflowed f16; loss scale now {scale}")
    });
    std::iter::once(record.summary(epochs)).chain(metrics).chain(skipped).chain(part).collect()
}

/// `test: loss 0.4321  acc 88.12 %  500 images, best weights, of epoch 7`.
fn test_line(record: &TestRecord) -> String {
    let Evaluation { loss, accuracy, samples, unreadable, metrics, .. } = &record.evaluation;
    let metrics: String = metrics.iter().map(|(name, value)| format!("  {name} {value:.4}")).collect();
    let skipped = if *unreadable > 0 { format!(", {unreadable} unreadable") } else { String::new() };
    let weights = match record.epoch {
        Some(epoch) => format!("best weights, of epoch {}", epoch + 1),
        None => "last weights: no whole epoch yet".to_owned(),
    };
    let images = counted(*samples as usize, "image");
    let accuracy = accuracy.map_or_else(String::new, |accuracy| format!("  acc {}", percent(accuracy)));
    format!("test: loss {loss:.4}{accuracy}{metrics}  {images}{skipped}, {weights}")
}

/// The command that continues a run, with the settings that the run folder keeps.
pub fn resume_command(run: &Path) -> String {
    format!("enmasse train --resume --out {}", shell_word(run))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_fit_a_line() {
        let usual = EpochRecord {
            epoch: 8,
            train_loss: 1.09861,
            val_loss: 0.98765,
            val_accuracy: Some(0.98765),
            learning_rate: 0.029876,
            images_per_second: 812.4,
            seconds: 12.34,
            ..EpochRecord::default()
        };
        let check = |record: &EpochRecord, epochs: u64, expected: &[&str]| {
            let lines = epoch_lines(record, None, epochs);
            assert_eq!(lines, expected);
            assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:?}");
        };
        let metrics = [("train_top5".to_owned(), 0.25), ("val_top5".to_owned(), 0.75)].into();
        let line = "epoch 9/9  loss 1.0986  val 0.9877  acc 98.77 %  lr 0.0299  812 img/s  12 s";
        let more = "    train_top5 0.2500  val_top5 0.7500";
        let partial = EpochRecord { metrics, partial: true, ..usual.clone() };
        check(&EpochRecord { partial: false, ..partial.clone() }, 9, &[line, more]);
        check(&partial, 9, &[line, more, "    a part of the epoch, up to --max-steps"]);
        let unequal = |record: &EpochRecord| epoch_lines(record, Some("balanced accuracy 50.00 %".to_owned()), 9);
        assert_eq!(unequal(&usual), [line, "    balanced accuracy 50.00 %"]);
        let both = "    balanced accuracy 50.00 %  train_top5 0.2500  val_top5 0.7500";
        assert_eq!(unequal(&EpochRecord { partial: false, ..partial }), [line, both]);
        let metrics = || [("train_top5".to_owned(), 0.25)].into();
        let scaled = |skipped_steps| EpochRecord {
            loss_scale: Some(8192.0),
            skipped_steps,
            metrics: metrics(),
            ..usual.clone()
        };
        let more = "    train_top5 0.2500";
        check(&scaled(0), 9, &[line, more]);
        check(&scaled(1), 9, &[line, more, "    1 step was skipped: gradients overflowed f16; loss scale now 8192"]);
        check(&scaled(3), 9, &[line, more, "    3 steps were skipped: gradients overflowed f16; loss scale now 8192"]);
    }

    #[test]
    fn rates_in_three_digits() {
        let check = |rate: f64, expected: &str| assert_eq!(short(rate), expected);
        check(0.03, "0.03");
        check(0.1, "0.1");
        check(0.029876, "0.0299");
        check(1.0, "1");
        check(12.3456, "12.3");
        check(0.0009876, "9.88e-4");
        check(3e-5, "3e-5");
        check(0.0, "0");
    }
}
