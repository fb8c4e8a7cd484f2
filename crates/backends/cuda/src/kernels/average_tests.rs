//! Averages and running statistics against the reference's.

use enmasse_graph::Arena;
use enmasse_reference::ops::{average as reference, batch_norm, lookahead as slow_weights};

use super::*;
use crate::test_support::{Bench, assert_rounded, noise, wide};
use crate::work::Memory;

#[test]
fn three_steps_equal_the_reference_unless_a_loss_was_not_finite() {
    for n in [1, 5, 64, 20_001, 1_100_003] {
        let Some(mut bench) = Bench::new() else { return };
        let values = bench.put_in(Memory::Arena(Arena::Parameters), &vec![f32::NAN; n]);
        // The contents before the first step are not read: they are NaN.
        let averages = bench.put_in(Memory::Arena(Arena::Average), &vec![f32::NAN; n]);
        let mut expected = vec![0.0; n];
        for step in 1..=3 {
            let noise = noise::<f32>(step, n, 1.0);
            bench.set(values, &noise);
            bench.step(step, 0.5, [false; 2]);
            expected = reference::average(0.75, step, &wide(&noise), &expected);
            bench.run(&average(0.75, values, averages, None));
            assert_rounded(&format!("{n} averages"), &bench.get::<f32>(averages), &expected, 1e-6);
        }
        let before = bench.get::<u32>(averages);
        bench.fail();
        bench.run(&average(0.75, values, averages, None));
        assert!(bench.get::<u32>(averages) == before, "{n} averages change after a failure");
    }
}

#[test]
fn slow_weights_and_values_become_what_lies_between_them() {
    for n in [1, 5, 64, 20_001, 1_100_003] {
        let Some(mut bench) = Bench::new() else { return };
        let [first, second] = [1, 2].map(|key| noise::<f32>(key, n, 1.0));
        let values = bench.put_in(Memory::Arena(Arena::Parameters), &first);
        let slow = bench.put_in(Memory::Arena(Arena::Average), &second);
        let kernel = lookahead(values, slow);
        bench.lookahead(None);
        bench.run(&kernel);
        assert_eq!((bench.get::<f32>(values), bench.get::<f32>(slow)), (first.clone(), second.clone()));
        bench.lookahead(Some(0.25));
        bench.run(&kernel);
        let found = bench.get::<f32>(values);
        let expected = slow_weights::lookahead(0.25, &wide(&first), &wide(&second));
        assert_rounded(&format!("{n} values"), &found, &expected, 1e-6);
        assert!(bench.get::<f32>(slow) == found, "{n} slow weights differ from the values");
        bench.set(values, &first);
        bench.fail();
        bench.run(&kernel);
        assert_eq!((bench.get::<f32>(values), bench.get::<f32>(slow)), (first, found), "after a failure");
    }
}

/// The first update copies, and comes after two steps that were skipped.
#[test]
fn averages_of_a_scaled_loss() {
    let Some(mut bench) = Bench::new() else { return };
    let values = bench.put_in(Memory::Arena(Arena::Parameters), &noise::<f32>(1, 100, 1.0));
    let averages = bench.put_in(Memory::Arena(Arena::Average), &[f32::NAN; 100]);
    let unscale = bench.put_in(Memory::Arena(Arena::Activations), &[0.0f32, 2.0]);
    let skipped_steps = bench.put_in(Memory::Arena(Arena::LossScale), &[1.0f32]);
    let kernel = average(0.75, values, averages, Some(Scaling { unscale, skipped_steps }));
    bench.step(2, 0.5, [false; 2]);
    bench.run(&kernel);
    assert!(bench.get::<f32>(averages).iter().all(|average| average.is_nan()));
    bench.set(unscale, &[0.5f32, 2.0]);
    bench.set(skipped_steps, &[2.0f32]);
    bench.step(3, 0.5, [false; 2]);
    bench.run(&kernel);
    assert_eq!(bench.get::<f32>(averages), bench.get::<f32>(values));
}

/// Of several batch norms at once, among values that are not theirs.
#[test]
fn running_statistics_equal_the_reference_unless_a_loss_was_not_finite() {
    for channels in [&[1][..], &[257], &[3, 64, 2048, 1, 16], &[5; 300]] {
        let Some(mut bench) = Bench::new() else { return };
        let mut norms = Vec::new();
        let mut expected = Vec::new();
        let mut others = Vec::new();
        for (&channels, key) in channels.iter().zip(0..) {
            let [values, running] = [0, 1].map(|kind| noise::<f32>(2 * key + kind, 2 * channels, 1.0));
            let momentum = if key % 2 == 0 { 0.1 } else { 0.25 };
            let update = bench.put_in(Memory::Arena(Arena::Gradients), &values);
            others.push(bench.put_in(Memory::Arena(Arena::Buffers), &[f32::NAN]));
            let [mean, variance] =
                [0, channels].map(|at| bench.put_in(Memory::Arena(Arena::Buffers), &running[at..at + channels]));
            norms.push(Running { momentum, update, mean, variance });
            expected.extend(batch_norm::running_update(&wide(&values), &wide(&running), momentum));
        }
        let mut constants = Constants::default();
        let kernel = running_update(&norms, &mut constants).unwrap();
        bench.constants(&constants);
        let found = |bench: &Bench| -> Vec<f32> {
            norms.iter().flat_map(|norm| [norm.mean, norm.variance]).flat_map(|span| bench.get::<f32>(span)).collect()
        };
        bench.run(&kernel);
        let before = found(&bench);
        assert_rounded(&format!("{channels:?} channels"), &before, &expected, 1e-7);
        assert!(others.iter().all(|&other| bench.get::<f32>(other)[0].is_nan()));
        bench.fail();
        bench.run(&kernel);
        assert_eq!(found(&bench), before);
    }
    assert_eq!(running_update(&[], &mut Constants::default()), None);
}
