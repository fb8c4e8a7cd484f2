//! The search for a learning rate.

use super::{Session, Step, Trainer};
use crate::stop::{Request, agree};
use crate::{LrSchedule, LrSearch, ModelFn, TrainConfig, TrainError, TrainingData};

impl Trainer<'_> {
    /// Searches for a learning rate by fastai's and Lightning's range test: trains on up to 100 batches, with a rate that grows from 1e-7 to
    /// 10, until the average of the losses diverges. The weights are those that a fit would begin with, and a fit afterwards is not changed
    /// by it: nothing is written, and no schedule, logger or callback takes part. All ranks of a group must call it, and have the same result.
    ///
    /// # Errors
    /// Those of [`fit`](Self::fit), but for a loss that is not finite, which ends the search. A request to stop saves no
    /// checkpoint.
    pub fn find_lr(&mut self, name: &str, model: &ModelFn, data: &TrainingData) -> Result<LrSearch, TrainError> {
        let with = |config| TrainConfig { find_lr: true, ..config };
        self.as_one(|trainer| trainer.search(with, |trainer| trainer.try_find_lr(name, model, data)))
    }

    /// Does a part of a search with this configuration, and forgets it.
    pub(super) fn search<T>(
        &mut self,
        with: impl FnOnce(TrainConfig) -> TrainConfig,
        work: impl FnOnce(&mut Trainer) -> Result<T, TrainError>,
    ) -> Result<T, TrainError> {
        let config = with(TrainConfig { max_steps: None, save_every: 0, trace_steps: None, ..self.config.clone() });
        let mut trainer = Trainer {
            group: self.group.clone(),
            loader_threads: self.loader_threads,
            program: self.program.clone(),
            objective: self.objective.clone(),
            sampler: self.sampler.clone(),
            schedule: self.schedule.clone(),
            attempt: self.attempt.clone(),
            ..Trainer::new(config, self.device.clone())
        };
        trainer.callbacks.control.requests = self.callbacks.control.requests.clone();
        let found = work(&mut trainer);
        trainer.callbacks.control.requests.heed(found.is_err());
        found
    }

    fn try_find_lr(&mut self, name: &str, model: &ModelFn, data: &TrainingData) -> Result<LrSearch, TrainError> {
        let used = self.used(name, model, data)?;
        self.config = used.train.clone();
        let (mut session, _) = Session::prepare(self, &used, model, data)?;
        let mut search = LrSearch::default();
        let mut epoch = session.begin_epoch(self)?;
        while let Some(learning_rate) = search.next_rate() {
            let Some(step) = session.next_step(self, &mut epoch)? else {
                session.stop_search(self)?;
                session.position.next_epoch();
                epoch = session.begin_epoch(self)?;
                continue;
            };
            session.submit(self, &mut epoch, Step { learning_rate, ..step })?;
            // The same on all ranks, since ranks add up their losses.
            match session.drain(self, &mut epoch) {
                Ok(metrics) => metrics.iter().for_each(|metrics| search.add(metrics.loss)),
                Err(TrainError::NonFinite { .. }) => search.diverge(),
                Err(error) => return Err(error),
            }
        }
        let scale = LrSchedule::new(&self.config, session.map.shards()).highest() / self.config.lr;
        search.suggestion = search.steepest().map(|rate| rate / scale);
        Ok(search)
    }
}

impl Session {
    /// Ends a search on all ranks if one of them was asked to stop.
    pub(super) fn stop_search(&self, trainer: &Trainer) -> Result<(), TrainError> {
        match agree(trainer.callbacks.control.request(), trainer.group.as_ref())? {
            Some(Request::Stop(stop)) => {
                Err(TrainError::Stopped { stop, epoch: self.position.epoch, samples: self.position.samples })
            }
            Some(Request::Finish) | None => Ok(()),
        }
    }
}
