//! Metrics on the CPU: against plain computations from the logits, wherever the shards are hosted.

use std::ops::Range;

use crate::common::{Batch, cpu_program, fill, on_some_ranks};
use enmasse_cpu::Isa;
use enmasse_device::{Program, StepInputs, StepMetrics};
use enmasse_graph::{CompileOptions, Conv, Metric, Mode, PerSample, Phase, Plans, Tensor, compile};
use enmasse_reference::ReferenceProgram;

const CLASSES: usize = 5;
const SHARDS: usize = 3;

fn model(x: Tensor) -> Tensor {
    x.conv2d("conv", Conv::new(6, 3).no_bias()).batch_norm("bn").relu().flatten().linear("fc", CLASSES)
}

/// Three shards of four samples, which measure top-2 correct, the norm of gradients, and the label's squared logit.
fn plans(sync_batch_norm: bool, clip_norm: Option<f32>) -> Plans {
    let squared = |logits: Tensor, targets: Tensor| (logits.clone() * logits * targets).sum_classes();
    let own = Metric::Custom { name: "squared".into(), function: PerSample::new(squared) };
    let metrics = vec![Metric::Top(2), Metric::GradientNorm, own];
    let options = CompileOptions {
        shards: SHARDS,
        sync_batch_norm,
        metrics,
        clip_norm,
        ..CompileOptions::new("net", 4, 6, CLASSES)
    };
    compile(&model, &options).unwrap()
}

/// A batch in which two shards have places without a sample.
fn batch(plans: &Plans) -> Batch {
    let mut batch = Batch::random(plans, 1);
    [2, 8, 9].into_iter().for_each(|place| batch.labels[place] = -1);
    batch
}

/// The inputs that a rank submits: the rank that hosts the last shard is asked for a checkpoint.
fn inputs(batch: &Batch, local: &Range<usize>) -> StepInputs {
    StepInputs { save: local.contains(&(SHARDS - 1)), ..batch.local(local.clone(), SHARDS).inputs(1) }
}

/// Top-2 correct and squared logits, summed over samples.
fn plain(logits: &[f64], labels: &[i32]) -> [f64; 2] {
    let rows = logits.chunks(CLASSES).zip(labels).filter(|(_, label)| **label >= 0);
    rows.fold([0.0; 2], |[hits, squares], (row, &label)| {
        let own = row[label as usize];
        let larger = row.iter().filter(|logit| **logit > own).count();
        [hits + f64::from(u8::from(larger < 2)), squares + own * own]
    })
}

#[track_caller]
fn assert_near(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-5 * expected.abs(), "{found} is not {expected}");
}

#[test]
fn training_measures_the_global_batch_wherever_shards_are_local() {
    for (sync, clip_norm) in [(false, Some(0.5)), (true, None)] {
        let plans = plans(sync, clip_norm);
        let batch = batch(&plans);
        let step = |program: &mut dyn Program, local: Range<usize>| -> StepMetrics {
            let ticket = program.submit(Mode::Train, &Phase::ALL, &inputs(&batch, &local)).unwrap();
            let metrics = program.metrics(ticket).unwrap();
            // The same value as clipping reports. Requesting it changes nothing else.
            assert_eq!(program.store("gradient_norm").unwrap(), [metrics.measured[1]]);
            metrics
        };
        let mut alone = cpu_program(&plans, 2, Isa::detect(), None);
        let expected = step(&mut *alone, 0..SHARDS);
        let [hits, squares] = plain(&alone.store("logits").unwrap(), &batch.labels);
        assert_eq!(expected.measured[0], hits);
        assert_near(expected.measured[2], squares);
        assert!(expected.measured[1] > 0.0 && expected.measured[3..] == [0.0; 5]);
        assert!(expected.save && !expected.stop);

        let mut reference = ReferenceProgram::new(plans.clone(), None).unwrap();
        fill(&mut reference);
        let in_f64 = step(&mut reference, 0..SHARDS);
        (0..3).for_each(|metric| assert_near(expected.measured[metric], in_f64.measured[metric]));
        assert!(in_f64.save && !in_f64.stop);

        for ranks in 1..=SHARDS {
            let found = on_some_ranks(&plans, ranks, |mut program, local| step(&mut *program, local));
            assert!(found.iter().all(|found| *found == expected), "{ranks} ranks: {found:?} {expected:?}");
        }
    }
}

#[test]
fn evaluation_measures_the_local_samples() {
    let phases = [Phase::Forward, Phase::Loss];
    for sync in [false, true] {
        let plans = plans(sync, None);
        let batch = batch(&plans);
        for ranks in 1..=SHARDS {
            on_some_ranks(&plans, ranks, |mut program, local| {
                let part = batch.local(local, SHARDS);
                let mut reference = None;
                if ranks == 1 {
                    let mut program = ReferenceProgram::new(plans.clone(), None).unwrap();
                    fill(&mut program);
                    reference = Some(program);
                }
                let others = reference.as_mut().map(|program| program as &mut dyn Program);
                for program in [&mut *program].into_iter().chain(others) {
                    let ticket = program.submit(Mode::Evaluate, &phases, &part.inputs(1)).unwrap();
                    let [hits, squares] = plain(&program.store("logits").unwrap(), &part.labels);
                    let measured = program.metrics(ticket).unwrap().measured;
                    assert_eq!((measured[0], &measured[2..]), (hits, &[0.0; 6][..]));
                    assert_near(measured[1], squares);
                }
            });
        }
    }
}

/// Measuring metrics changes no bit of the training.
#[test]
fn weights_are_the_same_without_metrics() {
    let with = plans(false, None);
    let without =
        compile(&model, &CompileOptions { shards: SHARDS, ..CompileOptions::new("net", 4, 6, CLASSES) }).unwrap();
    let [a, b] = [with, without].map(|plans| {
        let mut program = cpu_program(&plans, 2, Isa::detect(), None);
        let batch = batch(&plans);
        let losses = [1, 2].map(|step| {
            let ticket = program.submit(Mode::Train, &Phase::ALL, &batch.inputs(step)).unwrap();
            let StepMetrics { loss, correct, .. } = program.metrics(ticket).unwrap();
            (loss.to_bits(), correct)
        });
        let state = crate::common::state(&plans).into_iter().map(|name| program.store(&name).unwrap());
        (losses, state.collect::<Vec<_>>())
    });
    assert!(a == b);
}
