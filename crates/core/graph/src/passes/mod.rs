//! Passes: small functions from graph to graph, each with its own tests.

mod average;
mod chain;
mod data_parallel;
mod freeze;
mod fuse;
mod gates;
mod images;
mod loss_scale;
mod loss_weight;
pub(crate) mod memory;
mod optimize;
mod precision;
mod recompute;
mod replicate;
mod stages;
mod sync_batch_norm;

pub use average::{AVERAGE_PREFIX, Averaging};
pub(crate) use average::{add_averages, read_averages};
pub use chain::chain;
pub use data_parallel::{BucketSizes, data_parallel};
pub(crate) use freeze::freeze_statistics;
pub use freeze::{Freeze, classifier_of, freeze};
pub use fuse::{fuse, fuse_activations, fuse_convolutions, fuse_loads, fuse_statistics};
pub(crate) use gates::store_gates;
pub(crate) use images::pad_images;
pub use loss_scale::LOSS_SCALE_PREFIX;
pub(crate) use loss_scale::LossScale;
pub(crate) use loss_weight::WeightedLoss;
pub(crate) use optimize::{OfGradients, optimize};
pub(crate) use precision::narrow_features;
pub use precision::{Precision, precision};
pub(crate) use recompute::{Blocks, mark_boundaries, nodes_again, recompute};
pub use replicate::Strategy;
pub(crate) use replicate::{collect, replicate};
pub(crate) use stages::{Kept, LayerStages, cut};
pub use sync_batch_norm::sync_batch_norm;
