//! One rank of a run.

use std::ffi::OsString;
use std::time::Instant;

use enmasse_comm::Group;
use enmasse_train::{DoneRecord, RunPaths, SETTINGS, Stop, StopRequests, TrainError, Trainer};

use super::prepare::Run;
use super::search::search;
use crate::command_line::arguments::{DECIDED, ORIGINS};
use crate::command_line::settings::{self, cores};
use crate::failure::Failure;
use crate::failure::flight::keep_flight;
use crate::failure::record::keep_failure;
use crate::output::Output;
use crate::ranks::Rank;
use crate::ranks::attempt::attempt;
use crate::ranks::requeue::requeue;
use crate::report::device_warnings::DeviceWarnings;
use crate::report::rank_log::RankLog;
use crate::report::{Audience, Reporter};

/// One rank of the run.
pub fn train(run: &Run, rank: &Rank, requests: &StopRequests) -> Result<(), Failure> {
    let Run { config, model, data, .. } = run;
    let device = rank.device(config)?;
    let loader_threads = rank.loader_threads(&config.train);
    let fit = |mut trainer: Trainer| {
        let began = Instant::now();
        let done = trainer.fit(model.name(), &|x, classes| model.forward(x, classes), data)?;
        if data.test.is_none() || config.train.keeps_nothing() {
            return Ok(done);
        }
        trainer.test(data)?;
        let run_bytes = RunPaths::new(&done.run).bytes();
        Ok(DoneRecord { seconds: began.elapsed().as_secs_f64(), run_bytes, ..done })
    };
    let _near = rank.near(device.as_ref());
    let trainer = Trainer::new(config.train.clone(), device.clone())
        .group(rank.group.clone())
        .loader_threads(loader_threads)
        .program(config.program.clone())
        .origins(run.origins.clone())
        .attempt(attempt())
        .stop_on(requests.clone());
    if config.train.find_lr || config.train.find_batch {
        return search(trainer, run, rank);
    }
    let number = rank.group.as_ref().map_or(0, Group::rank);
    let audience = match rank.is_first() {
        true => Audience::Everybody(Output::new(config.program.json)),
        false if config.program.log_ranks => Audience::Marked(number),
        false => Audience::Nobody,
    };
    let ranks = rank.introductions(device.as_ref())?;
    let mut reporter =
        Reporter::new(audience).introduce(ranks, config, cores() / rank.share.sharers).unbalanced(data.is_unbalanced());
    if let Some(run) = &config.train.out {
        reporter = reporter.log_to(RankLog::new(run, number));
        rank.group.iter().for_each(|group| keep_flight(group, run));
    }
    let warnings = DeviceWarnings::start(rank, device.as_ref())?;
    match fit(trainer.callback(&mut reporter).callback(warnings)) {
        Ok(done) => match config.train.fast_dev_run.0 {
            Some(batches) => reporter.tried(batches.get(), &done),
            None => reporter.done(&done),
        },
        Err(TrainError::Stopped { stop, .. }) if config.train.keeps_nothing() => Err(Failure::Stopped(stop)),
        Err(TrainError::Stopped { stop, epoch, samples }) => {
            reporter.stopped(config.train.out.as_deref(), epoch, samples)?;
            match stop {
                Stop::Requeue => requeue(rank)?,
                Stop::Interrupt | Stop::End => {}
            }
            Err(Failure::Stopped(stop))
        }
        Err(error) => {
            let failure = Failure::from(error);
            reporter.failed(&failure);
            keep_failure(config.train.out.as_deref(), rank.group.as_ref(), &failure);
            Err(failure)
        }
    }
}

/// The arguments of a rank: every value as decided here, so that ranks cannot decide differently.
pub fn command_line(run: &Run) -> Vec<OsString> {
    let Run { config, origins, .. } = run;
    let mut arguments = vec!["train".into(), format!("--{DECIDED}").into()];
    // A map of texts.
    let origins = serde_json::to_string(origins).unwrap_or_else(|_| "{}".to_owned());
    arguments.push(format!("--{ORIGINS}={origins}").into());
    arguments.extend(settings::rank_flags(config, SETTINGS.iter().filter(|setting| setting.name != "data")));
    if let Some(data) = &config.train.data {
        arguments.extend(["--".into(), data.into()]);
    }
    arguments
}
