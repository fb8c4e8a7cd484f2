//! Element-wise passes against their definitions, in place and out of place.

use enmasse_reference::kernels::activation;
use enmasse_tensor::Bf16;

use super::*;
use crate::test_support::{Bench, Element, assert_rounded, noise, wide};

/// Numbers of elements around the packets of a thread, and the loop of a grid.
const SIZES: [usize; 7] = [1, 3, 8, 9, 257, 4096, 2_200_003];

fn check_pairs<E: Element>() {
    for n in SIZES {
        let [a, b] = [1, 2].map(|key| noise::<E>(key, n, 8.0));
        let Some(mut bench) = Bench::new() else { return };
        let [x, y] = [&a, &b].map(|values| bench.put(values));
        let z = bench.room::<E>(n);
        bench.run(&add(E::DTYPE, x, y, z));
        assert_rounded("add", &bench.get::<E>(z), &activation::add(&wide(&a), &wide(&b)), 1e-7);
        bench.run(&multiply(E::DTYPE, x, y, x));
        assert_rounded("multiply", &bench.get::<E>(x), &activation::multiply(&wide(&a), &wide(&b)), 1e-7);
    }
}

#[test]
fn pairs() {
    check_pairs::<f32>();
    check_pairs::<Bf16>();
}
