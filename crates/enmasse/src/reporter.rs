//! A run's reports: for people on a terminal, for scripts, and in each rank's log.

use std::path::Path;

use enmasse_train::{
    Callback, CallbackResult, Control, DoneRecord, EpochRecord, Progress, RunEvent, SETTINGS, SaveReason, Saved,
    Started, StoppedRecord, TrainConfig,
};
use enmasse_wording::{counted, grouped, mebibytes, one_line};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::Failure;
use crate::output::{Output, say};
use crate::rank_log::RankLog;

/// Reports a run: facts, a progress bar on a terminal, a line per epoch, the end. Only the first rank prints, unless
/// the others are allowed to; each rank's log has all of its own lines.
pub struct Reporter {
    audience: Audience,
    /// Printed first: the ranks.
    introduction: Vec<String>,
    /// Printed after the other facts.
    arguments: Option<String>,
    log: Option<RankLog>,
    epochs: usize,
    /// Hidden if standard error is not a terminal, and on other ranks.
    bar: ProgressBar,
    /// The bar's content: epoch, and whether it validates.
    shown: Option<(u64, bool)>,
}

/// The audience of a rank.
pub enum Audience {
    /// People and scripts: this is the first rank.
    Everybody(Output),
    /// People reading standard error, with the rank's number in front.
    Marked(usize),
    /// Only the log.
    Nobody,
}

impl Reporter {
    /// Reports a run of this many epochs, or an evaluation if it is 0.
    pub fn new(audience: Audience, epochs: usize) -> Self {
        let target = match audience {
            Audience::Everybody(_) => ProgressDrawTarget::stderr(),
            _ => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let template = "{prefix} [{wide_bar}] {human_pos}/{human_len} {msg}, eta {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        Reporter { audience, introduction: Vec::new(), arguments: None, log: None, epochs, bar, shown: None }
    }

    /// Adds the ranks and the effective arguments to the facts.
    pub fn introduce(self, ranks: Vec<String>, config: &TrainConfig) -> Self {
        Reporter { introduction: ranks, arguments: Some(arguments(config)), ..self }
    }

    /// Also writes the lines to a log, but only once the run begins: before that the folder may turn out to be another
    /// run's.
    pub fn log_to(self, log: RankLog) -> Self {
        Reporter { log: Some(log), ..self }
    }

    /// The end of the run, with suggested commands.
    pub fn done(mut self, done: &DoneRecord) -> Result<(), Failure> {
        self.bar.finish_and_clear();
        self.shown = None;
        if let Audience::Everybody(output) = &mut self.audience {
            let run = quoted(&done.run);
            output.text(format_args!("evaluate: enmasse eval {run} --split val"));
            output.text(format_args!("predict:  enmasse predict {run} IMAGE..."));
        }
        // Scripts and people look for the time in the last line.
        let (accuracy, memory) = (percent(done.best_val_accuracy), mebibytes(done.peak_rss_bytes as usize));
        self.line(
            Line::Figure,
            format!("done in {:.1} s: best validation accuracy {accuracy}; peak memory {memory}", done.seconds),
        );
        match self.audience {
            Audience::Everybody(mut output) => {
                output.json(RunEvent::Done(done).to_line());
                output.finish()
            }
            _ => Ok(()),
        }
    }

    /// The run stopped before its end, as requested, and is saved.
    pub fn stopped(mut self, run: Option<&Path>, epoch: u64, samples: u64) -> Result<(), Failure> {
        self.bar.finish_and_clear();
        self.shown = None;
        let run = run.unwrap_or(Path::new(""));
        let (pictures, quoted) = (counted(samples as usize, "picture"), quoted(run));
        let text = format!("stopped in epoch {}, after {pictures}: continue with --resume --out {quoted}", epoch + 1);
        self.line(Line::Figure, text);
        match self.audience {
            Audience::Everybody(mut output) => {
                output.json(RunEvent::Stopped(&StoppedRecord { epoch, samples, run: run.to_owned() }).to_line());
                output.finish()
            }
            _ => Ok(()),
        }
    }

    /// Writes the reason for the run's end to the log; the program's end prints it for people.
    pub fn failed(&mut self, failure: &Failure) {
        self.bar.finish_and_clear();
        if let Some(log) = &mut self.log {
            log.line(&format!("error: {}", one_line(failure.message())));
        }
    }

    /// Removes the bar, and prints the last lines. The result is that of the output.
    pub fn finish(self, say: impl FnOnce(&mut Output)) -> Result<(), Failure> {
        self.bar.finish_and_clear();
        match self.audience {
            Audience::Everybody(mut output) => {
                say(&mut output);
                output.finish()
            }
            _ => Ok(()),
        }
    }

    fn line(&mut self, kind: Line, text: String) {
        if let Some(log) = &mut self.log {
            log.line(&text);
        }
        let audience = &mut self.audience;
        let mut tell = || match (&mut *audience, kind) {
            (Audience::Everybody(output), Line::Fact) => output.fact(&text),
            (Audience::Everybody(output), Line::Figure) => output.text(&text),
            (Audience::Marked(rank), _) => say(format_args!("[rank {rank}] {text}")),
            (Audience::Nobody, _) => {}
        };
        match self.shown {
            Some(_) => self.bar.suspend(tell),
            // An empty bar would appear after the line.
            None => tell(),
        }
    }
}

/// The kind of a line.
#[derive(Clone, Copy)]
enum Line {
    /// Known before the first epoch: for people, besides the figures.
    Fact,
    /// A result.
    Figure,
}

impl Callback for Reporter {
    fn on_fit_start(&mut self, started: &Started, _: &mut Control) -> CallbackResult {
        self.log.iter_mut().for_each(RankLog::open);
        let lines = self.introduction.drain(..).chain(facts(started)).chain(self.arguments.take()).collect::<Vec<_>>();
        lines.into_iter().for_each(|line| self.line(Line::Fact, line));
        Ok(())
    }

    fn on_step(&mut self, progress: &Progress, _: &mut Control) -> CallbackResult {
        if self.bar.is_hidden() {
            return Ok(());
        }
        let shown = (progress.epoch, progress.validating);
        if self.shown != Some(shown) {
            self.shown = Some(shown);
            self.bar.reset();
            self.bar.set_length(progress.total);
            let part = if progress.validating { "validation" } else { "training  " };
            self.bar.set_prefix(match self.epochs {
                0 => "evaluation".to_owned(),
                epochs => format!("epoch {}/{epochs} {part}", progress.epoch + 1),
            });
        }
        self.bar.set_message(format!("{:.0} images/s, loss {:.4}", progress.images_per_second, progress.loss));
        self.bar.set_position(progress.samples);
        Ok(())
    }

    /// Prints an epoch's line once its checkpoint is written, so that a run killed after the line resumes after that epoch.
    fn on_checkpoint(&mut self, saved: &Saved, _: &mut Control) -> CallbackResult {
        if let SaveReason::EpochEnd(record) = saved.reason {
            self.epoch(record);
        }
        Ok(())
    }
}

impl Reporter {
    fn epoch(&mut self, record: &EpochRecord) {
        let epochs = self.epochs;
        let mut line = format!(
            "epoch {:>width$}/{epochs}: train loss {:.4}, val loss {:.4}, val accuracy {}, lr {:.6}, {:.0} images/s, {:.1} s",
            record.epoch + 1,
            record.train_loss,
            record.val_loss,
            percent(record.val_accuracy),
            record.learning_rate,
            record.images_per_second,
            record.seconds,
            width = epochs.to_string().len(),
        );
        line.extend(record.metrics.iter().map(|(name, value)| format!(", {name} {value:.4}")));
        self.line(Line::Figure, line);
        if let Audience::Everybody(output) = &mut self.audience {
            output.json(RunEvent::Epoch(record).to_line());
        }
    }
}

/// The facts known before the first step, one line each.
fn facts(started: &Started) -> Vec<String> {
    let Started { train_samples, validation_samples, size, ref normalization, .. } = *started;
    let list = |numbers: &[f32]| numbers.iter().map(f32::to_string).collect::<Vec<_>>().join(" ");
    let mut lines = vec![
        format!(
            "model:  {}, {} parameters, {} of them trained, {} of memory per rank{}",
            started.model,
            grouped(started.parameters as u64),
            grouped(started.trainable as u64),
            mebibytes(started.memory.total()),
            match started.memory.shards {
                0 => String::new(),
                more => format!(", {} of it for further shards", mebibytes(more)),
            }
        ),
        format!(
            "data:   {}, {} found in {}: {} for training, {} for validation",
            started.data,
            counted(train_samples + validation_samples, "picture"),
            counted(started.classes.len(), "class"),
            grouped(train_samples as u64),
            grouped(validation_samples as u64)
        ),
        format!(
            "input:  {size} x {size} pixels, mean {}, deviation {}",
            list(&normalization.mean),
            list(&normalization.deviation)
        ),
        format!("augment: {}", started.augmentation),
        format!("loader: {} in every process", counted(started.loader_threads, "thread")),
    ];
    let (batch, global_batch) = (grouped(started.batch as u64), grouped(started.global_batch as u64));
    let mut batch = match started.shards == started.world_size {
        true => format!("batch:  {batch} per rank, {global_batch} in all"),
        false => format!(
            "batch:  {batch} per shard, {global_batch} in all, of {} on {}",
            counted(started.shards, "shard"),
            counted(started.world_size, "rank")
        ),
    };
    if started.dropped_samples > 0 {
        let dropped = counted(started.dropped_samples, "picture");
        batch.push_str(&format!("; each epoch leaves out the {dropped} of the last incomplete one"));
    }
    lines.push(batch);
    if let Some(run) = &started.run {
        lines.push(format!("run:    {}", run.display()));
        lines.push(format!("charts: tensorboard --logdir={}, then open http://localhost:6006/", quoted(run)));
    }
    lines.extend(started.tuning.map(|tuning| format!("tuned:  {tuning}")));
    lines.extend(started.pretrained.iter().flat_map(|report| report.lines()).map(|line| format!("weights: {line}")));
    if let Some((epoch, samples)) = started.resumed {
        lines.push(format!("resume: epoch {}, after {}", epoch + 1, counted(samples as usize, "picture")));
    }
    lines
}

/// The effective arguments that have a value, in one line.
fn arguments(config: &TrainConfig) -> String {
    let given = SETTINGS.iter().filter_map(|setting| config.get(setting.name).map(|value| (setting.name, value)));
    let pairs = given.filter(|(_, value)| !value.is_empty()).map(|(name, value)| format!(" {name}={}", quoted(value)));
    format!("arguments:{}", pairs.collect::<String>())
}

/// A fraction as a percentage.
pub fn percent(fraction: f64) -> String {
    format!("{:.2} %", fraction * 100.0)
}

/// A path or other text, quoted for a shell.
fn quoted(text: impl AsRef<Path>) -> String {
    let text = text.as_ref().display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use enmasse_data::Normalization;
    use enmasse_device::Memory;
    use enmasse_train::Tuning;

    use super::*;

    #[test]
    fn paths_for_a_shell() {
        let check = |path: &str, expected: &str| assert_eq!(quoted(path), expected);
        check("runs/20260131-235959-resnet18", "runs/20260131-235959-resnet18");
        check("my runs", "'my runs'");
        check("it's", r"'it'\''s'");
    }

    #[test]
    fn facts_name_every_figure() {
        let started = Started {
            model: "resnet18".to_owned(),
            parameters: 11_181_642,
            trainable: 5130,
            data: "folder of class folders",
            normalization: Normalization { mean: vec![0.5; 3], deviation: vec![0.25; 3] },
            size: 64,
            augmentation: "random_crop size=64 padding=4".to_owned(),
            classes: vec!["a".to_owned(), "b".to_owned()],
            train_samples: 2400,
            dropped_samples: 32,
            validation_samples: 600,
            batch: 32,
            global_batch: 64,
            world_size: 2,
            shards: 2,
            device: "cpu (avx2, 1 thread)".to_owned(),
            loader_threads: 1,
            memory: Memory { arenas: 2 << 20, shards: 0, scratch: 1 << 20 },
            tuning: Some(Tuning { measured: 12, seconds: 2.0, reused: 0, changed: 5 }),
            pretrained: Some("loaded 1 of 2 tensors from w.pth\nmissing in the file: fc.bias".to_owned()),
            run: Some("runs/a".into()),
            resumed: Some((2, 64)),
        };
        let expected = "\
model:  resnet18, 11,181,642 parameters, 5,130 of them trained, 3.0 MiB of memory per rank
data:   folder of class folders, 3,000 pictures found in 2 classes: 2,400 for training, 600 for validation
input:  64 x 64 pixels, mean 0.5 0.5 0.5, deviation 0.25 0.25 0.25
augment: random_crop size=64 padding=4
loader: 1 thread in every process
batch:  32 per rank, 64 in all; each epoch leaves out the 32 pictures of the last incomplete one
run:    runs/a
charts: tensorboard --logdir=runs/a, then open http://localhost:6006/
tuned:  12 operations measured in 2.0 s; another algorithm than untuned: 5 in a step
weights: loaded 1 of 2 tensors from w.pth
weights: missing in the file: fc.bias
resume: epoch 3, after 64 pictures";
        assert_eq!(facts(&started).join("\n"), expected);
        let several = Started { shards: 4, batch: 16, memory: Memory { shards: 1 << 20, ..started.memory }, ..started };
        let lines = facts(&several);
        assert!(lines[0].ends_with("4.0 MiB of memory per rank, 1.0 MiB of it for further shards"), "{}", lines[0]);
        assert!(lines[5].starts_with("batch:  16 per shard, 64 in all, of 4 shards on 2 ranks; "), "{}", lines[5]);
    }

    #[test]
    fn arguments_are_one_line_of_pairs() {
        let mut config =
            TrainConfig { model: "mlp".to_owned(), data: Some("my photos".into()), ..TrainConfig::default() };
        config.set("freeze", "a.*,b").unwrap();
        let line = arguments(&config);
        assert!(line.starts_with("arguments: data='my photos' crop_padding=4 "), "{line}");
        assert!(
            line.contains(" model=mlp ") && line.contains(" sync_bn=false ") && line.contains(" freeze='a.*,b' "),
            "{line}"
        );
        assert!(!line.contains("weights=") && !line.contains('\n'), "{line}");
    }
}
