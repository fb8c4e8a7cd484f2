//! What a configuration makes of a model: the plans of a run, and the first values of its parameters.

use enmasse_device::{DeviceError, Program};
use enmasse_graph::{
    AVERAGE_PREFIX, Arena, CompileOptions, Freeze, Measured, Metric, Optimizer, ParameterGroups, Plans, StateTensor,
    Target,
};

use crate::{ModelFn, OptimizerKind, Preparation, TrainConfig, TrainError, UnusedParameters};

/// The plans of a configuration for so many shards and a device's target, whose pictures are prepared in this way.
pub fn compile_plans(
    config: &TrainConfig,
    preparation: &Preparation,
    model: &ModelFn,
    classes: usize,
    shards: usize,
    target: &Target,
) -> Result<Plans, TrainError> {
    let optimizer = match config.optimizer {
        OptimizerKind::Sgd => Optimizer::Sgd { momentum: config.momentum as f32, nesterov: config.nesterov },
        // The paper's coefficient.
        OptimizerKind::Lars => {
            Optimizer::Lars { momentum: config.momentum as f32, trust_coefficient: 0.001, epsilon: 1e-8 }
        }
        // PyTorch's defaults.
        OptimizerKind::AdamW => Optimizer::AdamW { betas: [0.9, 0.999], epsilon: 1e-8 },
    };
    let options = CompileOptions {
        shards,
        sync_batch_norm: config.sync_bn,
        freeze: match config.freeze_layers {
            true => Freeze::AllButClassifier(config.freeze.clone()),
            false => Freeze::Patterns(config.freeze.clone()),
        },
        label_smoothing: config.label_smoothing as f32,
        optimizer,
        clip_norm: config.clip_norm.map(|norm| norm as f32),
        average: config.ema.map(|decay| decay as f32),
        groups: ParameterGroups {
            no_decay_norm_bias: config.no_decay_norm_bias,
            ..ParameterGroups::one(config.weight_decay as f32)
        },
        metrics: config.metrics.iter().copied().map(Metric::from).collect(),
        seed: config.seed,
        precision: config.precision,
        mean: preparation.normalization.mean.clone(),
        deviation: preparation.normalization.deviation.clone(),
        allow_unused: config.unused_parameters == UnusedParameters::Zero,
        ..CompileOptions::new(config.model.clone(), config.batch_per_shard(shards), preparation.train.size(), classes)
    };
    Ok(target.compile(&|x| model(x, classes), &options)?)
}

/// Sets every parameter of a new program to its first value, a function of (seed, name, element), and every average to that
/// of what it is the average of.
pub fn initialize(program: &mut dyn Program, seed: u64) -> Result<(), DeviceError> {
    let starts = |tensor: &StateTensor| matches!(tensor.slot.arena, Arena::Parameters | Arena::Average);
    program.fill_state(&starts, &|tensor, first, values| {
        let name = tensor.name.strip_prefix(AVERAGE_PREFIX).filter(|_| tensor.slot.arena == Arena::Average);
        tensor.init.fill(seed, name.unwrap_or(&tensor.name), tensor.layout, &tensor.shape, first, values);
    })
}

/// What a training step measures beside loss and hits.
pub(crate) fn training_metrics(plans: &Plans) -> &[Measured] {
    plans.train.as_ref().map_or(&[], |plan| &plan.measured)
}
