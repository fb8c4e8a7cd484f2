//! Loss scaling: it changes nothing but what rounding does to gradients, and one shard's overflow is that of all.

use enmasse_device::{LossScale, Program};
use enmasse_graph::optimizers::{AdamW, Custom, CustomOptimizer, Lars, Sgd, UpdateStep};
use enmasse_graph::{
    Averaging, CompileOptions, Conv, LOSS_SCALE_PREFIX, Metric, Optimizer, ParameterGroups, Precision, Target, Tensor,
};
use enmasse_reference::ReferenceProgram;

use crate::common::{Batch, program, relative_error, state, train};

fn net(x: Tensor) -> Tensor {
    let x = x.conv2d("conv", Conv::new(6, 3).padding(1).no_bias()).batch_norm("bn").relu();
    x.conv2d("conv2", Conv::new(6, 3)).relu().flatten().linear("fc", 5)
}

/// An optimiser of a program's own: momentum whose factor is 1 / the number of the update.
#[derive(Debug)]
struct Fading;

impl CustomOptimizer for Fading {
    fn name(&self) -> &'static str {
        "fading"
    }

    fn state_names(&self) -> &'static [&'static str] {
        &["sum"]
    }

    fn update(&self, step: &UpdateStep, weights: &mut [f64], gradients: &[f64], state: &mut [&mut [f64]]) {
        for (i, w) in weights.iter_mut().enumerate() {
            state[0][i] = state[0][i] / step.number as f64 + gradients[i];
            *w -= step.learning_rate * (state[0][i] + step.weight_decay * *w);
        }
    }
}

fn options(precision: Precision, shards: usize) -> CompileOptions {
    CompileOptions { precision, shards, sync_batch_norm: true, ..CompileOptions::new("net", 2, 6, 5) }
}

#[test]
fn updates_are_those_of_a_loss_that_is_not_scaled() {
    let sgd = Optimizer::Sgd(Sgd { momentum: 0.9, nesterov: true });
    let lars = Optimizer::Lars(Lars { momentum: 0.9, trust_coefficient: 0.01, epsilon: 1e-8 });
    let adamw = Optimizer::AdamW(AdamW { betas: [0.9, 0.99], epsilon: 1e-6 });
    let own = Custom::new(Fading).into();
    let cases =
        [(&own, Some(0.1)), (&sgd, None), (&sgd, Some(0.1)), (&lars, Some(0.1)), (&adamw, None), (&adamw, Some(0.1))];
    for (optimizer, clip_norm) in cases {
        let [mut plain, mut scaled] = [Precision::F32, Precision::F16].map(|precision| {
            let options = CompileOptions {
                optimizer: optimizer.clone(),
                clip_norm,
                groups: ParameterGroups::one(0.01),
                metrics: vec![Metric::GradientNorm],
                average: Some(Averaging::Ema(0.5)),
                ..options(precision, 2)
            };
            program(&net, &options)
        });
        for step in 1..=4 {
            let batch = Batch::random(&plain, step);
            let [plain, scaled] = [&mut plain, &mut scaled].map(|program| train(program, &batch, step, 0.05));
            assert!((plain.measured[0] / scaled.measured[0] - 1.0).abs() < 1e-9, "{plain:?} {scaled:?}");
            assert_eq!(
                (plain.loss_scale, scaled.loss_scale),
                (None, Some(LossScale { scale: 65536.0, skipped: false }))
            );
        }
        for (name, values) in state(&mut plain) {
            let error = relative_error(&scaled.store(&name).unwrap(), &values);
            assert!(error < 1e-9, "{optimizer} {clip_norm:?}: {name}: {error:e}");
        }
    }
}

#[test]
fn an_overflow_in_one_shard_skips_the_step_of_all() {
    let options = CompileOptions { sync_batch_norm: false, ..options(Precision::F16, 3) };
    let plans = Target::default().compile(&net, &options).unwrap();
    let mut source = program(&net, &options);
    let mut program = ReferenceProgram::rounding(plans, None).unwrap();
    for (name, values) in state(&mut source) {
        program.load(&name, &values).unwrap();
    }
    program.load(&format!("{LOSS_SCALE_PREFIX}scale"), &[2f64.powi(30)]).unwrap();
    let mut batch = Batch::random(&source, 1);
    // Only the last shard has samples, and so gradients.
    batch.labels[..4].fill(-1);
    let before = state(&mut program);
    assert_eq!(
        train(&mut program, &batch, 1, 0.05).loss_scale,
        Some(LossScale { scale: 2f64.powi(30), skipped: true })
    );
    assert_eq!(program.first_difference(), None);
    for ((name, before), (_, after)) in before.into_iter().zip(state(&mut program)) {
        let changes = name.starts_with(LOSS_SCALE_PREFIX) && !name.ends_with("good_steps") || name.contains("running_");
        assert_eq!(before != after, changes, "{name}");
    }
}
