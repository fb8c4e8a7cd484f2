//! A run as people see it on a terminal, and as scripts read it.

use std::path::Path;

use enmasse_train::{DoneRecord, EpochRecord, Event, Observer, Progress, Started};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::Failure;
use crate::output::{Output, counted, grouped, mebibytes};

/// Tells of a run on rank 0: facts, a bar on a terminal, a line per epoch, the end.
pub struct Reporter {
    output: Output,
    epochs: usize,
    /// Hidden where standard error is no terminal.
    bar: ProgressBar,
    /// What the bar shows: epoch, and whether it validates.
    shown: Option<(u64, bool)>,
}

impl Reporter {
    /// Tells of a run of so many epochs; of an evaluation, where that is 0.
    pub fn new(output: Output, epochs: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let template = "{prefix} [{wide_bar}] {human_pos}/{human_len} {msg}, eta {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        Reporter { output, epochs, bar, shown: None }
    }

    /// The end of the run, and what to do next.
    pub fn done(mut self, done: &DoneRecord) -> Result<(), Failure> {
        self.bar.finish_and_clear();
        self.output.json(Event::Done(done).to_line());
        let run = quoted(&done.run);
        self.output.text(format_args!(
            "done in {:.1} s: best validation accuracy {}; peak memory {}",
            done.seconds,
            percent(done.best_val_accuracy),
            mebibytes(done.peak_rss_bytes as usize)
        ));
        self.output.text(format_args!("evaluate: enmasse eval {run} --split val"));
        self.output.text(format_args!("predict:  enmasse predict {run} IMAGE..."));
        self.output.finish()
    }

    /// Takes the bar away, and gives the output back.
    pub fn into_output(self) -> Output {
        self.bar.finish_and_clear();
        self.output
    }

    fn line(&mut self, text: String) {
        let output = &mut self.output;
        match self.shown {
            Some(_) => self.bar.suspend(|| output.text(text)),
            // A bar that shows nothing yet would appear after the line.
            None => output.text(text),
        }
    }
}

impl Observer for &mut Reporter {
    fn started(&mut self, started: &Started) {
        facts(started).into_iter().for_each(|line| self.line(line));
    }

    fn progress(&mut self, progress: &Progress) {
        if self.bar.is_hidden() {
            return;
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
    }

    fn epoch(&mut self, record: &EpochRecord) {
        let epochs = self.epochs;
        self.line(format!(
            "epoch {:>width$}/{epochs}: train loss {:.4}, val loss {:.4}, val accuracy {}, lr {:.6}, {:.0} images/s, {:.1} s",
            record.epoch + 1,
            record.train_loss,
            record.val_loss,
            percent(record.val_accuracy),
            record.learning_rate,
            record.images_per_second,
            record.seconds,
            width = epochs.to_string().len(),
        ));
        self.output.json(Event::Epoch(record).to_line());
    }
}

/// What is known before the first step, a line each.
fn facts(started: &Started) -> Vec<String> {
    let Started { train_samples, validation_samples, world_size, .. } = *started;
    let mut lines = vec![
        format!(
            "model:  {}, {} parameters, {} of them trained",
            started.model,
            grouped(started.parameters as u64),
            grouped(started.trainable as u64)
        ),
        format!(
            "data:   {} found in {}: {} for training, {} for validation",
            counted(train_samples + validation_samples, "picture"),
            counted(started.classes.len(), "class"),
            grouped(train_samples as u64),
            grouped(validation_samples as u64)
        ),
        format!(
            "batch:  {} per rank, {} in all; each epoch leaves out the {} of the last incomplete one",
            grouped(started.batch as u64),
            grouped(started.global_batch as u64),
            counted(started.dropped_samples, "picture")
        ),
        format!(
            "device: {} of {}, {} to decode, {} per rank",
            counted(world_size, "rank"),
            started.device,
            counted(started.loader_threads, "thread"),
            mebibytes(started.memory_bytes)
        ),
    ];
    if let Some(run) = &started.run {
        lines.push(format!("run:    {}", run.display()));
        lines.push(format!("charts: tensorboard --logdir {}", quoted(run)));
    }
    if let Some((epoch, samples)) = started.resumed {
        lines.push(format!("resume: epoch {}, after {}", epoch + 1, counted(samples as usize, "picture")));
    }
    lines
}

/// A fraction as people read it.
pub fn percent(fraction: f64) -> String {
    format!("{:.2} %", fraction * 100.0)
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use enmasse_data::Normalization;

    use super::*;

    #[test]
    fn paths_for_a_shell() {
        let check = |path: &str, expected: &str| assert_eq!(quoted(Path::new(path)), expected);
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
            classes: vec!["a".to_owned(), "b".to_owned()],
            train_samples: 2400,
            dropped_samples: 32,
            validation_samples: 600,
            batch: 32,
            global_batch: 64,
            world_size: 2,
            device: "cpu (avx2, 1 thread)".to_owned(),
            loader_threads: 1,
            memory_bytes: 3 << 20,
            run: Some("runs/a".into()),
            resumed: Some((2, 64)),
        };
        let expected = "\
model:  resnet18, 11,181,642 parameters, 5,130 of them trained
data:   3,000 pictures found in 2 classes: 2,400 for training, 600 for validation
batch:  32 per rank, 64 in all; each epoch leaves out the 32 pictures of the last incomplete one
device: 2 ranks of cpu (avx2, 1 thread), 1 thread to decode, 3.0 MiB per rank
run:    runs/a
charts: tensorboard --logdir runs/a
resume: epoch 3, after 64 pictures";
        assert_eq!(facts(&started).join("\n"), expected);
    }
}
