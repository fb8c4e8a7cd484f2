//! The options of a compilation, and which of them no plan can have.

use std::fmt;

use enmasse_tensor::DType;

use crate::metric;
use crate::optimizers::Sgd;
use crate::passes::{Averaging, BucketSizes, Freeze, Precision, Strategy, check_tensor_parallel};
use crate::{GraphError, LayerRates, Loss, Metric, Optimizer, ParameterGroups, Recompute, StageCut, Teacher};

/// The name of the algorithm that adds up gradients in the fixed tree over shards, of which the plan's text says nothing.
pub(crate) const TREE: &str = "tree";

/// What a model is to predict of each sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TargetKind {
    /// Its class, which is its label.
    #[default]
    Class,
    /// This many numbers, which come with each batch: see [`crate::Plan::targets`].
    Values(usize),
}

impl TargetKind {
    /// The numbers of a sample that come with each batch.
    pub fn values(self) -> usize {
        match self {
            TargetKind::Class => 0,
            TargetKind::Values(count) => count,
        }
    }
}

/// `classes`, or the number of values: `2 values`.
impl fmt::Display for TargetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetKind::Class => f.write_str("classes"),
            TargetKind::Values(count) => write!(f, "{count} values"),
        }
    }
}

/// Options of a compilation.
#[derive(Clone, Debug)]
pub struct CompileOptions {
    /// The model's name, for the plan's text.
    pub model: String,
    /// Samples per shard.
    pub batch: usize,
    /// Height and width of the images.
    pub size: [usize; 2],
    /// Number of classes; of values as targets the number of the model's outputs, which may be another one than theirs.
    pub classes: usize,
    /// What the loss and the metrics compare the model's outputs with.
    pub target: TargetKind,
    /// Shards of the global batch.
    pub shards: usize,
    /// Whether batch statistics are computed over all shards.
    pub sync_batch_norm: bool,
    /// The parameters that are not trained.
    pub freeze: Freeze,
    /// Whether batch norms normalise by their running statistics in training too, and keep them.
    pub freeze_statistics: bool,
    /// The loss that training minimises.
    pub loss: Loss,
    /// A trained model whose outputs training imitates beside the loss.
    pub teacher: Option<Teacher>,
    /// Whether training is on mixtures of two samples, so that each place has two labels: see [`crate::Plan::mixture`]. Values as
    /// targets are mixed before the step, and have no further inputs.
    pub mixed: bool,
    /// Whether a global batch of training may have fewer samples than places: see [`crate::Plan::loss_weight`].
    pub weighted_loss: bool,
    /// Metrics besides loss and accuracy, at most [`crate::MAX_METRICS`].
    pub metrics: Vec<Metric>,
    /// The optimiser.
    pub optimizer: Optimizer,
    /// The optimiser's settings for each parameter.
    pub groups: ParameterGroups,
    /// Factors of the learning rate by layer.
    pub layer_rates: LayerRates,
    /// If the norm of all gradients together exceeds this, they are scaled down to it, as by PyTorch's `clip_grad_norm_`.
    pub clip_norm: Option<f32>,
    /// Keeps a second copy of weights and running statistics, and evaluates with it.
    pub average: Option<Averaging>,
    /// The seed of dropout.
    pub seed: u64,
    /// Normalisation of the images: the mean of each channel that the model sees. With one mean instead of three the model
    /// sees one channel.
    pub mean: Vec<f32>,
    /// Normalisation of the images: the std of each channel, one for each mean.
    pub std: Vec<f32>,
    /// The precision in which the activations between layers are stored.
    pub precision: Precision,
    /// How gradients reach the update.
    pub strategy: Strategy,
    /// The algorithm of the gradient sums over ranks, for the plan's text.
    pub all_reduce: &'static str,
    /// The 16-bit type in which gradients cross between nodes, with error feedback, on a device that leaves it to the plan
    /// ([`crate::Target::compresses_sums`]).
    pub compress: Option<DType>,
    /// Compiles one stage of the model, which several ranks compute one after another, instead of all of it.
    pub stage: Option<StageCut>,
    /// Cuts pairs of linear layers, and attention, over this many ranks, and compiles the part that each of them has.
    pub tensor_parallel: Option<usize>,
    /// Bucket sizes of the gradient sums of [`Strategy::Distributed`].
    pub buckets: BucketSizes,
    /// Which blocks of the model backward computes again, so that memory need not keep their activations.
    pub recompute: Recompute,
    /// Probability with which training leaves out the last residual branch, instead of the model's own. It is an error if the model
    /// has none that can be left out ([`crate::Tensor::drop_path_rate`]).
    pub drop_path: Option<f32>,
    /// Whether a device computes several operations as one, where it can. The plan without is the reference of the one with.
    pub fuse: bool,
    /// Whether parameters that do not reach the loss have a zero gradient. Otherwise they are an error.
    pub allow_unused: bool,
}

impl CompileOptions {
    /// Options for one shard with ImageNet's normalisation and SGD (momentum 0.9, no weight decay), without label smoothing,
    /// mixtures, weights of the loss, metrics or frozen parameters, and with everything in f32.
    pub fn new(model: impl Into<String>, batch: usize, size: usize, classes: usize) -> Self {
        CompileOptions {
            model: model.into(),
            batch,
            size: [size; 2],
            classes,
            target: TargetKind::default(),
            shards: 1,
            sync_batch_norm: false,
            freeze: Freeze::default(),
            freeze_statistics: false,
            loss: Loss::default(),
            teacher: None,
            mixed: false,
            weighted_loss: false,
            metrics: Vec::new(),
            optimizer: Sgd::default().into(),
            groups: ParameterGroups::default(),
            layer_rates: LayerRates::default(),
            clip_norm: None,
            average: None,
            seed: 0,
            mean: vec![0.485, 0.456, 0.406],
            std: vec![0.229, 0.224, 0.225],
            precision: Precision::default(),
            strategy: Strategy::default(),
            all_reduce: TREE,
            compress: None,
            stage: None,
            tensor_parallel: None,
            buckets: BucketSizes::default(),
            recompute: Recompute::default(),
            drop_path: None,
            fuse: true,
            allow_unused: false,
        }
    }

    /// Refuses options that no plan can have.
    pub(crate) fn check(&self) -> Result<(), GraphError> {
        let positive = [("batch", self.batch), ("size", self.size[0].min(self.size[1])), ("shards", self.shards)];
        if let Some((name, _)) = positive.into_iter().find(|(_, value)| *value == 0) {
            return Err(GraphError::Option(format!("{name} must be at least 1")));
        }
        // Larger batches would overflow the computation of sizes.
        const MAX_PIXELS: usize = 1 << 40;
        let pixels = [self.batch, self.size[0], self.size[1], self.shards].into_iter().fold(1, usize::saturating_mul);
        if pixels > MAX_PIXELS {
            let reason = format!("a global batch may have {MAX_PIXELS} pixels at most: use a smaller batch or size");
            return Err(GraphError::Option(reason));
        }
        if let Some(cut) = &self.stage {
            cut.check(self)?;
        }
        if let Some(ranks) = self.tensor_parallel {
            check_tensor_parallel(ranks, self)?;
        }
        if self.strategy == Strategy::Replicated && self.sync_batch_norm {
            let reason = "batch norm over all shards needs gradients that all ranks sum: leave out one of them";
            return Err(GraphError::Option(reason.to_owned()));
        }
        if self.compress.is_some() && (self.strategy != Strategy::Distributed || self.stage.is_some()) {
            let reason = "compressed sums need gradients of a whole model whose sums all ranks get";
            return Err(GraphError::Option(reason.to_owned()));
        }
        match (self.target, &self.loss) {
            (TargetKind::Class, _) if self.classes < 2 => {
                let reason = format!("a classifier needs at least 2 classes, got {}", self.classes);
                return Err(GraphError::Option(reason));
            }
            (TargetKind::Values(count), _) if count.min(self.classes) == 0 => {
                let reason = "a sample needs at least one value as its target, and a model one output";
                return Err(GraphError::Option(reason.to_owned()));
            }
            (TargetKind::Values(_), Loss::CrossEntropy { .. }) => {
                let reason = "cross-entropy compares with labels; values as targets need a loss of their own";
                return Err(GraphError::Option(reason.to_owned()));
            }
            (TargetKind::Class, Loss::CrossEntropy { weights, .. }) => check_weights(weights, self.classes)?,
            (_, Loss::Custom(_)) => {}
        }
        metric::check(&self.metrics, self.classes, self.target)
    }
}

/// Refuses weights of classes with which nothing can be learnt.
fn check_weights(weights: &[f32], classes: usize) -> Result<(), GraphError> {
    let wrong = weights.iter().find(|weight| !(weight.is_finite() && **weight >= 0.0));
    let reason = match wrong {
        _ if weights.is_empty() => return Ok(()),
        _ if weights.len() != classes => {
            format!("there must be one for each of {classes} classes, got {}", weights.len())
        }
        Some(weight) => format!("they must be finite and at least 0, got {weight}"),
        None if weights.iter().all(|weight| *weight == 0.0) => "at least one must be above 0".to_owned(),
        None => return Ok(()),
    };
    Err(GraphError::Option(format!("weights of classes: {reason}")))
}
