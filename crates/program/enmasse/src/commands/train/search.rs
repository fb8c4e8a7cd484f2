//! `--find-lr` and `--find-batch`: what was found, and the line to type.

use std::path::Path;

use enmasse_charts::{RatePoint, learning_rates};
use enmasse_train::{
    BatchBound, BatchPoint, BatchSearch, LrSearch, RunConfig, RunEvent, SETTINGS, SettingKind, TrainError, Trainer,
    short,
};
use enmasse_wording::{counted, grouped, mebibytes, shell_word};

use super::prepare::Run;
use crate::failure::{Failure, failed};
use crate::output::{Output, say};
use crate::ranks::Rank;

/// The chart of a search for a rate, in the current folder.
const CHART: &str = "find_lr.svg";

/// Searches as the configuration says. The first rank prints what was found.
pub fn search(mut trainer: Trainer, run: &Run, rank: &Rank) -> Result<(), Failure> {
    let Run { config, model, data, .. } = run;
    let failure = |error| match error {
        TrainError::Stopped { stop, .. } => Failure::Stopped(stop),
        error => Failure::from(error),
    };
    let forward = |x, classes| model.forward(x, classes);
    let mut output = Output::new(config.program.json);
    if config.train.find_lr {
        if rank.is_first() {
            say("searching for a rate: up to 100 steps, until the loss diverges");
        }
        let found = trainer.find_lr(model.name(), &forward, data).map_err(failure)?;
        if rank.is_first() {
            draw(&found)?;
            rate_lines(config, &found).iter().for_each(|line| output.text(line));
            output.json(RunEvent::FindLr(&found).to_line());
        }
    } else {
        if rank.is_first() {
            say("searching for a batch: the largest that fits, and the speed of smaller ones");
        }
        let found = trainer.find_batch(model.name(), &forward, data).map_err(failure)?;
        if rank.is_first() {
            batch_lines(config, &found).iter().for_each(|line| output.text(line));
            output.json(RunEvent::FindBatch(&found).to_line());
        }
    }
    output.finish()
}

fn draw(found: &LrSearch) -> Result<(), Failure> {
    let point = |point: &enmasse_train::LrPoint| RatePoint {
        learning_rate: point.learning_rate,
        loss: point.loss,
        smoothed: point.smoothed,
    };
    let points: Vec<RatePoint> = found.points.iter().map(point).collect();
    let chart = learning_rates("loss over the learning rate", &points, found.steepest());
    std::fs::write(Path::new(CHART), chart).map_err(|error| failed!("{CHART}: cannot be written: {error}"))
}

/// What a search for a rate has found.
fn rate_lines(config: &RunConfig, found: &LrSearch) -> Vec<String> {
    let steps = counted(found.points.len(), "step");
    let last = found.points.last().map_or(0.0, |point| point.learning_rate);
    let end = if found.diverged { "the loss diverged after" } else { "the loss did not diverge in" };
    let first = format!("{end} {steps}, at a rate of {}; drawn in {CHART}", short(last));
    let second = match found.suggestion {
        Some(rate) => format!("it falls fastest at {}: {}", short(rate), line(config, "lr", &short(rate))),
        None => "it fell by no more than chance, so no rate is suggested; look at the chart".to_owned(),
    };
    vec![first, second]
}

/// What a search for a batch has found.
fn batch_lines(config: &RunConfig, found: &BatchSearch) -> Vec<String> {
    let row = |point: &BatchPoint| {
        let BatchPoint { batch, images_per_second, step_seconds, memory_bytes } = *point;
        let speed = format!("{images_per_second:.1}");
        let ms = format!("{:.0}", 1000.0 * step_seconds);
        let global = grouped((batch * found.shards) as u64);
        format!("{:>7} {global:>7} {speed:>9} {ms:>8}  {}", grouped(batch as u64), mebibytes(memory_bytes))
    };
    let mut lines = vec![format!("{:>7} {:>7} {:>9} {:>8}  memory a rank", "batch", "in all", "images/s", "ms/step")];
    lines.extend(found.points.iter().map(row));
    let largest = grouped(found.largest as u64);
    lines.push(match found.limit {
        BatchBound::Memory => format!("the largest batch that fits is {largest}, by the memory that is free"),
        BatchBound::Data => format!("a batch of {largest} fits; the data have no more images for a step"),
    });
    let batch = found.suggestion.to_string();
    lines.push(format!("no other is clearly faster than {batch}: {}", line(config, "batch", &batch)));
    lines
}

/// The command that trains with what was found: with the settings that differ from their defaults.
fn line(config: &RunConfig, name: &str, value: &str) -> String {
    const LEFT_OUT: [&str; 4] = ["data", "find_lr", "find_batch", "json"];
    let mut words = vec!["enmasse train".to_owned()];
    words.extend(config.train.data.as_ref().map(shell_word));
    for setting in SETTINGS.iter().filter(|setting| !LEFT_OUT.contains(&setting.name)) {
        let own =
            config.get(setting.name).filter(|text| !text.is_empty() && setting.default_text().as_ref() != Some(text));
        let given = (setting.name == name).then(|| value.to_owned());
        let Some(text) = given.or(own) else { continue };
        words.push(match setting.kind {
            SettingKind::Switch if text == "true" => setting.flag(),
            SettingKind::Switch | SettingKind::Optional => format!("{}={text}", setting.flag()),
            _ => format!("{} {}", setting.flag(), shell_word(text)),
        });
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use enmasse_train::LrPoint;

    use super::*;

    fn config(pairs: &[(&str, &str)]) -> RunConfig {
        let mut config = RunConfig::default();
        pairs.iter().for_each(|(name, value)| config.set(name, value).unwrap());
        config
    }

    #[test]
    fn the_line_to_type() {
        let check = |pairs: &[(&str, &str)], expected: &str| {
            assert_eq!(line(&config(pairs), "lr", "0.01"), format!("enmasse train{expected}"));
        };
        check(&[("find_lr", "true")], " --lr 0.01");
        check(
            &[
                ("data", "my photos"),
                ("model", "resnet34"),
                ("lr", "0.5"),
                ("sync_bn", "true"),
                ("convert_rgb", "false"),
            ],
            " 'my photos' --convert-rgb=false --model resnet34 --lr 0.01 --sync-bn",
        );
    }

    #[test]
    fn what_was_found() {
        let point = LrPoint { learning_rate: 0.25, loss: 1.0, smoothed: 1.0 };
        let mut found = LrSearch::default();
        (found.suggestion, found.diverged, found.points) = (Some(0.0123), true, vec![point; 61]);
        assert_eq!(
            rate_lines(&config(&[]), &found),
            [
                "the loss diverged after 61 steps, at a rate of 0.25; drawn in find_lr.svg",
                "it falls fastest at 0.0123: enmasse train --lr 0.0123"
            ]
        );
        found.suggestion = None;
        assert_eq!(
            rate_lines(&config(&[]), &found)[1],
            "it fell by no more than chance, so no rate is suggested; look at the chart"
        );

        let point = |batch: usize, images_per_second: f64| BatchPoint {
            batch,
            images_per_second,
            step_seconds: batch as f64 / images_per_second,
            memory_bytes: batch << 20,
        };
        let points = vec![point(1, 10.0), point(2, 15.5)];
        let found = BatchSearch { largest: 1500, limit: BatchBound::Memory, suggestion: 2, shards: 2, points };
        assert_eq!(
            batch_lines(&config(&[]), &found).join("\n"),
            "  batch  in all  images/s  ms/step  memory a rank
      1       2      10.0      100  1.0 MiB
      2       4      15.5      129  2.0 MiB
the largest batch that fits is 1,500, by the memory that is free
no other is clearly faster than 2: enmasse train --batch 2"
        );
    }
}
