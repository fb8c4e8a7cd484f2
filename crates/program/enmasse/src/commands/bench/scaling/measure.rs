//! A row of `bench scaling`: two epochs of training, of which the second one counts.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use enmasse_data::{DataError, Dataset, Locality};
use enmasse_graph::{Mode, Plans, Target};
use enmasse_image::{Image, ImageRegion, RandomStream, RegionRequest, TrainTransform};
use enmasse_models::Model;
use enmasse_system::files::{read_regular, write_whole};
use enmasse_train::{
    Callback, CallbackResult, Compilation, Control, Devices, EpochRecord, Objective, Preparation, RankMemory,
    RunConfig, Started, TrainConfig, Trainer, TrainingData,
};
use serde_json::json;

use super::simulate::Timeline;
use crate::commands::bench::program;
use crate::commands::bench::step_times::StepTimes;
use crate::data::stand_in::{SHAPES_SIZE, default_classes};
use crate::failure::{Failure, failed};
use crate::ranks::Rank;

/// Larger than any file of [`RowMeasurement`].
const MAX_BYTES: u64 = 1 << 16;

/// What the first rank of a row measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowMeasurement {
    /// Over all ranks.
    pub images_per_second: f64,
    /// Shares of the time ([`EpochRecord`]).
    pub data_wait: f64,
    pub rank_wait: f64,
    /// Of the device if it has memory of its own, otherwise of the rank's process.
    pub peak_memory_bytes: usize,
    /// The same of the last rank.
    pub last_memory_bytes: usize,
}

impl RowMeasurement {
    /// Reads what [`Workload::measure`] wrote.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let bytes = read_regular(path, MAX_BYTES);
        let failed = |error: &dyn std::fmt::Display| failed!("cannot read {}: {error}", path.display());
        let bytes = bytes.map_err(|error| failed(&error))?;
        // The next row writes a file of the same name.
        fs::remove_file(path).map_err(|error| failed(&error))?;
        let figures: [f64; 5] = serde_json::from_slice(&bytes).map_err(|error| failed(&error))?;
        let [images_per_second, data_wait, rank_wait, first, last] = figures;
        let [peak_memory_bytes, last_memory_bytes] = [first, last].map(|bytes| bytes as usize);
        Ok(RowMeasurement { images_per_second, data_wait, rank_wait, peak_memory_bytes, last_memory_bytes })
    }

    fn write(self, path: &Path) -> Result<(), Failure> {
        let [first, last] = [self.peak_memory_bytes, self.last_memory_bytes].map(|bytes| bytes as f64);
        let text = json!([self.images_per_second, self.data_wait, self.rank_wait, first, last]).to_string();
        write_whole(path, |file| file.write_all(text.as_bytes())).map_err(Failure::error)
    }
}

/// What all rows train: a model on some images.
#[derive(Clone)]
pub struct Workload {
    pub config: RunConfig,
    model: Model,
    data: TrainingData,
    steps: usize,
}

impl Workload {
    /// The workload of a configuration. Without DATA its images are noise in memory.
    pub fn open(mut config: RunConfig, steps: usize) -> Result<Self, Failure> {
        let model = enmasse_models::find(&config.train.model).map_err(Failure::usage)?;
        let data = match &config.train.data {
            Some(root) => {
                let data = TrainingData::open(root, &config.train.open_options())?;
                config.train.size = Some(config.train.image_size(data.kind.native_size()));
                data
            }
            None => {
                let size = config.train.image_size(Some(SHAPES_SIZE));
                config.train.size = Some(size);
                let noise = Arc::new(Noise::new(size).map_err(Failure::error)?);
                // The images are squares of the right size already.
                let classes = (0..noise.classes).map(|class| class.to_string()).collect();
                TrainingData::of_classes(classes, noise.clone(), noise)
                    .with_augmentation(move |_| TrainTransform::empty(size))
            }
        };
        // Small enough that a few steps never lead to infinities.
        let train = TrainConfig { epochs: 2, lr: 1e-3, ..config.train };
        let config = RunConfig { train, ..config };
        Ok(Workload { config, model, data, steps })
    }

    /// The same with another configuration.
    pub fn with(&self, config: RunConfig) -> Self {
        Workload { config, ..self.clone() }
    }

    /// The plans of a number of shards.
    fn plans(&self, shards: usize, target: &Target) -> Result<Plans, Failure> {
        let Workload { config, model, data, .. } = self;
        let preparation = Preparation::new(&config.train, data.kind);
        let objective = Objective::default();
        let forward = |x, classes| model.forward(x, classes);
        let compilation = Compilation {
            config: &config.train,
            preparation: &preparation,
            model: &forward,
            objective: &objective,
            outputs: data.classes.len(),
            target,
        };
        Ok(compilation.plans(shards)?)
    }

    /// Whether the model normalises over batches.
    pub fn has_batch_norm(&self) -> Result<bool, Failure> {
        let plans = self.plans(1, &Target::default())?;
        Ok(plans.state.iter().any(|tensor| tensor.name.ends_with("running_mean")))
    }

    /// The step of several devices, by the times of its instructions on one, whose speed is known; if the model has batch norm,
    /// also the step with SyncBatchNorm.
    pub fn timelines(
        &self,
        device: &Devices,
        steps: usize,
        speed: RowMeasurement,
    ) -> Result<Vec<(bool, Timeline)>, Failure> {
        let mut config = self.config.clone();
        config.program.devices = Some(device.clone());
        let device = Rank::alone().device(&config)?;
        let classes = self.data.classes.len();
        let batch = config.train.batch_per_shard(1);
        let mut program = program(&config, classes, false, device.as_ref())?;
        let memory = device.host_memory();
        StepTimes::measure(program.as_mut(), memory.as_ref(), &config.train, (batch, classes), steps, true)?;
        let times = program.profile(Mode::Train);
        let timeline = |sync_bn: bool| {
            let mut config = config.clone();
            config.train.sync_bn = sync_bn;
            let workload = self.with(config);
            let train = workload.plans(2, &device.target())?.train;
            let plan = train.ok_or_else(|| failed!("the model has nothing to train"))?;
            Ok((sync_bn, Timeline::new(&plan, &times, batch as f64 / speed.images_per_second)))
        };
        let kinds = [false, true].into_iter().take(if self.has_batch_norm()? { 2 } else { 1 });
        kinds.map(timeline).collect()
    }

    /// One line that says what is trained.
    pub fn describe(&self) -> String {
        let TrainConfig { model, precision, .. } = &self.config.train;
        let size = self.config.train.image_size(None);
        let batch = self.config.train.batch_per_shard(1);
        let images = match &self.config.train.data {
            Some(data) => format!("{} of {}", self.data.kind.name(), data.display()),
            None => "synthetic images".to_owned(),
        };
        format!("{model}, {batch} x {size}x{size} per device, {precision}, {images}")
    }

    /// Trains as one rank. The first one writes what it measured to `result`, and the run beside it.
    pub fn measure(&self, rank: &Rank, result: &Path) -> Result<(), Failure> {
        let Workload { config, model, data, steps } = self;
        let mut config = config.clone();
        config.train.out = Some(result.with_extension("run"));
        let device = rank.device(&config)?;
        let shards = config.train.shard_count(rank.world_size());
        let global_batch = shards * config.train.batch_per_shard(shards);
        let part = |whole: &Arc<dyn Dataset>, steps: usize| -> Arc<dyn Dataset> {
            Arc::new(Subset { count: (steps * global_batch).min(whole.len()), whole: whole.clone() })
        };
        let train = part(&data.train, *steps);
        let validation = part(&data.validation, 1);
        let data = TrainingData { train, validation, split: None, ..data.clone() };
        let mut watch = Watch::default();
        let loader_threads = rank.loader_threads(&config.train);
        let trainer = Trainer::new(config.train, device.clone()).program(config.program);
        let trainer = trainer.loader_threads(loader_threads).group(rank.group.clone());
        let near = rank.near(device.as_ref());
        trainer.callback(&mut watch).fit(model.name(), &|x, classes| model.forward(x, classes), &data)?;
        drop(near);
        let memory = rank.gather(watch.memory.on_device().to_string())?;
        let last = memory.last().and_then(|bytes| bytes.parse().ok()).unwrap_or_default();
        if rank.is_first() { watch.measured(last).write(result) } else { Ok(()) }
    }
}

/// Keeps what the last epoch measured.
#[derive(Default)]
struct Watch {
    memory: RankMemory,
    record: EpochRecord,
}

impl Watch {
    fn measured(&self, last_memory_bytes: usize) -> RowMeasurement {
        RowMeasurement {
            images_per_second: self.record.images_per_second,
            data_wait: self.record.data_wait,
            rank_wait: self.record.rank_wait,
            peak_memory_bytes: self.memory.on_device(),
            last_memory_bytes,
        }
    }
}

impl Callback for Watch {
    fn on_fit_start(&mut self, started: &Started, _control: &mut Control) -> CallbackResult {
        self.memory = started.memory;
        Ok(())
    }

    fn on_train_epoch_end(&mut self, record: &EpochRecord, _control: &mut Control) -> CallbackResult {
        self.record = record.clone();
        Ok(())
    }
}

/// Square images of noise, all of which share their memory.
struct Noise {
    image: Image,
    classes: usize,
}

impl Noise {
    fn new(size: usize) -> Result<Self, DataError> {
        let mut random = RandomStream::new(0, "noise", 0, 0);
        let bytes = (0..(size * size * 3).div_ceil(4)).flat_map(|_| random.next_u32().to_le_bytes());
        let image = Image::new(size, size, bytes.take(size * size * 3).collect())?;
        Ok(Noise { image, classes: default_classes(size) })
    }
}

impl Dataset for Noise {
    /// As many as any row takes.
    fn len(&self) -> usize {
        usize::MAX
    }

    fn label(&self, index: usize) -> usize {
        index % self.classes
    }

    fn read(&self, _index: usize) -> Result<Image, DataError> {
        Ok(self.image.clone())
    }
}

/// Some samples of a data set, evenly distributed over it.
struct Subset {
    whole: Arc<dyn Dataset>,
    count: usize,
}

impl Subset {
    fn place(&self, index: usize) -> usize {
        // The product may exceed 64 bits.
        (index as u128 * self.whole.len() as u128 / self.count as u128) as usize
    }
}

impl Dataset for Subset {
    fn len(&self) -> usize {
        self.count
    }

    fn label(&self, index: usize) -> usize {
        self.whole.label(self.place(index))
    }

    fn read(&self, index: usize) -> Result<Image, DataError> {
        self.whole.read(self.place(index))
    }

    fn targets(&self, index: usize) -> Vec<f32> {
        self.whole.targets(self.place(index))
    }

    fn locality(&self) -> Option<&dyn Locality> {
        Some(self)
    }
}

impl Locality for Subset {
    fn read_part(
        &self,
        index: usize,
        wanted: &dyn Fn(usize, usize) -> RegionRequest,
        view: &mut ImageRegion,
    ) -> Result<(), DataError> {
        self.whole.read_part(self.place(index), wanted, view)
    }

    fn name(&self, index: usize) -> String {
        self.whole.name(self.place(index))
    }

    fn reading_bytes(&self) -> usize {
        self.whole.locality().map_or(0, |locality| locality.reading_bytes())
    }
}
