//! Programs, batches and comparisons that the tests share.

use enmasse_device::{HostBatch, Program, StepInputs, StepMetrics, Ticket};
use enmasse_graph::{Arena, CompileOptions, Mode, Phase, Target, Tensor};
use enmasse_reference::{ReferenceProgram, aliasing_is_safe};
use enmasse_tensor::RandomStream;

/// A model as [`Target::compile`] takes it.
pub type Model<'a> = &'a dyn Fn(Tensor) -> Tensor;

/// Phases up to the loss.
pub const TO_LOSS: [Phase; 2] = [Phase::Forward, Phase::Loss];

/// Phases up to the sums of the gradients over shards.
pub const TO_GRADIENTS: [Phase; 4] = [Phase::Forward, Phase::Loss, Phase::Backward, Phase::Reduce];

/// Compiles a model, checks the places of all values in its plans, and fills its parameters and buffers with random numbers
/// that are functions of their names.
pub fn program(model: Model, options: &CompileOptions) -> ReferenceProgram {
    program_for(&Target::default(), model, options)
}

/// The same for a given target. The numbers in PyTorch's order do not depend on the target.
pub fn program_for(target: &Target, model: Model, options: &CompileOptions) -> ReferenceProgram {
    let plans = target.compile(model, options).unwrap();
    for mode in [Mode::Train, Mode::Evaluate] {
        let plan = plans.plan(mode).unwrap();
        if let Err(error) = aliasing_is_safe(plan) {
            panic!("{error}\n{plan}");
        }
    }
    let mut program = ReferenceProgram::new(plans, None).unwrap();
    for tensor in program.plans().state.clone() {
        let mut stream = RandomStream::new(1, &tensor.name, 0, 0);
        let elements = tensor.shape.elements();
        let fan_in = (elements / tensor.layout.torch_shape(&tensor.shape)[0]) as f64;
        let mut draw = |low: f64, high: f64| (0..elements).map(|_| stream.uniform(low, high)).collect::<Vec<_>>();
        let values = match tensor.slot.arena {
            Arena::Parameters if tensor.shape.len() > 1 => draw(-1.7 / fan_in.sqrt(), 1.7 / fan_in.sqrt()),
            // Batch norm's weights must not be small, because they are factors.
            Arena::Parameters if tensor.name.ends_with("weight") => draw(0.5, 1.5),
            Arena::Parameters => draw(-0.5, 0.5),
            Arena::Buffers if tensor.name.ends_with("running_var") => draw(0.5, 1.5),
            Arena::Buffers => draw(-0.5, 0.5),
            _ => continue,
        };
        program.load(&tensor.name, &values).unwrap();
    }
    program
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
    /// Batch `number` for all shards of a program's plans.
    pub fn random(program: &ReferenceProgram, number: u64) -> Batch {
        let plan = &program.plans().evaluate;
        let samples = plan.batch * plan.shards;
        let mut stream = RandomStream::new(2, "test batch", 0, number);
        let pixels = plan.shape(plan.images).elements() * plan.shards;
        let mixed = if program.plans().train.as_ref().is_some_and(|plan| plan.mixture.is_some()) { samples } else { 0 };
        let weighted = program.plans().train.as_ref().is_some_and(|plan| plan.loss_weight.is_some());
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

    pub fn inputs(&self, optimizer_step: u64, learning_rate: f32) -> StepInputs {
        let Batch { images, labels, sample_indices, other_labels, lambdas, targets, loss_weight } = self.clone();
        let batch = HostBatch { images, labels, sample_indices, other_labels, lambdas, targets, loss_weight };
        StepInputs { epoch: 3, learning_rate, optimizer_step, ..StepInputs::evaluation(batch.into()) }
    }

    /// The samples of one of `shards` shards.
    pub fn shard(&self, shard: usize, shards: usize) -> Batch {
        fn piece<T: Clone>(all: &[T], shard: usize, shards: usize) -> Vec<T> {
            let len = all.len() / shards;
            all[shard * len..(shard + 1) * len].to_vec()
        }
        Batch {
            images: piece(&self.images, shard, shards),
            labels: piece(&self.labels, shard, shards),
            sample_indices: piece(&self.sample_indices, shard, shards),
            other_labels: piece(&self.other_labels, shard, shards),
            lambdas: piece(&self.lambdas, shard, shards),
            targets: piece(&self.targets, shard, shards),
            loss_weight: self.loss_weight,
        }
    }
}

/// Runs all phases of training step `step`, from 1.
pub fn train(program: &mut ReferenceProgram, batch: &Batch, step: u64, learning_rate: f32) -> StepMetrics {
    let ticket = submit(program, Mode::Train, &Phase::ALL, batch, step, learning_rate);
    program.metrics(ticket).unwrap()
}

pub fn submit(
    program: &mut ReferenceProgram,
    mode: Mode,
    phases: &[Phase],
    batch: &Batch,
    step: u64,
    learning_rate: f32,
) -> Ticket {
    program.submit(mode, phases, &batch.inputs(step, learning_rate)).unwrap()
}

/// All state tensors of shard 0, by name.
pub fn state(program: &mut ReferenceProgram) -> Vec<(String, Vec<f64>)> {
    let names: Vec<String> = program.plans().state.iter().map(|tensor| tensor.name.clone()).collect();
    names.into_iter().map(|name| (name.clone(), program.store(&name).unwrap())).collect()
}

/// The norm of the difference divided by the norm of `b`.
pub fn relative_error(a: &[f64], b: &[f64]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let difference = norm(&mut a.iter().zip(b).map(|(a, b)| a - b));
    if difference == 0.0 { 0.0 } else { difference / norm(&mut b.iter().copied()) }
}
