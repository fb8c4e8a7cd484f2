//! Programs of any device: parameters, batches, and comparisons of tensors by name.
#![allow(dead_code, reason = "each test file compiles this module for itself and uses a part of it")]

use std::ops::{Range, RangeInclusive};

use enmasse_device::{HostBatch, Program, StepInputs};
use enmasse_graph::{Arena, Mode, Phase, Plans};
use enmasse_tensor::RandomStream;

/// Gives parameters random values, which f32 holds exactly.
pub fn fill(program: &mut dyn Program) {
    for tensor in program.plans().state.clone() {
        let mut stream = RandomStream::new(1, &tensor.name, 0, 0);
        let elements = tensor.shape.elements();
        let fan_in = (elements / tensor.shape.last()) as f64;
        let mut draw = |low: f64, high: f64| -> Vec<f64> {
            (0..elements).map(|_| f64::from(stream.uniform(low, high) as f32)).collect()
        };
        let values = match tensor.slot.arena {
            Arena::Parameters | Arena::Teacher if tensor.shape.len() > 1 => {
                draw(-1.7 / fan_in.sqrt(), 1.7 / fan_in.sqrt())
            }
            Arena::Parameters if tensor.name.ends_with("weight") => draw(0.5, 1.5),
            Arena::Teacher if tensor.name.ends_with("weight") || tensor.name.ends_with("var") => draw(0.5, 1.5),
            Arena::Parameters | Arena::Teacher => draw(-0.5, 0.5),
            _ => continue,
        };
        program.load(&tensor.name, &values).unwrap();
    }
}

/// A batch of random images, with labels and sample indices; of mixtures if the training plan takes them, and with values to
/// predict if it has them as targets. If it takes a weight of the loss, the last two places have no sample.
#[derive(Clone)]
pub struct Batch {
    pub images: Vec<u8>,
    pub labels: Vec<i32>,
    pub sample_indices: Vec<u64>,
    pub other_labels: Vec<i32>,
    pub lambdas: Vec<f32>,
    pub targets: Vec<f32>,
    pub loss_weight: Option<f32>,
}

impl Batch {
    /// Batch `number` for all shards.
    pub fn random(plans: &Plans, number: u64) -> Batch {
        let plan = &plans.evaluate;
        let shards = plans.train.as_ref().map_or(1, |plan| plan.shards);
        let mut stream = RandomStream::new(2, "test batch", 0, number);
        let pixels = plan.shape(plan.images).elements() * shards;
        let samples = plan.batch * shards;
        let mixed = if plans.train.as_ref().is_some_and(|plan| plan.mixture.is_some()) { samples } else { 0 };
        let weighted = plans.train.as_ref().is_some_and(|plan| plan.loss_weight.is_some());
        let counted = if weighted { samples - 2 } else { samples };
        let values = plan.targets.map_or(0, |targets| plan.shape(targets).last());
        let mut batch = Batch {
            images: (0..pixels).map(|_| stream.next_u32() as u8).collect(),
            labels: (0..samples).map(|_| stream.below(plan.classes as u64) as i32).collect(),
            sample_indices: (0..samples as u64).map(|i| number * 1000 + i).collect(),
            other_labels: (0..mixed).map(|_| stream.below(plan.classes as u64) as i32).collect(),
            lambdas: (0..mixed).map(|_| stream.unit() as f32).collect(),
            targets: (0..samples * values).map(|_| stream.uniform(-1.0, 1.0) as f32).collect(),
            loss_weight: weighted.then_some(samples as f32 / counted as f32),
        };
        batch.labels[counted..].fill(-1);
        batch
    }

    /// Leaves out what only training takes: the other samples of mixtures, and the weight of the loss.
    pub fn for_evaluation(&mut self) {
        self.loss_weight = None;
        self.other_labels.clear();
        self.lambdas.clear();
    }

    pub fn inputs(&self, step: u64) -> StepInputs {
        let Batch { images, labels, sample_indices, other_labels, lambdas, targets, loss_weight } = self.clone();
        let batch = HostBatch { images, labels, sample_indices, other_labels, lambdas, targets, loss_weight };
        StepInputs { epoch: 3, learning_rate: 0.002, optimizer_step: step, ..StepInputs::evaluation(batch.into()) }
    }

    /// The samples of one shard.
    pub fn shard(&self, shard: usize, shards: usize) -> Batch {
        self.local(shard..shard + 1, shards)
    }

    /// The samples of some shards.
    pub fn local(&self, local: Range<usize>, shards: usize) -> Batch {
        fn piece<T: Clone>(all: &[T], local: &Range<usize>, shards: usize) -> Vec<T> {
            let len = all.len() / shards;
            all[local.start * len..local.end * len].to_vec()
        }
        Batch {
            images: piece(&self.images, &local, shards),
            labels: piece(&self.labels, &local, shards),
            sample_indices: piece(&self.sample_indices, &local, shards),
            other_labels: piece(&self.other_labels, &local, shards),
            lambdas: piece(&self.lambdas, &local, shards),
            targets: piece(&self.targets, &local, shards),
            loss_weight: self.loss_weight,
        }
    }
}

/// The samples of some shards in a step, `batch` a shard: random images of `size` by `size` pixels, and labels in turn.
pub fn samples_of(step: u64, shards: Range<usize>, [batch, size, classes]: [usize; 3]) -> HostBatch {
    let of_shard = |shard: usize| {
        let mut noise = RandomStream::new(1, "images", step, shard as u64);
        (0..batch * size * size * 3).map(move |_| noise.next_u32() as u8)
    };
    let samples = shards.start * batch..shards.end * batch;
    HostBatch {
        images: shards.flat_map(of_shard).collect(),
        labels: samples.clone().map(|sample| (sample % classes) as i32).collect(),
        sample_indices: samples.map(|sample| sample as u64).collect(),
        ..HostBatch::default()
    }
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|v| v * v).sum::<f64>().sqrt()
}

/// Asserts that named tensors agree: the norm of each difference is at most `tolerance` times the tensor's norm, or
/// times a thousandth of the median of the norms above 0 if that is larger.
#[track_caller]
pub fn assert_agree(what: &str, names: &[String], a: &mut dyn Program, b: &mut dyn Program, tolerance: f64) {
    let pairs: Vec<_> = names.iter().map(|name| (name, a.store(name).unwrap(), b.store(name).unwrap())).collect();
    let mut norms: Vec<f64> =
        pairs.iter().map(|(_, _, b)| norm(b.iter().copied())).filter(|norm| *norm > 0.0).collect();
    norms.sort_by(f64::total_cmp);
    let median = norms.get(norms.len() / 2).copied().unwrap_or(0.0);
    for (name, a, b) in &pairs {
        let error = norm(a.iter().zip(b).map(|(a, b)| a - b)) / norm(b.iter().copied()).max(1e-3 * median).max(1e-30);
        assert!(error <= tolerance, "{what}: {name} is off by {error:.2e}");
    }
}

/// Names of all gradients.
pub fn gradients(plans: &Plans) -> Vec<String> {
    let plan = plans.train.as_ref().unwrap();
    plan.values.iter().map(|v| v.name.clone()).filter(|name| name.starts_with("gradient.")).collect()
}

/// Names of all state.
pub fn state(plans: &Plans) -> Vec<String> {
    plans.state.iter().map(|tensor| tensor.name.clone()).collect()
}

/// Bits of all state after each of some steps of a program that hosts its part of all batches.
pub fn history(program: &mut dyn Program, local: Range<usize>, steps: RangeInclusive<u64>) -> Vec<Vec<u64>> {
    let plans = program.plans().clone();
    let shards = program.plans().evaluate.shards;
    let mut losses = Vec::new();
    for step in steps {
        let batch = Batch::random(&plans, step).local(local.clone(), shards);
        let ticket = program.submit(Mode::Train, &Phase::ALL, &batch.inputs(step)).unwrap();
        losses.push(program.metrics(ticket).unwrap().loss.to_bits());
    }
    let bits = |name: &String| program.store(name).unwrap().iter().map(|v| v.to_bits()).collect();
    [vec![losses], state(&plans).iter().map(bits).collect()].concat()
}
