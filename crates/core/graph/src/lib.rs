//! The training step as a plan: the user describes a model once, and every rank runs the same flat list of instructions.
//!
//! [`compile()`] turns a model into its plans. [`Builder`] records the forward graph and checks shapes. Passes freeze and
//! fuse. Autodiff adds the backward nodes. Further passes add the collectives, the check and the update. The memory pass
//! gives every value a place in an arena sized before the first step. Nothing here performs arithmetic on tensors or
//! knows a device: devices run [`Plan`]s.
//!
//! Use it to see what a training step does before anything runs: its instructions, its memory, its collectives.
//!
//! ```
//! use enmasse_graph::{CompileOptions, Tensor, compile};
//! let model = |x: Tensor| x.flatten().linear("hidden", 32).relu().linear("out", 10);
//! let plans = compile(&model, &CompileOptions::new("mlp", 16, 28, 10))?;
//! let step = plans.train.as_ref().expect("the model has parameters").to_string();
//! assert!(step.contains("linear_backward_weights"));
//! assert!(plans.find("hidden.weight").is_some());
//! # Ok::<(), enmasse_graph::GraphError>(())
//! ```

mod arena;
mod autodiff;
mod builder;
mod choices;
mod compile;
mod cost;
mod error;
mod expression;
mod formula;
mod graph;
mod groups;
mod heatmap;
mod init;
mod layers;
mod layout;
mod loss;
pub mod losses;
mod metric;
pub mod ops;
pub mod optimizers;
mod options;
mod passes;
mod placement;
mod plan;
mod quantization;
pub mod range;
mod recomputation;
mod stage;
mod target;
mod teacher;
mod value;
mod window;

pub use arena::{Arena, Bucket, Slot};
pub use autodiff::Backward;
pub use builder::{Builder, Forward, MixtureInputs, Mode, PerSample, Tensor};
pub use choices::{Choices, ChoicesError};
pub use compile::{compile, compile_evaluation};
pub use cost::Cost;
pub use error::{GraphError, OperationLocation, Relation};
pub use expression::{Binary, Expression, Term, Unary};
pub use formula::Formula;
pub use graph::{Graph, Node, Phase};
pub use groups::{GroupRule, ParameterGroup, ParameterGroups, pattern_matches};
pub use heatmap::{HeatmapMethod, HeatmapPlans};
pub use init::Init;
pub use layers::{LayerRates, layers};
pub use layout::{FilterOrder, Layout};
pub use loss::Loss;
pub use metric::{MAX_METRICS, Measured, Metric, Per};
pub use ops::{Activation, BatchNorm, Conv, Linear, Op, Scaling, Update, UpdateOperands, UpdateRange};
pub use optimizers::{Optimizer, OptimizerKind};
pub use options::{CompileOptions, TargetKind};
pub use passes::{
    AVERAGE_PREFIX, Averaging, BucketSizes, Freeze, LOSS_SCALE_PREFIX, LayerCut, ParameterCut, Partition, Precision,
    RESIDUAL_PREFIX, Strategy, TensorParallel, UpdatedPart, chain, classifier_of, fuse, fuse_activations,
    fuse_convolutions, fuse_loads, fuse_statistics,
};
pub use plan::{Plan, Plans, StateTensor};
pub use quantization::quantized_values;
pub use recomputation::{Recompute, Recomputed};
pub use stage::{Stage, StageAction, StageCut, StageSchedule, stages_of};
pub use target::{Fuse, Target};
pub use teacher::{TEACHER_PREFIX, Teacher};
pub use value::{Axes, Parameter, Role, Value, ValueId};
pub use window::{Pool, Window};
