//! What a [`Trainer`] is made of: everything that a program may add to, or replace of, what the configuration says.

use std::sync::Arc;

use enmasse_comm::Group;
use enmasse_device::Device;
use enmasse_graph::optimizers::{Custom, CustomOptimizer};
use enmasse_graph::{GroupRule, Metric, PerSample, Tensor};

use super::Trainer;
use crate::callback::Callbacks;
use crate::plans::Objective;
use crate::{Attempt, Callback, Logger, Monitor, ProgramConfig, SettingOrigins, StopRequests, Task, TrainConfig};

impl<'a> Trainer<'a> {
    /// A trainer without a group or callbacks.
    pub fn new(config: TrainConfig, device: Arc<dyn Device>) -> Self {
        Trainer {
            config,
            device,
            group: None,
            loader_threads: None,
            program: None,
            origins: None,
            objective: Objective::default(),
            schedule: None,
            sampler: None,
            callbacks: Callbacks::default(),
            attempt: Attempt::default(),
            trained: None,
        }
    }

    /// Makes this trainer one rank of a group, if there is one. Every rank must call the same methods.
    pub fn group(self, group: impl Into<Option<Group>>) -> Self {
        Trainer { group: group.into().filter(|group| group.world_size() > 1), ..self }
    }

    /// Replaces classification by another task, which says what the targets of samples are, how the model is compared with them,
    /// and which epoch is the best.
    pub fn task(mut self, task: impl Task + 'static) -> Self {
        self.objective.task = Some(Arc::new(task));
        self
    }

    /// Replaces what decides which epoch is the best: whose checkpoint is `best.safetensors`, and is tested at the end. The setting
    /// [`TrainConfig::monitor`] takes precedence, and needs this for a metric of [`Trainer::metric`], whose better direction is not
    /// known otherwise.
    pub fn monitor(mut self, monitor: Monitor) -> Self {
        self.objective.monitor = Some(monitor);
        self
    }

    /// Replaces cross-entropy, or the task's loss, by another loss. It is a function on the builder, like the model, from logits `[N,K]` and
    /// targets `[N,K]` (1 at the label, 0 elsewhere) to one number per sample `[N]`. Training minimises its mean over
    /// the global batch, for any number of shards; validation reports its mean over the samples.
    pub fn loss(mut self, function: impl Fn(Tensor, Tensor) -> Tensor + Send + Sync + 'static) -> Self {
        self.objective.loss = Some(PerSample::new(function));
        self
    }

    /// Adds a metric: a function like a loss. Records have its mean over the samples of an epoch as
    /// `train_NAME` and `val_NAME`.
    pub fn metric(
        mut self,
        name: impl Into<String>,
        function: impl Fn(Tensor, Tensor) -> Tensor + Send + Sync + 'static,
    ) -> Self {
        self.objective.metrics.push(Metric::Custom { name: name.into(), function: PerSample::new(function) });
        self
    }

    /// Replaces the optimiser of the configuration by one of this program's own, which CPUs run. The configuration's learning rate,
    /// schedule, weight decay, clipping and averages hold for it too.
    pub fn optimizer(mut self, optimizer: impl CustomOptimizer + 'static) -> Self {
        self.objective.optimizer = Some(Custom::new(optimizer));
        self
    }

    /// Adds exceptions from the configuration's weight decay and learning rate, for the parameters that patterns of names match:
    /// `GroupRule::new("*.bias").weight_decay(0.0)`. Later rules win.
    pub fn groups(mut self, rules: impl IntoIterator<Item = GroupRule>) -> Self {
        self.objective.groups.extend(rules);
        self
    }

    /// Replaces the configuration's schedule, with its warm-up, by a function from progress to the learning rate. Progress is the epochs
    /// done, with the fraction of the current one: 2.5 is the middle of the third. Settings of a schedule are then an error. The
    /// function must give the same on all ranks, which compare the rates of an epoch's steps before the epoch, and when the run is
    /// resumed.
    pub fn schedule(self, rate: impl Fn(f64) -> f64 + Send + Sync + 'static) -> Self {
        Trainer { schedule: Some(Arc::new(rate)), ..self }
    }

    /// Replaces the configuration's order of training samples by a function from the epoch, from 0, to indices in the data set. A sample
    /// may come several times, each time with another augmentation, or not at all. Epochs may differ in length. Settings of a
    /// sampler are then an error. The function must give the same on all ranks, which compare it before each epoch, and when the run
    /// is resumed: within an epoch it goes on after the samples that are done.
    pub fn sampler(self, order: impl Fn(u64) -> Vec<usize> + Send + Sync + 'static) -> Self {
        Trainer { sampler: Some(Arc::new(order)), ..self }
    }

    /// Adds a callback.
    pub fn callback(mut self, callback: impl Callback + 'a) -> Self {
        self.callbacks.push(callback);
        self
    }

    /// Adds a logger, beside those that write `metrics.jsonl` and TensorBoard's files. The first rank's is used.
    pub fn logger(mut self, logger: impl Logger + 'a) -> Self {
        self.callbacks.loggers.push(logger);
        self
    }

    /// Sets the number of threads that decode images for this rank. The default is `loader_threads` of the configuration, or this
    /// rank's share of the cores, as of one of the group's ranks on this machine.
    pub fn loader_threads(self, threads: usize) -> Self {
        Trainer { loader_threads: Some(threads.max(1)), ..self }
    }

    /// Records the settings that the program around this trainer obeys, and compares them with those of the other ranks. Otherwise the
    /// run records the device and the ranks that this trainer was given.
    pub fn program(self, config: ProgramConfig) -> Self {
        Trainer { program: Some(config), ..self }
    }

    /// Keeps with the run where its settings come from. Otherwise that is not known.
    pub fn origins(self, origins: SettingOrigins) -> Self {
        Trainer { origins: Some(origins), ..self }
    }

    /// Sets the source of requests to stop from outside, such as signals.
    pub fn stop_on(mut self, requests: StopRequests) -> Self {
        self.callbacks.control.requests = requests;
        self
    }

    /// Sets the start of a job that this trainer belongs to. The default is the first start of a job without a name.
    pub fn attempt(self, attempt: Attempt) -> Self {
        Trainer { attempt, ..self }
    }
}
