//! Defaults that depend on circumstances: ranks, threads and batch follow from the machine, size and
//! normalisation from the data set.

use std::time::Duration;

use enmasse_device::{DeviceError, RankStage, TensorRank};
use enmasse_graph::StageSchedule;

use crate::RankPlace;

use super::{Devices, OnBadSample, ProgramConfig, RankKind, StageScheduleKind, StrategyKind, TrainConfig};

/// Height and width of images if the data set has no size of its own: the training size of torchvision's models.
const DEFAULT_SIZE: usize = 224;

/// Maximum number of ranks on a machine without `--devices`.
const MAX_RANKS: usize = 8;

impl TrainConfig {
    /// Height and width of the images that the model sees: `--size`, or the data set's own if it has one, or 224.
    pub fn image_size(&self, own: Option<usize>) -> usize {
        self.size.or(own).unwrap_or(DEFAULT_SIZE)
    }

    /// Mean and std of each channel: `--mean` and `--std`, or the data set's own. A single number is for all
    /// channels. There are `--channels` of them, or three if `--mean` or `--std` has three, or as many as the data set has.
    pub fn normalization(&self, mean: &[f32], std: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let given = [&self.mean, &self.std].map(|list| list.as_ref().map_or(1, Vec::len));
        let channels = self.channels.unwrap_or(mean.len().max(given[0]).max(given[1]));
        let numbers = |list: &Option<Vec<f64>>, own: &[f32]| match list {
            Some(list) => list.iter().map(|&number| number as f32).collect(),
            None => own.to_vec(),
        };
        (in_channels(numbers(&self.mean, mean), channels), in_channels(numbers(&self.std, std), channels))
    }

    /// What becomes of samples that cannot be read: `--on-bad-sample`, or they are skipped. With `--no-convert-rgb` they are errors,
    /// since that asks for a strict look at the images.
    pub fn bad_samples(&self) -> OnBadSample {
        let default = if self.convert_rgb { OnBadSample::Skip } else { OnBadSample::Error };
        self.on_bad_sample.unwrap_or(default)
    }

    /// Ranks that compute the same, each for shards of its own: all of `world_size`, or those with one part of the model.
    ///
    /// # Errors
    /// The ranks are no multiple of the parts.
    pub fn replicas(&self, world_size: usize) -> Result<usize, DeviceError> {
        Ok(self.rank_place(0, world_size)?.replicas())
    }

    /// The part of the model that a rank has, and its number among those with the same one.
    ///
    /// # Errors
    /// The ranks are no multiple of the parts.
    pub fn rank_place(&self, rank: usize, world_size: usize) -> Result<RankPlace, DeviceError> {
        let ranks = world_size.max(1);
        if self.tensor_parallel > 1 {
            return TensorRank::new(rank, ranks, self.tensor_parallel).map(RankPlace::Tensor);
        }
        RankStage::new(rank, ranks, self.stages.len() + 1).map(RankPlace::Stage)
    }

    /// Whether each rank has a part of the model.
    pub fn is_cut(&self) -> bool {
        !self.stages.is_empty() || self.tensor_parallel > 1
    }

    /// Micro-batches of a rank of a model in stages: `--micro-batches`, or 4 for each stage, unless the global batch has fewer samples.
    pub fn micro_batches(&self) -> usize {
        let default = 4 * (self.stages.len() + 1);
        self.micro_batches.unwrap_or(if self.batch.is_some() { default } else { default.min(self.global_batch) })
    }

    /// Shards of the global batch on `world_size` ranks: `--shards`, or `--accumulate` for each rank, or for each group of ranks over which
    /// layers are cut. Of a model in stages they are the micro-batches.
    pub fn shard_count(&self, world_size: usize) -> usize {
        if !self.stages.is_empty() {
            return self.micro_batches().saturating_mul((world_size / (self.stages.len() + 1)).max(1));
        }
        self.shards.unwrap_or(self.accumulate.saturating_mul((world_size / self.tensor_parallel.max(1)).max(1)))
    }

    /// Samples per shard: `--batch`, or a global batch of 64 divided by the number of shards and rounded to nearest, so
    /// that the result hardly depends on the machine.
    pub fn batch_per_shard(&self, shards: usize) -> usize {
        let shards = shards.max(1);
        self.batch.unwrap_or((self.global_batch.saturating_add(shards / 2) / shards).max(1))
    }

    /// How long a rank waits for images (`DecodePool::timeout`): `--timeout`, or twice that where other ranks wait for it,
    /// since those end the run after `--timeout` with a cause that names the rank. Nobody else does if all ranks wait for
    /// their images.
    pub fn timeout(&self, world_size: usize) -> Duration {
        let limits = if world_size > 1 { 2.0 } else { 1.0 };
        Duration::try_from_secs_f64(limits * self.timeout).unwrap_or(Duration::MAX)
    }

    /// What a rank is: with `--strategy dp` always a thread.
    pub fn rank_kind(&self) -> RankKind {
        match self.strategy {
            StrategyKind::Ddp | StrategyKind::Zero1 => self.ranks,
            StrategyKind::Dp => RankKind::Thread,
        }
    }

    /// Decoding threads of the rank at `local_rank`: `--loader-threads`, or its share of the node's cores.
    pub fn loader_threads_of_rank(&self, cores: usize, local_rank: usize, local_ranks: usize) -> usize {
        self.loader_threads.unwrap_or(share(cores, local_rank, local_ranks))
    }
}

impl From<StageScheduleKind> for StageSchedule {
    fn from(kind: StageScheduleKind) -> Self {
        match kind {
            StageScheduleKind::GPipe => StageSchedule::GPipe,
            StageScheduleKind::OneForwardOneBackward => StageSchedule::OneForwardOneBackward,
        }
    }
}

impl ProgramConfig {
    /// Ranks of a run on one machine: `--devices`, or one for each core up to 8.
    pub fn rank_count(&self, cores: usize) -> usize {
        self.devices.as_ref().map_or(cores.clamp(1, MAX_RANKS), Devices::count)
    }

    /// Computing threads of the rank at `local_rank`: `--threads`, or its share of the node's cores.
    pub fn threads_of_rank(&self, cores: usize, local_rank: usize, local_ranks: usize) -> usize {
        self.threads.unwrap_or(share(cores, local_rank, local_ranks))
    }
}

/// Constants of one or three channels for as many `channels`. Those of grey are the luminance of the colours' constants: of a
/// mean exactly, of a std as far as the three channels vary together.
fn in_channels(numbers: Vec<f32>, channels: usize) -> Vec<f32> {
    match (&numbers[..], channels) {
        (&[red, green, blue], 1) => vec![0.299 * red + 0.587 * green + 0.114 * blue],
        (&[all], channels) => vec![all; channels],
        _ => numbers,
    }
}

/// Cores of one of several ranks: the first ranks take the remainder, and each has at least one.
fn share(cores: usize, local_rank: usize, local_ranks: usize) -> usize {
    let ranks = local_ranks.max(1);
    (cores / ranks + usize::from(local_rank < cores % ranks)).max(1)
}

#[cfg(test)]
mod tests {
    use super::super::RunConfig;
    use super::*;

    #[test]
    fn ranks_share_the_machine() {
        let (config, program) = (TrainConfig::default(), ProgramConfig::default());
        let check = |cores, expected: (usize, usize, &[usize])| {
            let ranks = program.rank_count(cores);
            let threads: Vec<_> = (0..ranks).map(|rank| program.threads_of_rank(cores, rank, ranks)).collect();
            let distinct = threads.iter().fold(Vec::new(), |mut seen, &count| {
                if !seen.contains(&count) {
                    seen.push(count);
                }
                seen
            });
            assert_eq!((ranks, config.batch_per_shard(ranks), distinct.as_slice()), expected, "{cores} cores");
        };
        check(1, (1, 64, &[1]));
        check(2, (2, 32, &[1]));
        check(3, (3, 21, &[1]));
        check(8, (8, 8, &[1]));
        check(20, (8, 8, &[3, 2]));
    }

    #[test]
    fn image_size_and_constants_follow_the_data_set() {
        let mut config = TrainConfig::default();
        assert_eq!((config.image_size(None), config.image_size(Some(32))), (224, 32));
        config.set("size", "48").unwrap();
        assert_eq!((config.image_size(None), config.image_size(Some(32))), (48, 48));

        let check = |settings: &str, own: Lists, expected: (&[f32], &[f32])| {
            let mut config = TrainConfig::default();
            for (name, value) in settings.split_whitespace().filter_map(|setting| setting.split_once('=')) {
                config.set(name, value).unwrap();
            }
            let (mean, std) = config.normalization(own.0, own.1);
            assert_eq!((mean.as_slice(), std.as_slice()), expected);
        };
        type Lists = (&'static [f32], &'static [f32]);
        const COLOUR: Lists = (&[0.1, 0.2, 0.3], &[0.4, 0.5, 0.6]);
        const GREY: Lists = (&[0.1], &[0.2]);
        check("", COLOUR, COLOUR);
        check("", GREY, GREY);
        check("mean=0.5", GREY, (&[0.5], GREY.1));
        check("mean=0.5", COLOUR, (&[0.5; 3], COLOUR.1));
        check("std=0.7,0.8,0.9", COLOUR, (COLOUR.0, &[0.7, 0.8, 0.9]));
        check("std=0.7,0.8,0.9", GREY, (&[0.1; 3], &[0.7, 0.8, 0.9]));
        // Two single numbers made a model of one channel, whatever the images were.
        check("mean=0.5 std=0.25", COLOUR, (&[0.5; 3], &[0.25; 3]));
        check("mean=0.5 std=0.25", GREY, (&[0.5], &[0.25]));
        check("mean=0.5 std=0.25 channels=1", COLOUR, (&[0.5], &[0.25]));
        check("channels=3", GREY, (&[0.1; 3], &[0.2; 3]));
        check("channels=3 mean=0.5", GREY, (&[0.5; 3], &[0.2; 3]));
        check("channels=3", COLOUR, COLOUR);
        check("channels=1", (&[0.5, 0.5, 0.5], &[0.25, 0.25, 0.25]), (&[0.5], &[0.25]));
        check("channels=1", (&[1.0, 0.0, 0.0], &[0.0, 1.0, 0.0]), (&[0.299], &[0.587]));
    }

    #[test]
    fn unreadable_samples_are_skipped_unless_the_images_are_to_be_rgb() {
        let check = |settings: &[(&str, &str)], expected: OnBadSample| {
            let mut config = TrainConfig::default();
            settings.iter().for_each(|(name, value)| config.set(name, value).unwrap());
            assert_eq!(config.bad_samples(), expected, "{settings:?}");
        };
        check(&[], OnBadSample::Skip);
        check(&[("on_bad_sample", "error")], OnBadSample::Error);
        check(&[("on_bad_sample", "substitute")], OnBadSample::Substitute);
        check(&[("convert_rgb", "false")], OnBadSample::Error);
        check(&[("convert_rgb", "false"), ("on_bad_sample", "skip")], OnBadSample::Skip);
    }

    #[test]
    fn given_values_win() {
        let mut config = RunConfig::default();
        for (name, value) in [("devices", "cpu:3"), ("batch", "5"), ("threads", "4"), ("loader_threads", "6")] {
            config.set(name, value).unwrap();
        }
        let RunConfig { train, program } = config;
        let found = (program.rank_count(2), train.batch_per_shard(9), program.threads_of_rank(2, 0, 3));
        assert_eq!((found, train.loader_threads_of_rank(2, 0, 3)), ((3, 5, 4), 6));
        assert_eq!(TrainConfig::default().batch_per_shard(200), 1);
        let mut config = TrainConfig { global_batch: 1024, ..TrainConfig::default() };
        assert_eq!((config.batch_per_shard(1), config.batch_per_shard(3)), (1024, 341));
        config.batch = Some(5);
        assert_eq!(config.batch_per_shard(3), 5);
    }
}
