//! Element-wise passes against their definitions, in place and out of place.

use enmasse_reference::ops::{activation, add, multiply};
use enmasse_tensor::{Bf16, F16};

use super::*;
use crate::test_support::{Bench, Element, check_one, check_two, noise, wide};

/// Numbers of elements around the packets of a thread.
const SIZES: [usize; 6] = [1, 3, 8, 9, 257, 4096];

fn check<E: Element>() {
    for n in SIZES {
        let [a, b] = [1, 2].map(|key| noise::<E>(key, n, 8.0));
        let (x, y) = (wide(&a), wide(&b));
        check_two("add", [&a, &b], &add::add(&x, &y), 1e-7, |a, b, c| add(E::DTYPE, a, b, c));
        check_two("multiply", [&a, &b], &multiply::multiply(&x, &y, 1), 1e-7, |a, b, c| multiply(E::DTYPE, a, b, c));
        for activation in [Activation::Relu, Activation::Relu6] {
            let expected = activation::activate(&x, activation);
            check_one("activation", &a, &expected, 0.0, |x, y| activate(E::DTYPE, activation, x, y));
            let expected = activation::activate_backward(&x, &y, activation);
            check_two("activation backward", [&a, &b], &expected, 0.0, |dy, y, dx| {
                activate_backward(E::DTYPE, activation, dy, y, dx)
            });
        }
    }
}

#[test]
fn passes_of_any_size() {
    check::<f32>();
    check::<Bf16>();
    check::<F16>();
}

#[test]
fn more_elements_than_threads_take_at_once() {
    let n = 1_100_003;
    let [a, b] = [1, 2].map(|key| noise::<f32>(key, n, 8.0));
    let expected = add::add(&wide(&a), &wide(&b));
    check_two("add", [&a, &b], &expected, 1e-7, |a, b, c| add(DType::F32, a, b, c));
}

#[test]
fn activations_at_their_limits() {
    let x = [-1.0, -0.0, 0.0, 1e-45, 6.0, 7.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    for activation in [Activation::Relu, Activation::Relu6] {
        let expected = activation::activate(&wide(&x), activation);
        check_one("activation", &x, &expected, 0.0, |x, y| activate(DType::F32, activation, x, y));
        let dy = [f32::NAN; 9];
        let expected = activation::activate_backward(&wide(&dy), &wide(&x), activation);
        check_two("activation backward", [&dy, &x], &expected, 0.0, |dy, y, dx| {
            activate_backward(DType::F32, activation, dy, y, dx)
        });
    }
}

/// The bits of numbers in a type of 16 bits, and the numbers that they are.
fn rounded(dtype: DType, x: &[f32]) -> (Vec<u16>, Vec<u32>) {
    let round = |x: f32| match dtype {
        DType::Bf16 => (Bf16::from_f32(x).to_bits(), Bf16::from_f32(x).to_f32().to_bits()),
        _ => (F16::from_f32(x).to_bits(), F16::from_f32(x).to_f32().to_bits()),
    };
    x.iter().map(|&x| round(x)).unzip()
}

#[test]
fn casts() {
    for (n, dtype) in [1, 4, 7, 70_001].into_iter().flat_map(|n| [(n, DType::Bf16), (n, DType::F16)]) {
        let Some(mut bench) = Bench::new() else { return };
        let mut x = noise::<f32>(1, n, 1e3);
        x[0] = f32::NAN;
        let from = bench.put(&x);
        let narrow = bench.room::<u16>(n);
        let back = bench.room::<f32>(n);
        let (bits, numbers) = rounded(dtype, &x);
        bench.run(&cast(DType::F32, from, dtype, narrow));
        assert_eq!(of_one_nan(dtype, bench.get::<u16>(narrow)), of_one_nan(dtype, bits));
        bench.run(&cast(dtype, narrow, DType::F32, back));
        assert!(bench.get::<f32>(back)[0].is_nan());
        assert_eq!(bench.get::<u32>(back)[1..], numbers[1..]);
    }
}

/// Bits of 16-bit numbers, of which all NaN have the same: a GPU's conversion keeps neither sign nor payload.
fn of_one_nan(dtype: DType, mut bits: Vec<u16>) -> Vec<u16> {
    let infinity = if dtype == DType::Bf16 { 0x7f80 } else { 0x7c00 };
    bits.iter_mut().filter(|bits| **bits & 0x7fff > infinity).for_each(|bits| *bits = 0x7fff);
    bits
}

#[test]
fn casts_of_several_ranges() {
    for (count, dtype) in [1, 3, RANGES].into_iter().flat_map(|count| [(count, DType::Bf16), (count, DType::F16)]) {
        let Some(mut bench) = Bench::new() else { return };
        let sizes = [1, 40_003, 4, 7, 1_000_001].into_iter().cycle().take(count);
        let values: Vec<Vec<f32>> = sizes.zip(1..).map(|(n, key)| noise::<f32>(key, n, 1e3)).collect();
        let ranges: Vec<[Span; 2]> =
            values.iter().map(|x| [bench.put(&rounded(dtype, x).0), bench.room::<f32>(x.len())]).collect();
        bench.run(&cast_ranges(dtype, &ranges));
        for (x, [_, to]) in values.iter().zip(&ranges) {
            assert_eq!(bench.get::<u32>(*to), rounded(dtype, x).1, "{dtype}, {count} ranges");
        }
    }
}

#[test]
fn rounding_to_16_bits_is_that_of_the_cpu() {
    let Some(mut bench) = Bench::new() else { return };
    // Around every midpoint of some binades, denormals, the largest numbers, and NaN with bits in either half.
    let near = |upper: u32| [0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff].map(|lower| upper << 16 | lower);
    let uppers = [0..0x102, 0x3f00..0x4080, 0x7f70..0x8002, 0xbf80..0xbf90, 0xff7e..0x1_0000];
    let x: Vec<u32> = uppers.into_iter().flatten().flat_map(near).collect();
    // The same for f16, which keeps 10 bits of fraction, and fewer below 2^-14.
    let near = |high: u32| [0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x1fff].map(|low| high << 13 | low);
    let uppers = [0x3300..0x3400, 0x387f..0x3881, 0x3f80..0x4000, 0x477f..0x4782].map(|r| r.start << 3..r.end << 3);
    let halves: Vec<u32> = uppers.into_iter().flatten().flat_map(near).chain(x.iter().copied()).collect();
    for (dtype, x) in [(DType::Bf16, x), (DType::F16, halves)] {
        let from = bench.put(&x);
        let to = bench.room::<u16>(x.len());
        bench.run(&cast(DType::F32, from, dtype, to));
        let numbers: Vec<f32> = x.iter().copied().map(f32::from_bits).collect();
        let found = bench.get::<u16>(to);
        let expected = rounded(dtype, &numbers).0;
        let [found, expected] = [found, expected].map(|bits| of_one_nan(dtype, bits));
        for ((bits, found), expected) in x.into_iter().zip(found).zip(expected) {
            assert_eq!(found, expected, "{bits:#010x} as {dtype}");
        }
    }
}
