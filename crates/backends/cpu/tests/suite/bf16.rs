//! Plans that store activations in bf16: layers in any order against the reference that rounds in the same way, and bits with
//! any number of threads. The error of whole models is tested along with PyTorch, in `crates/core/models/tests/torch`.

use crate::common::models::tokens;
use crate::common::{Batch, fill, gradients, levels, program_with, state};
use enmasse_cpu::CpuOptions;
use enmasse_device::Program;
use enmasse_graph::{CompileOptions, Conv, Mode, Phase, Plans, Pool, Precision, Tensor, compile};
use enmasse_reference::ReferenceProgram;
use enmasse_tensor::RandomStream;

/// Layers in random order, with values used once, many times or never.
fn random(x: Tensor, seed: u64) -> Tensor {
    let mut stream = RandomStream::new(seed, "model", 0, 0);
    let mut values = vec![x.conv2d("stem", Conv::new(8, 3).padding(1))];
    for index in 0..10 {
        let mut pick = || values[values.len() - 1 - stream.below(values.len().min(4) as u64) as usize].clone();
        let (x, other) = (pick(), pick());
        let name = format!("layer{index}");
        let pool = Pool::new(3).stride(1).padding(1);
        values.push(match stream.below(13) {
            0 | 1 => x.conv2d(&name, Conv::new(8, 3).padding(1)),
            2 => x.conv2d(&name, Conv::new(8, 1).groups(2).no_bias()),
            3 => x.conv2d(&name, Conv::new(8, 3).padding(1).groups(8)),
            4 => x.batch_norm(&name),
            5 => x.batch_norm(&name).relu(),
            6 => (x.batch_norm(&name) + other).relu(),
            7 => x + other,
            8 => x.dropout(&name, 0.2),
            9 => x.avg_pool(pool),
            10 => x.max_pool(pool),
            11 => ((x.clone() + x.clone()) + (other.clone() + other)).relu6(),
            _ => x.relu(),
        });
    }
    let mut ends = values.into_iter().rev();
    let (Some(a), Some(b)) = (ends.next(), ends.next()) else { unreachable!("there are eleven values") };
    a.max_pool(Pool::new(2)).flatten().linear("a", 3) + b.adaptive_avg_pool([2, 2]).flatten().linear("b", 3)
}

fn plans(seed: u64) -> Plans {
    let precision = Precision::Bf16;
    let options =
        CompileOptions { size: [9, 7], allow_unused: true, precision, ..CompileOptions::new("random", 6, 9, 3) };
    compile(&|x: Tensor| random(x, seed), &options).unwrap()
}

fn step(program: &mut dyn Program, batch: &Batch) -> f64 {
    let ticket = program.submit(Mode::Train, &Phase::ALL, &batch.inputs(1)).unwrap();
    program.metrics(ticket).unwrap().loss
}

/// All gradients as one vector: the norm of the difference relative to that of `b`.
fn distance(plans: &Plans, a: &mut dyn Program, b: &mut dyn Program) -> f64 {
    let (mut difference, mut square) = (0.0, 0.0);
    for name in gradients(plans) {
        for (a, b) in a.store(&name).unwrap().into_iter().zip(b.store(&name).unwrap()) {
            difference += (a - b).powi(2);
            square += b * b;
        }
    }
    (difference / square).sqrt()
}

#[test]
fn any_order_of_layers() {
    // Both round to the same values, except where a sum lies close to the midpoint between two values. The effect is
    // small compared with that of rounding itself, which takes the gradients of these models 4e-2 from those in f64.
    const USUAL: f64 = 5e-3;
    const MAX: f64 = 8e-2;
    for isa in levels() {
        let mut distances = Vec::new();
        for seed in 0..60 {
            let plans = plans(seed);
            let options = CpuOptions { threads: 2, isa: Some(isa), exact: true, ..CpuOptions::default() };
            let mut cpu = program_with(&plans, options, None);
            let mut reference = ReferenceProgram::rounding(plans.clone(), None).unwrap();
            fill(&mut reference);
            let batch = Batch::random(&plans, seed);
            let found = step(&mut *cpu, &batch);
            let expected = step(&mut reference, &batch);
            assert!((found - expected).abs() < 3e-2 * expected, "{isa} random {seed}: loss {found}, not {expected}");
            let distance = distance(&plans, &mut *cpu, &mut reference);
            assert!(distance <= MAX, "{isa} random {seed}: gradients are off by {distance:.2e}");
            distances.push(distance);
        }
        distances.sort_by(f64::total_cmp);
        let median = distances[distances.len() / 2];
        assert!(median <= USUAL, "{isa}: gradients are off by {median:.2e}");
    }
}

#[test]
fn layers_over_tokens() {
    let precision = Precision::Bf16;
    let options = CompileOptions { size: [20, 24], precision, ..CompileOptions::new("tokens", 5, 20, 7) };
    let plans = compile(&tokens, &options).unwrap();
    for isa in levels() {
        let options = CpuOptions { threads: 2, isa: Some(isa), exact: true, ..CpuOptions::default() };
        let mut cpu = program_with(&plans, options, None);
        let mut reference = ReferenceProgram::rounding(plans.clone(), None).unwrap();
        fill(&mut reference);
        let batch = Batch::random(&plans, 1);
        step(&mut *cpu, &batch);
        step(&mut reference, &batch);
        let distance = distance(&plans, &mut *cpu, &mut reference);
        assert!(distance <= 5e-3, "{isa}: gradients are off by {distance:.2e}");
    }
}

/// Layers that are wide enough for every kernel, including Winograd's.
fn wide(x: Tensor) -> Tensor {
    let x = x.conv2d("conv1", Conv::new(18, 3).padding(1)).batch_norm("bn1").relu();
    let y = x.clone().conv2d("conv2", Conv::new(18, 3).padding(1).no_bias()).batch_norm("bn2");
    let x = (x + y).relu().conv2d("conv3", Conv::new(18, 3).padding(1).groups(18)).relu6().max_pool(Pool::new(2));
    x.conv2d("conv4", Conv::new(33, 3).stride(2)).relu().flatten().dropout("drop", 0.3).linear("fc", 5)
}

#[test]
fn bits_do_not_depend_on_threads() {
    let plans = compile(&wide, &CompileOptions { precision: Precision::Bf16, ..CompileOptions::new("wide", 4, 11, 5) })
        .unwrap();
    for isa in levels() {
        let bits = |threads, exact| -> Vec<Vec<u64>> {
            let options = CpuOptions { threads, isa: Some(isa), exact, ..CpuOptions::default() };
            let mut program = program_with(&plans, options, None);
            for number in 1..=3 {
                step(&mut *program, &Batch::random(&plans, number));
            }
            let stored = state(&plans).into_iter().map(|name| program.store(&name).unwrap());
            stored.map(|values| values.iter().map(|value| value.to_bits()).collect()).collect()
        };
        for exact in [true, false] {
            let expected = bits(1, exact);
            for threads in [2, 3, 5] {
                assert!(bits(threads, exact) == expected, "{isa}, {threads} threads, exact {exact}");
            }
        }
    }
}
