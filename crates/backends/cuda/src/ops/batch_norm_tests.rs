//! Batch norm against the reference, over odd sizes, with and without gate and residual, and with every kind of statistics.

use enmasse_reference::ops::batch_norm as reference;
use enmasse_tensor::{Bf16, DType, F16};

use super::*;
use crate::kernels::rows::RESIDENT;
use crate::test_support::{Bench, Element, ROWS, assert_rounded, noise, wide};

const EPSILON: f32 = 1e-5;

const ACTIVATIONS: [Option<Activation>; 3] = [None, Some(Activation::Relu), Some(Activation::Relu6)];

fn check_statistics<E: Element>(rows: usize, channels: usize, offset: f64, tolerance: f64) {
    let Some(mut bench) = Bench::new() else { return };
    let size = Rows { rows, channels, dtype: E::DTYPE };
    let x: Vec<E> = noise::<E>(1, rows * channels, 1.0).iter().map(|x| E::of(x.get() + offset)).collect();
    let x_at = bench.put(&x);
    let [mean, variance] = [(); 2].map(|()| bench.room::<f32>(channels));
    let share = Share { update: bench.room::<f32>(2 * channels), count: rows, shards: 3 };
    bench.run_all(&[statistics(size, x_at, mean, variance, Some(share))]);
    let with_share = [mean, variance, share.update].map(|span| bench.get::<f32>(span));
    bench.run_all(&[statistics(size, x_at, mean, variance, None)]);
    bench.run(&running_share(Normalizer { mean, variance, epsilon: 0.0 }, share));
    assert!(with_share == [mean, variance, share.update].map(|span| bench.get::<f32>(span)), "{rows}x{channels}");
    let expected = reference::statistics(&wide(&x), channels);
    let what = format!("{} {rows}x{channels} {offset}", E::DTYPE);
    assert_rounded(&format!("mean {what}"), &bench.get::<f32>(mean), &expected.0, tolerance);
    assert_rounded(&format!("variance {what}"), &bench.get::<f32>(variance), &expected.1, tolerance);
}

#[test]
fn statistics_of_any_size() {
    for (rows, channels) in ROWS {
        check_statistics::<f32>(rows, channels, 0.5, 1e-6);
        check_statistics::<Bf16>(rows, channels, 0.5, 1e-6);
        check_statistics::<F16>(rows, channels, 0.5, 1e-6);
    }
    check_statistics::<f32>(70_001, 8, 0.5, 1e-6);
}

#[test]
fn large_means_cost_no_accuracy() {
    check_statistics::<f32>(5000, 3, 100.0, 3e-6);
    check_statistics::<f32>(300, 72, -30.0, 3e-6);
}

#[test]
fn values_that_are_not_numbers_stay_in_their_channel() {
    for bad in [f32::NAN, f32::INFINITY] {
        let Some(mut bench) = Bench::new() else { return };
        let mut x = noise::<f32>(1, 100 * 3, 1.0);
        x[3 * 70 + 1] = bad;
        let x = bench.put(&x);
        let [mean, variance] = [(); 2].map(|()| bench.room::<f32>(3));
        bench.run_all(&[statistics(Rows { rows: 100, channels: 3, dtype: DType::F32 }, x, mean, variance, None)]);
        let (mean, variance) = (bench.get::<f32>(mean), bench.get::<f32>(variance));
        assert_eq!(
            [0, 1, 2].map(|c| (mean[c].is_finite(), variance[c].is_nan())),
            [(true, false), (false, true), (true, false)]
        );
    }
}

/// Operands of a forward and its gradients, by the same names.
struct Operands<E> {
    x: Vec<E>,
    residual: Option<Vec<E>>,
    dy: Vec<E>,
    weight: Vec<f32>,
    bias: Vec<f32>,
    mean: Vec<f32>,
    variance: Vec<f32>,
}

impl<E: Element> Operands<E> {
    fn new(rows: usize, channels: usize, with_residual: bool) -> Self {
        let [x, residual, dy] = [1, 2, 3].map(|key| noise::<E>(key, rows * channels, 4.0));
        let [weight, bias, mean] = [4, 5, 6].map(|key| noise(key, channels, 1.0));
        let variance = noise::<f32>(7, channels, 1.0).iter().map(|v| v.abs() + 0.1).collect();
        Operands { x, residual: with_residual.then_some(residual), dy, weight, bias, mean, variance }
    }
}

fn check<E: Element>(rows: usize, channels: usize, activation: Option<Activation>, with_residual: bool) {
    let Some(mut bench) = Bench::new() else { return };
    let size = Rows { rows, channels, dtype: E::DTYPE };
    let operands = Operands::<E>::new(rows, channels, with_residual);
    let [x, dy] = [&operands.x, &operands.dy].map(|values| bench.put(values));
    let residual = operands.residual.as_ref().map(|values| bench.put(values));
    let (weight, bias) = (bench.put(&operands.weight), bench.put(&operands.bias));
    let by = Normalizer { mean: bench.put(&operands.mean), variance: bench.put(&operands.variance), epsilon: EPSILON };
    let [y, dx, dresidual] = [(); 3].map(|()| bench.room::<E>(rows * channels));
    let [dbias, dweight] = [(); 2].map(|()| bench.room::<f32>(channels));
    let passed = activation.map(|_| bench.room::<u8>(size.packets()));
    let what = |name: &str| format!("{name} {} {rows}x{channels} {activation:?} {with_residual}", E::DTYPE);

    let [wide_mean, wide_variance] = [&operands.mean, &operands.variance].map(|values| wide(values));
    let [wide_weight, wide_bias] = [&operands.weight, &operands.bias].map(|values| wide(values));
    let (wide_x, wide_dy) = (wide(&operands.x), wide(&operands.dy));
    let wide_residual = operands.residual.as_ref().map(|values| wide(values));
    let wide_by = reference::Normalizer { mean: &wide_mean, variance: &wide_variance, epsilon: EPSILON };

    let forward = Forward { x, by, weight, bias, residual, y, passed, activation };
    bench.run(&normalize(size, &Forward { passed: None, ..forward }));
    let found = bench.get::<E>(y);
    bench.run(&normalize(size, &forward));
    assert!(found == bench.get::<E>(y), "{}", what("y with bits"));
    let expected =
        reference::normalize(&wide_x, &wide_by, &wide_weight, &wide_bias, wide_residual.as_deref(), activation);
    assert_rounded(&what("y"), &found, &expected, 1e-6);
    // From here on with the result as it was stored, which is the gate.
    let wide_y = wide(&found);
    let wide_gate = activation.map(|activation| (activation, &wide_y[..]));

    if let (Some(activation), Some(passed)) = (activation, passed) {
        let expected = reference::passed(&wide_y, activation, rows * channels / size.packets());
        let found: Vec<f64> = bench.get::<u8>(passed).into_iter().map(f64::from).collect();
        assert_eq!(found, expected, "{}", what("passed"));
    }

    let gradient = Gradient { dy, x, by, passed };
    bench.run_all(&[reduce(size, &gradient, dbias, dweight)]);
    let expected = reference::reduce(&wide_dy, &wide_x, &wide_by, wide_gate);
    let tolerance = 1e-6 * (rows as f64).sqrt();
    assert_rounded(&what("dbias"), &bench.get::<f32>(dbias), &expected.0, tolerance);
    assert_rounded(&what("dweight"), &bench.get::<f32>(dweight), &expected.1, tolerance);

    let wide_dbias = wide(&bench.get::<f32>(dbias));
    let wide_dweight = wide(&bench.get::<f32>(dweight));
    let sums = BatchSums { dbias, dweight, count: rows };
    let wide_sums = (&wide_dbias[..], &wide_dweight[..], rows);
    let second = with_residual.then_some(dresidual);
    bench.run(&backward(size, &gradient, weight, Some(sums), dx, second));
    let expected = reference::backward(&wide_dy, &wide_x, &wide_by, &wide_weight, wide_sums, wide_gate);
    assert_rounded(&what("dx"), &bench.get::<E>(dx), &expected, 2e-6);
    bench.run(&backward(size, &gradient, weight, None, dx, second));
    let expected = reference::backward_running(&wide_dy, &wide_by, &wide_weight, wide_gate);
    assert_rounded(&what("running dx"), &bench.get::<E>(dx), &expected, 1e-6);
    if with_residual {
        let expected = reference::masked(&wide_dy, wide_gate);
        assert_rounded(&what("dresidual"), &bench.get::<E>(dresidual), &expected, 0.0);
        // Over dy, as the memory pass may choose.
        bench.run(&backward(size, &gradient, weight, Some(sums), dx, Some(dy)));
        assert_rounded(&what("dresidual over dy"), &bench.get::<E>(dy), &expected, 0.0);
    }
}

#[test]
fn passes_and_gradients() {
    for (rows, channels) in ROWS {
        for activation in ACTIVATIONS {
            for with_residual in [false, true] {
                check::<f32>(rows, channels, activation, with_residual);
                check::<Bf16>(rows, channels, activation, with_residual);
                check::<F16>(rows, channels, activation, with_residual);
            }
        }
    }
}

#[test]
fn bits_say_what_the_stored_result_says() {
    check_gates::<f32>(37, 64);
    check_gates::<Bf16>(37, 64);
    check_gates::<F16>(37, 64);
    check_gates::<Bf16>(29, 7);
    check_gates::<F16>(29, 7);
}

/// Results around 0 and 6, normal and denormal: in 16 bits rounding decides at both limits. f16 also rounds to infinity.
fn check_gates<E: Element>(rows: usize, channels: usize) {
    let at = |c: usize| {
        [(1.0, 0.0), (1e-38, 0.0), (1e-38, 1e-38), (0.03, 6.0), (0.0, 0.0), (-4.0, 3.0), (1e-8, 3e-8), (20.0, 65510.0)]
            [c % 8]
    };
    for activation in [Activation::Relu, Activation::Relu6] {
        let Some(mut bench) = Bench::new() else { return };
        let size = Rows { rows, channels, dtype: E::DTYPE };
        let mut operands = Operands::<E>::new(rows, channels, false);
        operands.x[channels + 1] = E::of(f64::NAN);
        (operands.weight, operands.bias) = (0..channels).map(at).unzip();
        let x = bench.put(&operands.x);
        let (weight, bias) = (bench.put(&operands.weight), bench.put(&operands.bias));
        let by =
            Normalizer { mean: bench.put(&operands.mean), variance: bench.put(&operands.variance), epsilon: EPSILON };
        let y = bench.room::<E>(rows * channels);
        let passed = bench.room::<u8>(size.packets());
        let forward =
            Forward { x, by, weight, bias, residual: None, y, passed: Some(passed), activation: Some(activation) };
        bench.run(&normalize(size, &forward));
        let stored = wide(&bench.get::<E>(y));
        let expected = reference::passed(&stored, activation, rows * channels / size.packets());
        let found: Vec<f64> = bench.get::<u8>(passed).into_iter().map(f64::from).collect();
        assert_eq!(found, expected, "{} {activation:?}", E::DTYPE);
    }
}

#[test]
fn shares_of_running_statistics() {
    for channels in [2, 300] {
        let Some(mut bench) = Bench::new() else { return };
        let [mean, variance] = [1, 2].map(|key| noise::<f32>(key, channels, 3.0));
        let by = Normalizer { mean: bench.put(&mean), variance: bench.put(&variance), epsilon: EPSILON };
        let update = bench.room::<f32>(2 * channels);
        for (count, shards) in [(4, 2), (99, 3)] {
            bench.run(&running_share(by, Share { update, count, shards }));
            let expected = reference::running_share(&wide(&mean), &wide(&variance), count, shards);
            assert_rounded("share", &bench.get::<f32>(update), &expected, 1e-7);
        }
    }
}

/// Grids are chosen for the blocks that an H200 holds at a time, of which ptxas tells.
#[test]
fn grids_fill_whole_waves() {
    let table = include_str!("../../../../../docs/cuda-kernels.md");
    let lines = table.lines().filter(|line| line.starts_with('|'));
    let cells = |line: &'static str| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>();
    let rows: Vec<Vec<&str>> = lines.map(cells).collect();
    let column = rows[0].iter().position(|name| *name == "H200 (sm_90)").unwrap();
    let held = |name: &str| {
        let row = rows.iter().find(|row| row[0] == name).unwrap_or_else(|| panic!("no {name}"));
        let registers: usize = row[column].parse().unwrap();
        // A warp has registers by 256.
        65536 / (registers.next_multiple_of(8) * 256)
    };
    for dtype in [DType::F32, DType::Bf16, DType::F16] {
        for pass in ["normalize", "backward", "backward_gated"] {
            assert_eq!(held(&format!("batch_norm_{pass}_{dtype}")), resident(dtype), "{pass} {dtype}");
        }
        for reduction in ["batch_norm_statistics", "batch_norm_reduce", "batch_norm_reduce_gated", "layer_norm_reduce"]
        {
            assert!(held(&format!("{reduction}_{dtype}")) >= RESIDENT, "{reduction} {dtype}");
        }
    }
    let size = Rows { rows: 256 * 56 * 56, channels: 64, dtype: DType::Bf16 };
    assert_eq!(pass(size), [2 * 3 * 132, 1, 1]);
    assert_eq!(pass(Rows { dtype: DType::F32, ..size }), [2 * 4 * 132, 1, 1]);
}
