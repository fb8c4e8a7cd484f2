//! The search for a batch.

use std::time::Instant;

use super::{Session, Trainer};
use crate::batch_search::next_batch;
use crate::{BatchBound, BatchPoint, BatchSearch, ModelFn, TrainConfig, TrainError, TrainingData};

/// The largest batch that is looked at.
const MOST: usize = 1 << 16;
/// Seconds of the steps that measure a batch.
const SECONDS: f64 = 1.0;
/// Steps that measure a batch, at most.
const STEPS: u64 = 20;

impl Trainer<'_> {
    /// Searches for a batch: which is the largest that fits, by the memory that its plan states, and how fast batches of 1, 2, 4 and more
    /// train. Larger ones are not measured once they are no faster. Nothing is kept, as by [`find_lr`](Self::find_lr). All ranks of a group
    /// must call it, and have the same result.
    ///
    /// # Errors
    /// Those of [`fit`](Self::fit), or no batch fits into memory. A request to stop saves no checkpoint.
    pub fn find_batch(&mut self, name: &str, model: &ModelFn, data: &TrainingData) -> Result<BatchSearch, TrainError> {
        self.as_one(|trainer| trainer.try_find_batch(name, model, data))
    }

    fn try_find_batch(&mut self, name: &str, model: &ModelFn, data: &TrainingData) -> Result<BatchSearch, TrainError> {
        let ranks = self.group.as_ref().map_or(1, |group| group.world_size());
        let shards = self.config.shard_count(ranks);
        let all = data.train.len().div_ceil(shards.max(1)).clamp(1, MOST);
        let mut try_batch = |batch: usize, measures: bool| {
            let with = |config| TrainConfig { find_batch: true, batch: Some(batch), drop_last: false, ..config };
            self.search(with, |trainer| trainer.try_batch(name, model, data, measures))
        };
        let (largest, limit) = match try_batch(all, false) {
            Ok(_) => (all, BatchBound::Data),
            Err(
                TrainError::Memory { batch: Some(batch), .. } | TrainError::DeviceMemory { batch: Some(batch), .. },
            ) => (batch, BatchBound::Memory),
            Err(error) => return Err(error),
        };
        let mut search = BatchSearch { largest, limit, suggestion: 1, shards, points: Vec::new() };
        while let Some(batch) = next_batch(&search) {
            let point = try_batch(batch, true)?;
            search.points.push(point);
        }
        search.suggest();
        Ok(search)
    }

    /// Prepares a run with the configured batch, and perhaps measures its steps.
    fn try_batch(
        &mut self,
        name: &str,
        model: &ModelFn,
        data: &TrainingData,
        measures: bool,
    ) -> Result<BatchPoint, TrainError> {
        let used = self.used(name, model, data)?;
        self.config = used.train.clone();
        let (mut session, _) = Session::prepare(self, &used, model, data)?;
        let memory_bytes = session.memory.on_device();
        let mut point = BatchPoint { batch: session.sharding.batch, memory_bytes, ..BatchPoint::default() };
        if measures {
            // Memory is touched, and data are read, for the first time.
            let first = session.seconds_of(self, 1)?;
            let steps = ((SECONDS / first.max(1e-9)) as u64).clamp(1, STEPS);
            let seconds = session.seconds_of(self, steps)? / steps as f64;
            point.step_seconds = seconds;
            point.images_per_second = session.sharding.global_batch() as f64 / seconds;
        }
        Ok(point)
    }
}

impl Session {
    /// Trains so many steps, and says how long they took on rank 0.
    fn seconds_of(&mut self, trainer: &mut Trainer, steps: u64) -> Result<f64, TrainError> {
        let mut epoch = self.begin_epoch(trainer)?;
        let began = Instant::now();
        for _ in 0..steps {
            let step = loop {
                match self.next_step(trainer, &mut epoch)? {
                    Some(step) => break step,
                    None => {
                        self.stop_search(trainer)?;
                        self.drain(trainer, &mut epoch)?;
                        self.position.next_epoch();
                        epoch = self.begin_epoch(trainer)?;
                    }
                }
            };
            self.submit(trainer, &mut epoch, step)?;
        }
        self.drain(trainer, &mut epoch)?;
        let mut seconds = [began.elapsed().as_secs_f64()];
        if let Some(group) = &trainer.group {
            group.broadcast(&mut seconds, 0)?;
        }
        Ok(seconds[0])
    }
}
