//! Random models: layers in random order, with values used once, many times or never.
//!
//! Their plans must be safe, and their gradients must agree with the loss along a random direction of all parameters.

use crate::common::{Batch, TO_GRADIENTS, TO_LOSS, program, submit};
use enmasse_device::Program;
use enmasse_graph::{BucketSizes, CompileOptions, Conv, Freeze, Mode, Pool, Precision, Role, Tensor};
use enmasse_tensor::RandomStream;

/// Twelve layers, each on one or two of the latest values. All keep the shape, so any two values can be added.
fn model(x: Tensor, seed: u64) -> Tensor {
    let mut stream = RandomStream::new(seed, "model", 0, 0);
    let mut values = vec![x.conv2d("stem", Conv::new(4, 3).padding(1))];
    for index in 0..12 {
        let mut pick = || values[values.len() - 1 - stream.below(values.len().min(4) as u64) as usize].clone();
        let (x, other) = (pick(), pick());
        let name = format!("layer{index}");
        let pool = Pool::new(3).stride(1).padding(1);
        values.push(match stream.below(10) {
            0 => x.conv2d(&name, Conv::new(4, 3).padding(1)),
            1 => x.conv2d(&name, Conv::new(4, 1).groups(2).no_bias()),
            2 | 3 => x.batch_norm(&name),
            4 => x.batch_norm(&name).relu(),
            5 => (x.batch_norm(&name) + other).relu(),
            6 => x + other,
            7 => x.dropout(&name, 0.2),
            8 => x.avg_pool(pool),
            _ => x.relu(),
        });
    }
    // Two branches from the last two values, which may be the same value.
    let mut ends = values.into_iter().rev();
    let (Some(a), Some(b)) = (ends.next(), ends.next()) else { unreachable!("there are thirteen values") };
    a.max_pool(Pool::new(2)).flatten().linear("a", 3) + b.adaptive_avg_pool([2, 2]).flatten().linear("b", 3)
}

#[test]
fn gradients_along_a_random_direction() {
    const STEP: f64 = 1e-6;
    for seed in 0..120 {
        let options = CompileOptions {
            size: [5, 4],
            shards: 1 + seed as usize % 3,
            sync_batch_norm: seed % 2 == 0,
            allow_unused: true,
            buckets: BucketSizes { first: 64, other: 256 },
            // The reference device ignores element types, but values of each type must have a place in the plan.
            precision: if seed % 4 < 2 { Precision::F32 } else { Precision::Bf16 },
            freeze: Freeze::Patterns(if seed % 5 == 0 { vec!["stem".into()] } else { Vec::new() }),
            ..CompileOptions::new("random", 3, 5, 3)
        };
        let mut program = program(&|x: Tensor| model(x, seed), &options);
        let batch = Batch::random(&program, seed);
        submit(&mut program, Mode::Train, &TO_GRADIENTS, &batch, 1, 0.0);
        let plan = program.plans().train.clone().unwrap();
        let mut stream = RandomStream::new(seed, "direction", 0, 0);
        let mut slope = 0.0;
        let mut lines = Vec::new();
        for value in &plan.values {
            let Role::Gradient { parameter } = value.role else { continue };
            let name = plan.value(parameter).name.clone();
            let start = program.store(&name).unwrap();
            let direction: Vec<f64> = start.iter().map(|_| stream.uniform(-1.0, 1.0)).collect();
            let gradient = program.store(&value.name).unwrap();
            slope += gradient.iter().zip(&direction).map(|(g, d)| g * d).sum::<f64>();
            lines.push((name, start, direction));
        }
        let mut loss_at = |offset: f64| {
            for (name, start, direction) in &lines {
                let moved: Vec<f64> = start.iter().zip(direction).map(|(start, d)| start + offset * d).collect();
                program.load(name, &moved).unwrap();
            }
            submit(&mut program, Mode::Train, &TO_LOSS, &batch, 1, 0.0);
            program.store("loss").unwrap()[0]
        };
        let difference = (loss_at(STEP) - loss_at(-STEP)) / (2.0 * STEP);
        let error = (slope - difference).abs() / slope.abs().max(1e-2);
        assert!(error <= 1e-6, "seed {seed}: {slope} against {difference}: {error:e}\n{plan}");
    }
}
