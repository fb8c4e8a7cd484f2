//! The trainer: configuration, schedules, the loop, metrics, loggers and checkpoints.
//!
//! A [`Trainer`] trains a model on a device, alone or as one rank of a group. [`Engine`] is the same step by step. [`Classifier`] is what
//! a run leaves. [`RunConfig`] has every setting, from one table.
//!
//! Use it by `enmasse::prelude` for a model, data set, loss or callback of your own.
//!
//! ```no_run
//! use enmasse_train::{TrainConfig, Trainer, TrainingData};
//! # fn example(device: std::sync::Arc<dyn enmasse_device::Device>) -> Result<(), enmasse_train::TrainError> {
//! let config = TrainConfig { epochs: 3, ..TrainConfig::default() };
//! let data = TrainingData::open("flower_photos".as_ref(), &config.open_options())?;
//! let done = Trainer::new(config, device).fit("linear", &|x, classes| x.flatten().linear("fc", classes), &data)?;
//! println!("best {}", done.best);
//! # Ok(())
//! # }
//! ```

// The table of settings is sorted by a macro, one row a step.
#![recursion_limit = "512"]

mod agreement;
mod all_reduce;
mod attempt;
mod bad_samples;
mod batch_search;
mod callback;
mod charts;
mod checkpoint;
mod classifier;
mod config;
mod confusion;
mod copies;
mod crops;
mod csv_log;
mod engine;
mod error;
mod evaluation;
mod explanation;
mod export;
mod features;
mod figures;
#[cfg(fuzzing)]
pub mod fuzzing;
mod head;
mod image_source;
mod loaded;
mod logger;
mod lookahead;
mod lr_search;
mod media;
mod memory;
pub mod metrics;
mod mlflow;
mod monitor;
mod neighbors;
#[cfg(feature = "onnx")]
mod onnx;
mod pace;
mod parts;
mod per_class;
mod place;
mod plans;
mod position;
mod prediction;
mod preparation;
mod preprocessing;
mod pretrained;
mod printer;
#[cfg(feature = "onnx")]
mod ranges;
mod rank_figures;
mod resumption;
mod run_event;
mod run_folder;
mod run_log;
mod run_writer;
mod schedule;
mod scores;
mod staged;
mod state;
mod stop;
mod survivor;
mod tally;
mod task;
mod teacher;
mod tensor_parallel;
mod tensorboard;
mod trace;
mod trainer;
mod training_data;
mod tuning;
mod weights;
mod whitening;

pub use all_reduce::ChosenAlgorithm;
pub use callback::{
    Callback, CallbackResult, Control, EarlyStopping, LogError, LrMonitor, ModelCheckpoint, Progress, SaveReason,
    Saved, Started, Survival, Timer, Weights,
};
pub use checkpoint::{Checkpoint, CheckpointError, load_weights};
pub use classifier::Classifier;
pub use config::{
    AllReduceAlgorithm, AnnealStrategy, Augmentation, AutoAugmentation, Balance, BatchLimit, ByteCount, ClassWeights,
    ConfigError, Decoding, DeviceSelection, Devices, ErasingColors, FastDevRun, FineTune, Flip, Keep, LossKind,
    LrScaling, MetricName, OnBadSample, OptimizerArgument, OptimizerKind, ParameterFactor, Precision, Pretrained,
    RankKind, Recomputation, ReducePrecision, RequeueSignal, Resume, RunConfig, SamplerKind, ScheduleKind, Shuffling,
    SplitRule, StrategyKind, SumOrder, TimeLimit, TrainConfig, TransportKind, UnusedParameters,
};
pub use confusion::Confusion;
pub use engine::{Engine, EngineBatch};
pub use error::TrainError;
pub use evaluation::{EpochPosition, evaluate, evaluate_keeping};
pub use explanation::Heatmap;
pub use figures::{Bin, Calibration, Probabilities, Ranked, Ranking, accuracy_interval};
pub use logger::{Artifact, LogPoint, Logger};
pub use media::{Histogram, Media};
pub use monitor::{Best, Direction, Monitor};
pub use pace::Straggler;
pub use per_class::{ClassCounts, MacroAverages, PerClass};
pub use place::RankPlace;
pub use plans::{Compilation, ModelFn, Objective, initialize};
pub use position::Position;
pub use prediction::Prediction;
pub use preparation::Preparation;
pub use printer::Printer;
pub use rank_figures::RankFigures;
pub use run_event::{DoneRecord, EpochRecord, Resumed, RunEvent, StepRecord, StoppedRecord, TestRecord};
pub use run_folder::{RunError, RunPaths};
pub use schedule::LrSchedule;
pub use scores::{Scored, Scores};
pub use stop::{Stop, StopRequests};
pub use tally::{Evaluation, Kept, Mistake, softmax};
pub use task::{
    Classification, MultiLabel, MultiLabelLoss, Regression, RegressionLoss, TargetStatistics, Task, TaskFigure,
    TaskMetric, balanced_weights, positive_weights, scaled_weights,
};
pub use tensorboard::TensorBoard;
pub use trainer::{Step, Steps, Trainer};
pub use training_data::{Augment, TrainingData};

#[cfg(feature = "onnx")]
pub use enmasse_export::ImageInput;
pub use enmasse_graph::{HeatmapMethod, TargetKind};
pub use enmasse_weights::{Matching, NamedTensor, Rename};

// What the program is made of, and programs that train need not know: it may change without notice.
#[doc(hidden)]
pub use agreement::{compare_devices, compare_evaluated};
#[doc(hidden)]
pub use attempt::Attempt;
#[doc(hidden)]
pub use batch_search::{BatchBound, BatchPoint, BatchSearch};
#[doc(hidden)]
pub use charts::draw_classes;
#[doc(hidden)]
pub use checkpoint::{CallbackStates, CheckpointMeta, EpochSums, is_checkpoint};
#[doc(hidden)]
pub use config::{
    ALIASES, ANSWERS, DEFAULT_GLOBAL_BATCH, LayeredConfig, ProgramConfig, RECIPES, Range, SETTINGS, Scope, Setting,
    SettingGroup, SettingKind, SettingOrigins, SettingSource, Surroundings, answer, is_near,
};
#[doc(hidden)]
pub use explanation::Explainer;
#[doc(hidden)]
pub use export::WeightsFormat;
#[doc(hidden)]
pub use features::Features;
#[doc(hidden)]
pub use figures::{LabelIssue, label_issues};
#[doc(hidden)]
pub use image_source::ImageSource;
#[doc(hidden)]
pub use lr_search::{LrPoint, LrSearch};
#[doc(hidden)]
pub use memory::{RankMemory, require_memory};
#[doc(hidden)]
pub use neighbors::{Neighbor, Neighborhood};
#[doc(hidden)]
pub use pace::Bottleneck;
#[doc(hidden)]
pub use prediction::{Guess, Images, PredictedValue, PreparationBuffers};
#[doc(hidden)]
pub use preprocessing::Preprocessing;
#[doc(hidden)]
pub use pretrained::load_pretrained;
#[doc(hidden)]
pub use resumption::{Change, short};
#[doc(hidden)]
pub use run_folder::{CalibrationRecord, RUNS, RunFolder, ThresholdsRecord, locate_run, newest_run, remove_unbegun};
#[doc(hidden)]
pub use trace::{Overlap, Traced};
#[doc(hidden)]
pub use training_data::SplitRecord;
#[doc(hidden)]
pub use tuning::{Tuning, tune};
#[doc(hidden)]
pub use weights::{EvaluatedWeights, read_tensors};
