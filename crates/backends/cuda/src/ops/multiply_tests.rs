//! Factors per channel against their definition, in place and out of place.

use enmasse_reference::ops::multiply as reference;
use enmasse_tensor::{Bf16, F16};

use super::*;
use crate::test_support::{Bench, Element, ROWS, assert_rounded, noise, wide};

fn check<E: Element, F: Element>(groups: usize, rows: usize, channels: usize) {
    let Some(mut bench) = Bench::new() else { return };
    let size = Rows { rows: groups * rows, channels, dtype: E::DTYPE };
    let what = format!("{} {} {groups}x{rows}x{channels}", E::DTYPE, F::DTYPE);
    let [a, dy] = [1, 2].map(|key| noise::<E>(key, groups * rows * channels, 1.0));
    let b = noise::<F>(3, groups * channels, 1.0);
    let [a_at, dy_at] = [&a, &dy].map(|values| bench.put(values));
    let factors = |span: Span| Factors { span, dtype: F::DTYPE, groups };
    let db = factors(bench.room::<F>(groups * channels));
    bench.run_all(&[reduce(size, dy_at, a_at, db)]);
    let expected = reference::reduce(&wide(&dy), &wide(&a), groups * channels, channels);
    assert_rounded(&what, &bench.get::<F>(db.span), &expected, 1e-6 * (rows as f64).sqrt());

    let expected = reference::multiply(&wide(&a), &wide(&b), channels);
    let b_at = factors(bench.put(&b));
    let c = bench.room::<E>(a.len());
    for to in [c, a_at] {
        bench.run(&by_channel(size, a_at, b_at, to));
        assert_rounded(&what, &bench.get::<E>(to), &expected, 1e-7);
    }
}

#[test]
fn factors_of_all_samples_and_of_each_one() {
    for (groups, (rows, channels)) in [1, 3].into_iter().flat_map(|groups| ROWS.map(|size| (groups, size))) {
        check::<f32, f32>(groups, rows, channels);
        check::<Bf16, f32>(groups, rows, channels);
        check::<Bf16, Bf16>(groups, rows, channels);
        check::<F16, F16>(groups, rows, channels);
        check::<F16, f32>(groups, rows, channels);
    }
}
