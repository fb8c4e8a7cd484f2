//! Element-wise passes against their definitions, in place and out of place.

use enmasse_reference::kernels::{activation, dropout as reference_dropout, function, image};
use enmasse_tensor::random::key;
use enmasse_tensor::{Bf16, F16};

use super::*;
use crate::test_support::{Bench, Element, assert_rounded, noise, wide};

/// Numbers of elements around the packets of a thread.
const SIZES: [usize; 6] = [1, 3, 8, 9, 257, 4096];

/// Runs a pass of one operand to another place, and in place.
fn check_one<E: Element>(what: &str, x: &[E], expected: &[f64], tolerance: f64, pass: impl Fn(Span, Span) -> Kernel) {
    let Some(mut bench) = Bench::new() else { return };
    let (from, to) = (bench.put(x), bench.room::<E>(x.len()));
    for to in [to, from] {
        bench.run(&pass(from, to));
        assert_rounded(&format!("{what} {} {}", E::DTYPE, x.len()), &bench.get::<E>(to), expected, tolerance);
    }
}

/// Runs a pass of two operands to another place, and over the first.
fn check_two<E: Element>(
    what: &str,
    [a, b]: [&[E]; 2],
    expected: &[f64],
    tolerance: f64,
    pass: impl Fn(Span, Span, Span) -> Kernel,
) {
    let Some(mut bench) = Bench::new() else { return };
    let (first, second, to) = (bench.put(a), bench.put(b), bench.room::<E>(a.len()));
    for to in [to, first] {
        bench.run(&pass(first, second, to));
        assert_rounded(&format!("{what} {} {}", E::DTYPE, a.len()), &bench.get::<E>(to), expected, tolerance);
    }
}

fn check<E: Element>() {
    for n in SIZES {
        let [a, b] = [1, 2].map(|key| noise::<E>(key, n, 8.0));
        let (x, y) = (wide(&a), wide(&b));
        check_two("add", [&a, &b], &activation::add(&x, &y), 1e-7, |a, b, c| add(E::DTYPE, a, b, c));
        check_two("multiply", [&a, &b], &activation::multiply(&x, &y), 1e-7, |a, b, c| multiply(E::DTYPE, a, b, c));
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
    let expected = activation::add(&wide(&a), &wide(&b));
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

fn check_functions<E: Element>() {
    let functions = [
        Function::Affine { scale: -2.5, shift: 0.25 },
        Function::Exp,
        Function::Log,
        Function::Power(2.0),
        Function::Power(0.5),
        Function::Power(0.0),
        Function::Power(-1.5),
        Function::ClampMin(0.5),
    ];
    for (function, n) in functions.iter().flat_map(|&function| [1, 300_001].map(|n| (function, n))) {
        // Logarithms and roots take positive numbers.
        let x: Vec<E> = noise::<E>(1, n, 3.0).iter().map(|x| E::of(x.get().abs() + 0.05)).collect();
        let dy = noise::<E>(2, n, 2.0);
        let expected = function::map(&wide(&x), function);
        check_one(function.name(), &x, &expected, 1e-6, |x, y| map(E::DTYPE, function, x, y));
        let expected = function::map_backward(&wide(&dy), &wide(&x), function);
        check_two(function.name(), [&dy, &x], &expected, 1e-6, |dy, x, dx| map_backward(E::DTYPE, function, dy, x, dx));
    }
}

#[test]
fn functions_and_their_derivatives() {
    check_functions::<f32>();
    check_functions::<Bf16>();
    check_functions::<F16>();
}

#[test]
fn functions_of_special_values() {
    let x = [0.0, -3.0, 0.5, f32::NAN];
    for function in [Function::ClampMin(0.5), Function::Power(2.0), Function::Power(0.0), Function::Power(1.0)] {
        let expected = function::map(&wide(&x), function);
        check_one(function.name(), &x, &expected, 1e-6, |x, y| map(DType::F32, function, x, y));
        let dy = [2.0; 4];
        let expected = function::map_backward(&wide(&dy), &wide(&x), function);
        check_two(function.name(), [&dy, &x], &expected, 1e-6, |dy, x, dx| {
            map_backward(DType::F32, function, dy, x, dx)
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
        let (from, narrow, back) = (bench.put(&x), bench.room::<u16>(n), bench.room::<f32>(n));
        let (bits, numbers) = rounded(dtype, &x);
        bench.run(&cast(DType::F32, from, dtype, narrow));
        assert_eq!(bench.get::<u16>(narrow), bits);
        bench.run(&cast(dtype, narrow, DType::F32, back));
        assert_eq!(bench.get::<u32>(back), numbers);
        bench.run(&cast(DType::F32, from, DType::F32, back));
        assert_eq!(bench.get::<u32>(back), bench.get::<u32>(from));
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
        let (from, to) = (bench.put(&x), bench.room::<u16>(x.len()));
        bench.run(&cast(DType::F32, from, dtype, to));
        let numbers: Vec<f32> = x.iter().copied().map(f32::from_bits).collect();
        let (found, expected) = (bench.get::<u16>(to), rounded(dtype, &numbers).0);
        for ((bits, found), expected) in x.into_iter().zip(found).zip(expected) {
            assert_eq!(found, expected, "{bits:#010x} as {dtype}");
        }
    }
}

fn check_normalize<E: Element>(pixels: usize) {
    let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
    let images: Vec<u8> = (0..3 * pixels).map(|i| (i * 31 % 256) as u8).collect();
    let wide: Vec<f64> = images.iter().map(|&byte| byte.into()).collect();
    for channels in [1, 3] {
        let Some(mut bench) = Bench::new() else { return };
        let (from, to) = (bench.put(&images), bench.room::<E>(pixels * channels));
        bench.run(&normalize(E::DTYPE, from, to, &mean[..channels], &std[..channels]));
        let expected = image::normalize(&wide, &mean[..channels], &std[..channels]);
        assert_rounded(&format!("{pixels} pixels"), &bench.get::<E>(to), &expected, 3e-7);
    }
}

#[test]
fn images() {
    for pixels in [1, 7, 1024, 30_001] {
        check_normalize::<f32>(pixels);
        check_normalize::<Bf16>(pixels);
        check_normalize::<F16>(pixels);
    }
}

fn check_dropout<E: Element>() {
    let (seed, probability, epoch) = (9, 0.3, 5);
    let samples = [4i64, 7_000_000_000, 1];
    let wide_samples = samples.map(|sample| sample as f64);
    for elements in [1, 6, 7, 1024] {
        let Some(mut bench) = Bench::new() else { return };
        bench.epoch(epoch);
        let x = noise::<E>(1, 3 * elements, 1.0);
        let (from, indices, to) = (bench.put(&x), bench.put(&samples), bench.room::<E>(x.len()));
        let expected = reference_dropout::dropout(&wide(&x), &wide_samples, probability, seed, "fc.1", epoch);
        for to in [to, from] {
            bench.run(&dropout(E::DTYPE, key(seed, "dropout fc.1"), probability, from, indices, to));
            assert_rounded(&format!("{elements} elements"), &bench.get::<E>(to), &expected, 1e-7);
        }
    }
}

#[test]
fn dropout_reads_the_samples_stream() {
    check_dropout::<f32>();
    check_dropout::<Bf16>();
    check_dropout::<F16>();
}
