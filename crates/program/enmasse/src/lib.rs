//! Data-parallel training of image classifiers.
//!
//! A model is a function from a [`Tensor`](prelude::Tensor) to a tensor. The whole training step is compiled from it
//! into a plan, which every rank runs. The underlying crates can be used alone, and are named here: [`comm`] and
//! [`launch`] know no model, [`graph`] knows no device, [`train`] holds the loop. The program `enmasse` uses the same
//! crates.
//!
//! Use the program for folders of images, and the library for what is your own.
//!
//! ```no_run
//! use enmasse::prelude::*;
//!
//! fn softmax(x: Tensor, classes: usize) -> Tensor {
//!     x.flatten().linear("fc", classes)
//! }
//!
//! let config = TrainConfig { epochs: 3, size: Some(32), ..TrainConfig::default() };
//! let data = TrainingData::open("flower_photos".as_ref(), &config.open_options())?;
//! let device = device("cpu", 2)?;
//! let done = Trainer::new(config, device).fit("softmax", &softmax, &data)?;
//! println!("best {}", done.best);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The repository's `examples` have a custom model, data set, transform, logger, schedule, sampler and loop, and the step taken apart.

pub mod devices;

/// Data sets, images, transforms and loaders.
pub mod data {
    pub use enmasse_data::*;
    pub use enmasse_datasets::*;
    pub use enmasse_image::*;
}

pub use enmasse_comm as comm;
pub use enmasse_device as device;
pub use enmasse_graph as graph;
pub use enmasse_launch as launch;
pub use enmasse_models as models;
pub use enmasse_tensor as tensor;
pub use enmasse_train as train;

mod trained_model;

/// The programs in the README, which compile as they stand.
#[cfg(doctest)]
#[doc = include_str!("../../../../README.md")]
struct Readme;

/// Those in the guide to loops.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/own-loop.md")]
struct OwnLoop;

pub use trained_model::TrainedModel;

/// The items that a training program usually needs.
pub mod prelude {
    pub use enmasse_comm::{Group, Reduce, Rendezvous};
    pub use enmasse_data::{DataError, Dataset};
    pub use enmasse_datasets::shapes;
    pub use enmasse_device::{Device, Program};
    pub use enmasse_graph::{Conv, Expression, GroupRule, Loss, PerSample, Pool, TargetKind, Tensor};
    pub use enmasse_image::Image;
    pub use enmasse_launch::{spawn, spawn_processes};
    pub use enmasse_train::{
        Artifact, Callback, CallbackResult, Control, Direction, DoneRecord, EarlyStopping, Engine, EpochRecord,
        LogPoint, Logger, LrMonitor, ModelCheckpoint, Monitor, OptimizerKind, Printer, RankKind, RunConfig, Started,
        Task, TaskMetric, TrainConfig, TrainError, Trainer, TrainingData,
    };

    pub use crate::TrainedModel;
    pub use crate::devices::{of_rank as device_of_rank, with_threads as device};
}
