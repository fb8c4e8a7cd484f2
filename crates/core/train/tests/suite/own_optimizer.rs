//! A trainer with its own optimiser and groups of parameters: with clipping and averages, on any number of ranks, resumed with
//! the same bits.

use std::path::Path;
use std::sync::Arc;

use crate::common::Colours;
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_graph::optimizers::{CustomOptimizer, UpdateStep};
use enmasse_graph::{Conv, GroupRule, Tensor};
use enmasse_train::{Checkpoint, OptimizerKind, RunPaths, TrainConfig, Trainer, TrainingData};

/// Lion (X. Chen et al., 2023).
#[derive(Clone, Debug)]
struct Lion {
    betas: [f64; 2],
    /// The name of its state.
    state: &'static [&'static str],
}

const LION: Lion = Lion { betas: [0.9, 0.99], state: &["exp_avg"] };

impl CustomOptimizer for Lion {
    fn name(&self) -> &'static str {
        "lion"
    }

    fn hyperparameters(&self) -> String {
        format!("betas {:?}", self.betas)
    }

    fn state_names(&self) -> &'static [&'static str] {
        self.state
    }

    fn update(&self, step: &UpdateStep, weights: &mut [f64], gradients: &[f64], state: &mut [&mut [f64]]) {
        let [beta1, beta2] = self.betas;
        for ((w, g), m) in weights.iter_mut().zip(gradients).zip(state[0].iter_mut()) {
            let update = beta1 * *m + (1.0 - beta1) * g;
            let sign = if update == 0.0 { 0.0 } else { update.signum() };
            *w -= step.learning_rate * (sign + step.weight_decay * *w);
            *m = beta2 * *m + (1.0 - beta2) * g;
        }
    }
}

fn net(x: Tensor, classes: usize) -> Tensor {
    let x = x.conv2d("conv", Conv::new(4, 3).no_bias()).batch_norm("bn").relu();
    x.adaptive_avg_pool([2, 2]).flatten().linear("fc", classes)
}

fn config(out: &Path) -> TrainConfig {
    TrainConfig {
        epochs: 4,
        batch: Some(3),
        shards: Some(3),
        size: Some(8),
        lr: 0.02,
        weight_decay: 0.01,
        clip_norm: Some(0.5),
        ema: Some(0.5),
        check_ranks: true,
        out: Some(out.to_owned()),
        ..TrainConfig::default()
    }
}

/// Trains on ranks that each have an optimiser and rules of groups: the best accuracy, and the checkpoint.
fn fit(config: &TrainConfig, ranks: &[(Lion, Vec<GroupRule>)]) -> Result<(f64, Checkpoint), String> {
    let data = TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)));
    let done = enmasse_launch::spawn(ranks.len(), |group| {
        let cpu = Arc::new(Cpu::new(CpuOptions { threads: 2, ..CpuOptions::default() }).unwrap());
        let (lion, rules) = ranks[group.rank()].clone();
        Trainer::new(config.clone(), cpu).group(group).optimizer(lion).groups(rules).fit("net", &net, &data)
    });
    let done = done.map_err(|error| error.to_string())?.remove(0);
    let last = RunPaths::new(config.out.as_ref().unwrap()).last_checkpoint();
    Ok((done.best.value.unwrap_or(f64::NAN), Checkpoint::load(&last).unwrap()))
}

fn rules() -> Vec<GroupRule> {
    vec![GroupRule::new("bn").weight_decay(0.0), GroupRule::new("conv").learning_rate_scale(0.5)]
}

#[test]
fn it_learns_with_the_same_bits_on_any_number_of_ranks_and_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let out = |name: &str| folder.path().join(name);
    let alone = [(LION, rules())];
    let (accuracy, whole) = fit(&config(&out("whole")), &alone).unwrap();
    assert!(accuracy > 0.9, "{accuracy}");
    let state = whole.tensors.iter().filter_map(|tensor| tensor.name.strip_prefix("optimizer.exp_avg."));
    assert_eq!(state.collect::<Vec<_>>(), ["conv.weight", "bn.weight", "bn.bias", "fc.weight", "fc.bias"]);
    for ranks in [2, 3] {
        let (_, other) = fit(&config(&out(&ranks.to_string())), &vec![alone[0].clone(); ranks]).unwrap();
        assert_eq!(other.tensors, whole.tensors, "{ranks} ranks");
    }
    // An epoch has six steps: the run stops two steps into the second one.
    fit(&TrainConfig { max_steps: Some(8), ..config(&out("cut")) }, &alone).unwrap();
    let (_, resumed) = fit(&TrainConfig { resume: true.into(), ..config(&out("cut")) }, &alone).unwrap();
    assert_eq!(resumed.tensors, whole.tensors);
    let (_, without) = fit(&config(&out("without rules")), &[(LION, Vec::new())]).unwrap();
    assert_ne!(without.tensors, whole.tensors);
}

#[test]
fn what_does_not_fit_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder.path().join("run"));
    let check = |config: &TrainConfig, ranks: &[(Lion, Vec<GroupRule>)], expected: &str| {
        let error = fit(config, ranks).unwrap_err();
        assert!(error.contains(expected), "{error}");
    };
    let alone = [(LION, Vec::new())];
    let slow = Lion { betas: [0.9, 0.999], ..LION };
    check(&config, &[alone[0].clone(), (slow, Vec::new())], "lion betas [0.9, 0.999]");
    check(&config, &[alone[0].clone(), (LION, rules())], "64..68 weight_decay 0;");
    let pattern = "the pattern \"layer1\" of a parameter group matches no trained parameter";
    check(&config, &[(LION, vec![GroupRule::new("layer1").weight_decay(0.0)])], pattern);
    let own = "has no effect on this program's own optimiser: leave it out";
    let adamw = TrainConfig { optimizer: OptimizerKind::AdamW, ..config.clone() };
    check(&adamw, &alone, "optimizer adamw: has no effect on this program's own optimizer: leave it out");
    check(&TrainConfig { momentum: 0.5, ..config.clone() }, &alone, &format!("`momentum = 0.5` {own}"));
    check(&TrainConfig { nesterov: true, ..config.clone() }, &alone, &format!("`nesterov = true` {own}"));
    // A run that began with other state.
    fit(&TrainConfig { max_steps: Some(2), ..config.clone() }, &alone).unwrap();
    let other = Lion { state: &["momentum"], ..LION };
    let resumed = TrainConfig { resume: true.into(), ..config.clone() };
    check(&resumed, &[(other, Vec::new())], "has no optimiser state for conv.weight");
}

/// Regression test: `config.toml` said that sgd had trained.
#[test]
fn the_record_names_an_optimizer_of_ones_own() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let cut = TrainConfig { max_steps: Some(2), ..config(&out) };
    fit(&cut, &[(LION, Vec::new())]).unwrap();
    let recorded = std::fs::read_to_string(out.join("config.toml")).unwrap();
    assert!(recorded.contains("optimizer = \"own\"\n"), "{recorded}");
    // Without it the run cannot go on under its name.
    let data = TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)));
    let check = |optimizer: OptimizerKind, expected: &str| {
        let config = TrainConfig { optimizer, resume: true.into(), ..config(&out) };
        let error = Trainer::new(config, crate::fit::cpu(1)).fit("net", &net, &data).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(
        OptimizerKind::Own,
        "optimizer own: is that of the program which began the run: give it by Trainer::optimizer",
    );
    check(OptimizerKind::AdamW, "has no optimiser state for conv.weight, because `optimizer`");
}
