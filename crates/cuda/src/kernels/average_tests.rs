//! Averages and running statistics against the reference's.

use enmasse_graph::Arena;
use enmasse_reference::kernels::{batch_norm, update as reference};

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
            bench.run(&average(0.75, values, averages));
            assert_rounded(&format!("{n} averages"), &bench.get::<f32>(averages), &expected, 1e-6);
        }
        let before = bench.get::<u32>(averages);
        bench.fail();
        bench.run(&average(0.75, values, averages));
        assert!(bench.get::<u32>(averages) == before, "{n} averages change after a failure");
    }
}

#[test]
fn running_statistics_equal_the_reference_unless_a_loss_was_not_finite() {
    for channels in [1, 3, 64, 257, 2048] {
        let Some(mut bench) = Bench::new() else { return };
        let (update, running) = (noise::<f32>(1, 2 * channels, 1.0), noise::<f32>(2, 2 * channels, 1.0));
        let at_update = bench.put_in(Memory::Arena(Arena::Gradients), &update);
        let [mean, variance] =
            [0, channels].map(|start| bench.put_in(Memory::Arena(Arena::Buffers), &running[start..start + channels]));
        bench.run(&running_update(0.1, at_update, mean, variance));
        let expected = batch_norm::running_update(&wide(&update), &wide(&running), 0.1);
        let before = [bench.get::<f32>(mean), bench.get::<f32>(variance)].concat();
        assert_rounded(&format!("{channels} channels"), &before, &expected, 1e-7);
        bench.fail();
        bench.run(&running_update(0.1, at_update, mean, variance));
        assert_eq!([bench.get::<f32>(mean), bench.get::<f32>(variance)].concat(), before);
    }
}
