//! Properties over shards: N shards of B samples equal one shard of N x B, and all shards hold the same bits.

use crate::common::{Batch, program, relative_error, state, submit, train};
use enmasse_device::Program;
use enmasse_graph::optimizers::{AdamW, Sgd};
use enmasse_graph::{BucketSizes, CompileOptions, Conv, Loss, Mode, Optimizer, ParameterGroups, Phase, Tensor};
use enmasse_reference::Difference;

/// Batch norms with everything that may be fused into them, dropout, and a convolution without a batch norm after it.
fn net(x: Tensor) -> Tensor {
    let conv = |x: Tensor, name: &str, channels| x.conv2d(name, Conv::new(channels, 3).padding(1).no_bias());
    let x = conv(x, "stem", 6).batch_norm("bn").relu();
    let y = conv(x.clone(), "a", 6).batch_norm("bn_a").relu();
    let x = (conv(y, "b", 6).batch_norm("bn_b") + x).relu();
    let x = x.conv2d("down", Conv::new(4, 3).stride(2)).relu().dropout("drop", 0.2);
    x.flatten().linear("fc", 5)
}

const SGD: Optimizer = Optimizer::Sgd(Sgd { momentum: 0.9, nesterov: false });
const ADAMW: Optimizer = Optimizer::AdamW(AdamW { betas: [0.9, 0.999], epsilon: 1e-8 });

fn options(shards: usize, batch: usize, optimizer: Optimizer) -> CompileOptions {
    // Several buckets, whose sums start at different points of the backward phase.
    let buckets = BucketSizes { first: 256, other: 2048 };
    CompileOptions {
        shards,
        optimizer,
        groups: ParameterGroups::one(5e-4),
        buckets,
        sync_batch_norm: true,
        loss: Loss::CrossEntropy { smoothing: 0.1, weights: Vec::new() },
        ..CompileOptions::new("net", batch, 8, 5)
    }
}

#[test]
fn shards_with_synchronised_batch_norm_are_one_large_batch() {
    for (shards, optimizer) in [(2, SGD), (3, SGD), (5, SGD), (3, ADAMW)] {
        let mut many = program(&net, &options(shards, 2, optimizer.clone()));
        let mut one = program(&net, &options(1, 2 * shards, optimizer.clone()));
        let buckets = many.plans().train.as_ref().unwrap().buckets.len();
        assert!(buckets > 2, "{buckets} buckets");
        for step in 1..=10 {
            let batch = Batch::random(&one, step);
            let metrics = [train(&mut many, &batch, step, 0.05), train(&mut one, &batch, step, 0.05)];
            assert!((metrics[0].loss - metrics[1].loss).abs() <= 1e-9, "step {step}: {metrics:?}");
            assert_eq!(metrics[0].correct, metrics[1].correct);
            assert_eq!(many.first_difference(), None, "{shards} shards, step {step}");
        }
        let start = state(&mut program(&net, &options(1, 2 * shards, optimizer.clone())));
        for (((name, many), (_, one)), (_, start)) in state(&mut many).into_iter().zip(state(&mut one)).zip(start) {
            let error = relative_error(&many, &one);
            assert!(error <= 1e-9, "{shards} shards: {name}: {error:e}");
            assert_ne!(one, start, "{name} has not moved");
        }
    }
}

#[test]
fn evaluation_of_shards_equals_that_of_the_whole_batch() {
    let mut many = program(&net, &options(3, 2, SGD));
    let mut one = program(&net, &options(1, 6, SGD));
    let mut batch = Batch::random(&one, 0);
    // A partial batch: one shard has one sample, one has none.
    batch.labels[3..].fill(-1);
    let evaluate = |program: &mut _| {
        let ticket = submit(program, Mode::Evaluate, &[Phase::Forward, Phase::Loss], &batch, 0, 0.0);
        (program.metrics(ticket).unwrap(), program.store("logits").unwrap(), program.store("loss").unwrap())
    };
    let (metrics, logits, loss) = evaluate(&mut many);
    let (expected, expected_logits, _) = evaluate(&mut one);
    assert_eq!(logits, expected_logits);
    assert!((metrics.loss - expected.loss).abs() < 1e-12 && metrics.correct == expected.correct);
    assert_eq!(loss, [metrics.loss]);
    // The loss by its definition, from the logits of the three samples that count.
    let log_softmax = |row: &[f64], label: usize| row[label] - row.iter().map(|logit| logit.exp()).sum::<f64>().ln();
    let losses = logits.chunks(5).zip(&batch.labels).take(3).map(|(row, &label)| -log_softmax(row, label as usize));
    assert!((losses.sum::<f64>() - metrics.loss).abs() < 1e-12);
}

/// Every shard's statistics have the same weight in the running ones. PyTorch's DDP would keep those of rank 0.
#[test]
fn running_statistics_without_synchronisation_are_the_mean_of_the_shards_updates() {
    for shards in [2, 3, 5] {
        let mut many = program(&net, &CompileOptions { sync_batch_norm: false, ..options(shards, 2, SGD) });
        let batch = Batch::random(&many, 0);
        train(&mut many, &batch, 1, 0.05);
        assert_eq!(many.first_difference(), None);
        let alone: Vec<Vec<(String, Vec<f64>)>> = (0..shards)
            .map(|shard| {
                let mut one = program(&net, &options(1, 2, SGD));
                train(&mut one, &batch.shard(shard, shards), 1, 0.05);
                state(&mut one)
            })
            .collect();
        let mut seen = 0;
        for (index, (name, values)) in state(&mut many).into_iter().enumerate() {
            if !name.contains("running") {
                continue;
            }
            let mean: Vec<f64> = (0..values.len())
                .map(|i| alone.iter().map(|state| state[index].1[i]).sum::<f64>() / shards as f64)
                .collect();
            let error = relative_error(&values, &mean);
            assert!(error <= 1e-12, "{name}: {error:e}");
            assert_ne!(alone[0][index].1, alone[1][index].1, "{name}");
            seen += 1;
        }
        assert_eq!(seen, 6);
    }
}

#[test]
fn without_synchronised_batch_norm_shards_stay_identical_too() {
    let mut program = program(&net, &CompileOptions { sync_batch_norm: false, ..options(3, 2, ADAMW) });
    for step in 1..=5 {
        let batch = Batch::random(&program, step);
        train(&mut program, &batch, step, 0.05);
        assert_eq!(program.first_difference(), None, "step {step}");
    }
}

#[test]
fn the_first_difference_is_named() {
    let mut program = program(&net, &options(3, 2, SGD));
    assert_eq!(program.first_difference(), None);
    let check =
        |program: &mut enmasse_reference::ReferenceProgram, name: &str, shard: usize, expected: (&str, usize)| {
            let mut values = program.store_shard(shard, name).unwrap();
            let last = values.len() - 1;
            values[last] = f64::from_bits(values[last].to_bits() ^ 1);
            program.load_shard(shard, name, &values).unwrap();
            let expected = Difference { tensor: expected.0.into(), shard: expected.1 };
            assert_eq!(program.first_difference(), Some(expected));
        };
    // In the order of the state, each tensor but the last comes before those that differ already.
    let momentum = "optimizer.momentum_buffer.fc.bias";
    check(&mut program, momentum, 2, (momentum, 2));
    check(&mut program, "bn_a.running_var", 1, ("bn_a.running_var", 1));
    check(&mut program, "stem.weight", 2, ("stem.weight", 2));
    check(&mut program, "fc.weight", 1, ("stem.weight", 2));
    // Loading a tensor into all shards makes them equal again.
    for (name, values) in state(&mut program) {
        program.load(&name, &values).unwrap();
    }
    assert_eq!(program.first_difference(), None);
}
