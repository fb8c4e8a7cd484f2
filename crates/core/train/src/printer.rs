//! Prints a line for each epoch, for programs that have no output of their own.

use std::io::{Stdout, Write, stdout};

use enmasse_wording::{duration, percent, speed};

use crate::{CallbackResult, EpochRecord, LogPoint, Logger, RunConfig, Started, short};

/// A logger that prints each epoch in a line, as `enmasse train` does, and below it further metrics, if there are any.
///
/// ```no_run
/// use enmasse_train::{Printer, TrainConfig, Trainer, TrainingData};
/// # fn example(device: std::sync::Arc<dyn enmasse_device::Device>, data: &TrainingData) -> Result<(), enmasse_train::TrainError> {
/// // epoch 1/10  loss 1.0986  val 0.9877  acc 62.50 %  lr 0.01  812 img/s  12 s
/// let mut trainer = Trainer::new(TrainConfig::default(), device).logger(Printer::default());
/// # trainer.fit("linear", &|x, classes| x.flatten().linear("fc", classes), data)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Printer<W = Stdout> {
    output: W,
    epochs: u64,
}

impl Default for Printer {
    /// Prints to standard output.
    fn default() -> Self {
        Printer::to(stdout())
    }
}

impl<W: Write> Printer<W> {
    /// Prints there. A line that cannot be written ends the run.
    pub fn to(output: W) -> Self {
        Printer { output, epochs: 0 }
    }
}

impl<W: Write + Send> Logger for Printer<W> {
    fn start(&mut self, _: &Started, settings: &RunConfig) -> CallbackResult {
        self.epochs = settings.train.epochs as u64;
        Ok(())
    }

    fn scalars(&mut self, at: LogPoint, scalars: &[(&str, f64)]) -> CallbackResult {
        let place = match at {
            LogPoint::Step(step) => format!("step {step}"),
            LogPoint::Epoch(epoch) => format!("epoch {}", epoch + 1),
        };
        Ok(writeln!(self.output, "{place}{}", list(scalars.iter().copied()))?)
    }

    fn epoch(&mut self, record: &EpochRecord) -> CallbackResult {
        writeln!(self.output, "{}", record.summary(self.epochs))?;
        if !record.metrics.is_empty() {
            let metrics = record.metrics.iter().map(|(name, value)| (name.as_str(), *value));
            writeln!(self.output, "  {}", list(metrics))?;
        }
        Ok(())
    }
}

fn list<'a>(values: impl Iterator<Item = (&'a str, f64)>) -> String {
    values.map(|(name, value)| format!("  {name} {value:.4}")).collect()
}

impl EpochRecord {
    /// The record of one of so many epochs in a line of at most 80 characters: `epoch 9/10  loss 1.0986  val 0.9877  acc 98.77 %  lr 0.0299
    /// 812 img/s  12 s`.
    pub fn summary(&self, epochs: u64) -> String {
        let mut line = format!("epoch {:>width$}/{epochs}", self.epoch + 1, width = epochs.to_string().len());
        line += &format!("  loss {:.4}", self.train_loss);
        if !self.unvalidated {
            line += &format!("  val {:.4}", self.val_loss);
        }
        let accuracy = self.val_accuracy.map(|accuracy| format!("acc {}", percent(accuracy)));
        let rest = [
            accuracy.filter(|_| !self.unvalidated),
            Some(format!("lr {}", short(self.learning_rate))),
            speed(self.images_per_second),
            Some(duration(self.seconds)),
        ];
        rest.into_iter().flatten().for_each(|part| line += &format!("  {part}"));
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usual() -> EpochRecord {
        EpochRecord {
            epoch: 8,
            train_loss: 1.09861,
            val_loss: 0.98765,
            val_accuracy: Some(0.98765),
            learning_rate: 0.029876,
            images_per_second: 812.4,
            seconds: 12.34,
            ..EpochRecord::default()
        }
    }

    #[test]
    fn an_epoch_fits_a_line() {
        let check = |record: &EpochRecord, epochs, expected: &str| {
            assert_eq!(record.summary(epochs), expected);
            assert!(expected.chars().count() <= 80, "{expected}");
        };
        check(&usual(), 10, "epoch  9/10  loss 1.0986  val 0.9877  acc 98.77 %  lr 0.0299  812 img/s  12 s");
        let long =
            EpochRecord { epoch: 89, seconds: 3723.0, images_per_second: 35.0, learning_rate: 2.5e-5, ..usual() };
        check(&long, 90, "epoch 90/90  loss 1.0986  val 0.9877  acc 98.77 %  lr 2.5e-5  35 img/s  1:02:03");
        let slow = EpochRecord { images_per_second: 0.049, ..usual() };
        check(&slow, 10, "epoch  9/10  loss 1.0986  val 0.9877  acc 98.77 %  lr 0.0299  0.05 img/s  12 s");
        let none = EpochRecord { images_per_second: 0.0, ..usual() };
        check(&none, 10, "epoch  9/10  loss 1.0986  val 0.9877  acc 98.77 %  lr 0.0299  12 s");
        let unvalidated = EpochRecord { unvalidated: true, ..usual() };
        check(&unvalidated, 10, "epoch  9/10  loss 1.0986  lr 0.0299  812 img/s  12 s");
    }

    #[test]
    fn a_run_is_printed() {
        let mut text = Vec::new();
        let mut printer = Printer { epochs: 9, ..Printer::to(&mut text) };
        printer.epoch(&usual()).unwrap();
        printer.epoch(&EpochRecord { metrics: [("val_top5".to_owned(), 0.75)].into(), ..usual() }).unwrap();
        printer.scalars(LogPoint::Step(40), &[("temperature", 36.5)]).unwrap();
        printer.scalars(LogPoint::Epoch(8), &[("test_loss", 0.5), ("test_accuracy", 0.875)]).unwrap();
        let line = "epoch 9/9  loss 1.0986  val 0.9877  acc 98.77 %  lr 0.0299  812 img/s  12 s";
        let expected = [
            line,
            line,
            "    val_top5 0.7500",
            "step 40  temperature 36.5000",
            "epoch 9  test_loss 0.5000  test_accuracy 0.8750",
        ];
        assert_eq!(String::from_utf8(text).unwrap().lines().collect::<Vec<_>>(), expected);
    }
}
