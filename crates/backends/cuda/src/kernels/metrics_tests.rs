//! What shards share, and the record of a failure.

use enmasse_graph::Arena;
use enmasse_reference::ops::share_metrics as reference;

use super::*;
use crate::test_support::{Bench, assert_rounded, noise, wide};
use crate::work::Memory;

const ACTIVATIONS: Memory = Memory::Arena(Arena::Activations);

#[test]
fn shared_numbers_have_fixed_places() {
    for (shards, n) in [(1, 0), (1, 1), (3, 7), (5, 16), (2, 17), (300, 33)] {
        for (shard, requests) in [(0, [false, true]), (shards - 1, [true, false])] {
            let Some(mut bench) = Bench::new() else { return };
            bench.step(1, 0.5, requests);
            let values = noise::<f32>(n as u64, 1 + n, 1.0);
            let places: Vec<Span> = values.iter().map(|&value| bench.put_in(ACTIVATIONS, &[value])).collect();
            let metrics = bench.put_in(ACTIVATIONS, &vec![f32::NAN; shards + n + 2]);
            bench.run_all(&share_metrics(shard, shards, places[0], &places[1..], metrics));
            let values = wide(&values);
            let expected = reference::share_metrics(values[0], &values[1..], requests, shard, shards);
            assert_rounded(
                &format!("{n} numbers of shard {shard} of {shards}"),
                &bench.get::<f32>(metrics),
                &expected,
                0.0,
            );
        }
    }
}

#[test]
fn the_first_loss_that_is_not_finite_is_recorded_once() {
    const NAN: f32 = f32::NAN;
    const INFINITY: f32 = f32::INFINITY;
    let check = |losses: &[f32], before: (u32, f32), expected: (u32, f32)| {
        let Some(mut bench) = Bench::new() else { return };
        let words = |(shard, loss): (u32, f32)| [shard, loss.to_bits()];
        bench.set(FAILURE, &words(before));
        let losses = bench.put_in(ACTIVATIONS, losses);
        bench.run(&check_finite(losses));
        assert_eq!(bench.get::<u32>(FAILURE), words(expected));
    };
    check(&[1.0, -2.0, f32::MAX], (0, 0.0), (0, 0.0));
    check(&[1.0, INFINITY, NAN], (0, 0.0), (2, INFINITY));
    check(&[-INFINITY], (0, 0.0), (1, -INFINITY));
    check(&[0.0, NAN], (0, 0.0), (2, NAN));
    check(&[NAN, 0.0], (5, INFINITY), (5, INFINITY));
    check(&[0.0, 0.0], (5, INFINITY), (5, INFINITY));
    let mut many = vec![0.0; 1000];
    (many[999], many[600], many[601]) = (NAN, INFINITY, NAN);
    check(&many, (0, 0.0), (601, INFINITY));
}
