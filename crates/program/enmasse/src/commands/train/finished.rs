//! A run that is resumed with nothing left to do: the first rank says so, and no file is touched.

use enmasse_system::machine::peak_rss_bytes;
use enmasse_train::{
    CheckpointMeta, DoneRecord, EarlyStopping, Position, RunConfig, RunEvent, RunPaths, TimeLimit, Timer, TrainConfig,
};

use crate::failure::Failure;
use crate::output::Output;
use crate::ranks::Rank;

/// Whether the run at `paths` has nothing left to do. All ranks must ask. `has_test` says whether its data have a test part.
pub fn is_finished(config: &RunConfig, paths: &RunPaths, rank: &Rank, has_test: bool) -> Result<bool, Failure> {
    let meta = match rank.is_first() {
        true => Some(CheckpointMeta::load(&paths.resumed_checkpoint(&config.train.resume)).map_err(Failure::error)?),
        false => None,
    };
    // A run that ended before the evaluation of its test part makes up for it.
    let is_tested = !has_test || paths.test_record().exists();
    let own = meta.as_ref().filter(|_| is_tested).and_then(|meta| nothing_left(&config.train, meta, paths));
    let said = rank.agree(own.unwrap_or_default())?;
    if let Some(meta) = meta.filter(|_| !said.is_empty()) {
        let mut output = Output::new(config.program.json);
        output.text(&said);
        let done = DoneRecord {
            best: meta.best,
            seconds: 0.0,
            peak_rss_bytes: peak_rss_bytes(),
            run: paths.root().to_owned(),
            run_bytes: paths.bytes(),
        };
        output.json(RunEvent::Done(&done).to_line());
        output.finish()?;
    }
    Ok(!said.is_empty())
}

/// The line for a run with this checkpoint, if it has nothing left to do.
fn nothing_left(config: &TrainConfig, meta: &CheckpointMeta, paths: &RunPaths) -> Option<String> {
    let run = paths.root().display();
    let say = |done: u64, asked: u64, what: &str, flag: &str| {
        let more = done.max(asked).saturating_mul(2);
        let of = if done > asked {
            format!("{done} {what} are done, and {asked} were asked for")
        } else {
            format!("{done} of {asked} {what} are done")
        };
        Some(format!("nothing left to do in {run}: {of}; use {flag} {more} to continue"))
    };
    let epochs = config.epochs as u64;
    let is_validated = Position::from_meta(meta, &[]).is_validated();
    match config.max_steps {
        _ if meta.epoch >= epochs => say(meta.epoch, epochs, "epochs", "--epochs"),
        Some(most) if meta.optimizer_step > most || (meta.optimizer_step == most && is_validated) => {
            say(meta.optimizer_step, most, "steps", "--max-steps")
        }
        _ if EarlyStopping::has_ended(config, meta) => {
            let epoch = meta.epoch;
            let more = config.patience.unwrap_or(1).saturating_mul(2);
            let stopped = format!("it stopped early, after {epoch} of {epochs} epochs");
            Some(format!("nothing left to do in {run}: {stopped}; use --patience {more} to continue"))
        }
        _ if Timer::has_ended(config, meta) => {
            let TimeLimit(limit) = config.max_time?;
            let epoch = meta.epoch;
            let more = TimeLimit(limit.saturating_mul(2));
            let stopped = format!("its time is over, after {epoch} of {epochs} epochs");
            Some(format!("nothing left to do in {run}: {stopped}; use --max-time {more} to continue"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_and_steps() {
        let check = |epochs: usize, max_steps: Option<u64>, epoch: u64, step: u64, expected: Option<&str>| {
            let config = TrainConfig { epochs, max_steps, ..TrainConfig::default() };
            let meta = CheckpointMeta { epoch, optimizer_step: step, ..CheckpointMeta::default() };
            assert_eq!(nothing_left(&config, &meta, &RunPaths::new("runs/a")).as_deref(), expected);
        };
        let epochs = "nothing left to do in runs/a: 10 of 10 epochs are done; use --epochs 20 to continue";
        check(10, None, 10, 80, Some(epochs));
        check(10, Some(90), 10, 80, Some(epochs));
        check(10, None, 9, 79, None);
        check(
            5,
            None,
            10,
            80,
            Some("nothing left to do in runs/a: 10 epochs are done, and 5 were asked for; use --epochs 20 to continue"),
        );
        let steps = "nothing left to do in runs/a: 7 of 7 steps are done; use --max-steps 14 to continue";
        check(10, Some(7), 0, 7, Some(steps));
        check(10, Some(8), 0, 7, None);
    }

    #[test]
    fn a_run_that_stopped_early() {
        let check = |patience: Option<u64>, state: &str, expected: Option<&str>| {
            let config = TrainConfig { patience, ..TrainConfig::default() };
            let callbacks = [("EarlyStopping val_accuracy".to_owned(), state.to_owned())].into();
            let meta = CheckpointMeta { epoch: 4, callbacks, ..CheckpointMeta::default() };
            assert_eq!(nothing_left(&config, &meta, &RunPaths::new("runs/a")).as_deref(), expected);
        };
        let stopped =
            "nothing left to do in runs/a: it stopped early, after 4 of 10 epochs; use --patience 4 to continue";
        check(Some(2), "0.5 1 2", Some(stopped));
        check(Some(2), "0.5 1 1", None);
        check(Some(3), "0.5 1 2", None);
        check(None, "0.5 1 2", None);
        check(Some(2), "", None);
    }

    #[test]
    fn a_run_whose_time_is_over() {
        let check = |minutes: u64, state: &str, expected: Option<&str>| {
            let max_time = Some(TimeLimit(std::time::Duration::from_secs(60 * minutes)));
            let config = TrainConfig { max_time, ..TrainConfig::default() };
            let callbacks = [("Timer".to_owned(), state.to_owned())].into();
            let meta = CheckpointMeta { epoch: 4, callbacks, ..CheckpointMeta::default() };
            assert_eq!(nothing_left(&config, &meta, &RunPaths::new("runs/a")).as_deref(), expected);
        };
        let over =
            "nothing left to do in runs/a: its time is over, after 4 of 10 epochs; use --max-time 3h to continue";
        check(90, "5400.25", Some(over));
        check(91, "5400.25", None);
        check(90, "", None);
    }

    /// Regression test: such a run was validated once more, and printed "0 img/s".
    #[test]
    fn a_run_that_is_beyond_its_steps_has_nothing_left() {
        let config = TrainConfig { max_steps: Some(6), ..TrainConfig::default() };
        let mut meta = CheckpointMeta::default();
        Position { samples: 14, optimizer_step: 7, ..Position::default() }.write_to(&mut meta, &[]);
        let expected =
            "nothing left to do in runs/a: 7 steps are done, and 6 were asked for; use --max-steps 14 to continue";
        assert_eq!(nothing_left(&config, &meta, &RunPaths::new("runs/a")).as_deref(), Some(expected));
    }

    /// Regression test: a run that had stopped in its last validation never had one.
    #[test]
    fn a_validation_that_is_left_to_do() {
        let config = TrainConfig { max_steps: Some(7), ..TrainConfig::default() };
        let check = |validated_samples: u64, expected: bool| {
            let mut meta = CheckpointMeta::default();
            let position = Position { samples: 14, optimizer_step: 7, validated_samples, ..Position::default() };
            position.write_to(&mut meta, &[]);
            assert_eq!(
                nothing_left(&config, &meta, &RunPaths::new("runs/a")).is_some(),
                expected,
                "{validated_samples}"
            );
        };
        check(14, true);
        check(12, false);
        check(0, false);
    }
}
