//! Batch norm against plain loops in f64, on every level, with any number of threads, and in place of dy.

use proptest::prelude::*;

use super::*;
use crate::activation::plain;
use crate::guard::{Edge, Guarded, GuardedContext};
use crate::isa::Isa;
use crate::statistics::statistics;
use crate::test_support::{assert_near, available, noise};

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| f64::from(v)).collect()
}

#[derive(Clone, Debug, PartialEq)]
struct Results {
    mean: Vec<f32>,
    variance: Vec<f32>,
    y: Vec<f32>,
    dbias: Vec<f32>,
    dweight: Vec<f32>,
    dx: Vec<f32>,
    constant_dx: Vec<f32>,
    /// Written over dy.
    dresidual: Vec<f32>,
    sums: Vec<f32>,
}

struct Input {
    size: Rows,
    x: Vec<f32>,
    residual: Vec<f32>,
    dy: Vec<f32>,
    weight: Vec<f32>,
    bias: Vec<f32>,
    activation: Option<Activation>,
    with_residual: bool,
}

const EPSILON: f32 = 1e-3;

fn run(input: &Input, isa: Isa, threads: usize) -> Results {
    let size = input.size;
    let edge = Edge::BOTH[threads % 2];
    let context = &mut GuardedContext::new(edge, threads, isa, size.workspace());
    let [x, residual, dy, weight, bias] =
        [&input.x, &input.residual, &input.dy, &input.weight, &input.bias].map(|values| Guarded::new(edge, values));
    let [mut mean, mut variance, mut dbias, mut dweight, mut channel_sums] =
        [(); 5].map(|()| Guarded::filled(edge, f32::NAN, size.channels));
    let [mut y, mut dx, mut constant_dx] = [(); 3].map(|()| Guarded::filled(edge, f32::NAN, x.len()));
    let mut dresidual = Guarded::new(edge, &dy);
    let moments = Moments { mean: Region::of_mut(&mut mean), variance: Region::of_mut(&mut variance) };
    let residual = input.with_residual.then(|| Region::of(&residual));
    let activation = input.activation;
    // SAFETY: every region is a live buffer of the right size.
    unsafe {
        let x = Region::of(&x);
        let weight = Region::of(&weight);
        let y_over = Region::of_mut(&mut y);
        statistics(context, size, x, moments);
        let bias = Region::of(&bias);
        let forward = Forward { size, x, moments, weight, bias, residual, y: y_over, epsilon: EPSILON, activation };
        normalize(context, &forward);
        bias_backward(context, size, Region::of(&dy), Region::of_mut(&mut channel_sums));
        let over = Region::of_mut(&mut dresidual);
        let gate = |by: Activation| match by.is_relu() {
            true => Gate::Stored(y_over),
            false => Gate::Recomputed { weight, bias },
        };
        let gate = activation.map(|by| (by, gate(by)));
        let g = Gradient { size, dy: over, x, moments, gate, epsilon: EPSILON };
        let sums = (Region::of_mut(&mut dbias), Region::of_mut(&mut dweight));
        reduce(context, &g, sums.0, sums.1);
        let dresidual = input.with_residual.then_some(over);
        backward(context, &g, weight, None, Region::of_mut(&mut constant_dx), None);
        let sums = Some((sums.0, sums.1, size.rows));
        backward(context, &g, weight, sums, Region::of_mut(&mut dx), dresidual);
    }
    Results {
        mean: mean.to_vec(),
        variance: variance.to_vec(),
        y: y.to_vec(),
        dbias: dbias.to_vec(),
        dweight: dweight.to_vec(),
        dx: dx.to_vec(),
        constant_dx: constant_dx.to_vec(),
        dresidual: dresidual.to_vec(),
        sums: channel_sums.to_vec(),
    }
}

fn check(rows: usize, channels: usize, activation: Option<Activation>, with_residual: bool, offset: f32) {
    let size = Rows { rows, channels };
    let n = rows * channels;
    let x: Vec<f32> = noise(1, n).iter().map(|v| v + offset).collect();
    let (weight, bias) = (noise(4, channels), noise(5, channels));
    let input = Input { size, x, residual: noise(2, n), dy: noise(3, n), weight, bias, activation, with_residual };
    let x = wide(&input.x);
    let residual = wide(&input.residual);
    let dy = wide(&input.dy);
    let (weight, bias) = (wide(&input.weight), wide(&input.bias));
    let of = |values: &[f64], c: usize| values.iter().skip(c).step_by(channels).copied().collect::<Vec<_>>();
    let average = |values: &[f64]| values.iter().sum::<f64>() / rows as f64;
    for isa in available() {
        let r = run(&input, isa, 1);
        for threads in [2, 3] {
            assert!(run(&input, isa, threads) == r, "{threads} threads: the bits differ");
        }
        let what = |name: &str| format!("{isa} {name} {rows}x{channels}");
        let (mean, variance): (Vec<f64>, Vec<f64>) = (0..channels)
            .map(|c| {
                let (x, mean) = (of(&x, c), average(&of(&x, c)));
                (mean, average(&x.iter().map(|x| (x - mean).powi(2)).collect::<Vec<_>>()))
            })
            .unzip();
        assert_near(&what("mean"), &r.mean, &mean, 1e-6);
        assert_near(&what("variance"), &r.variance, &variance, 3e-6);
        // From here on with the statistics rounded to f32, which the operations receive.
        let (mean, variance) = (wide(&r.mean), wide(&r.variance));
        let inverse = |c: usize| 1.0 / (variance[c] + f64::from(EPSILON)).sqrt();
        let hat = |i: usize| (x[i] - mean[i % channels]) * inverse(i % channels);
        let z: Vec<f64> = (0..n)
            .map(|i| hat(i) * weight[i % channels] + bias[i % channels] + if with_residual { residual[i] } else { 0.0 })
            .collect();
        let y: Vec<f64> = z.iter().map(|&z| plain(activation, z).0).collect();
        assert_near(&what("y"), &r.y, &y, 3e-6);
        // What a ReLU lets pass follows from the result that is stored.
        let is_stored = activation.is_some_and(Activation::is_relu);
        let derivative = |i: usize| plain(activation, if is_stored { f64::from(r.y[i]) } else { z[i] }).1;
        let masked: Vec<f64> = (0..n).map(|i| dy[i] * derivative(i)).collect();
        let sums = |values: &[f64]| (0..channels).map(|c| of(values, c).iter().sum()).collect::<Vec<f64>>();
        let products: Vec<f64> = (0..n).map(|i| masked[i] * hat(i)).collect();
        assert_near(&what("sums"), &r.sums, &sums(&dy), 1e-5);
        let (dbias, dweight) = (sums(&masked), sums(&products));
        let scale = |values: &[f64]| values.iter().fold(1e-30f64, |m, v| m.max(v.abs()));
        // Sums may cancel: the error is relative to the terms.
        let tolerance = |sums: &[f64]| 1e-6 * (rows as f64).sqrt().max(scale(sums)) / scale(sums);
        assert_near(&what("dbias"), &r.dbias, &dbias, tolerance(&dbias));
        assert_near(&what("dweight"), &r.dweight, &dweight, tolerance(&dweight));
        let m = rows as f64;
        let factor = |i: usize| weight[i % channels] * inverse(i % channels);
        let dx: Vec<f64> = (0..n)
            .map(|i| factor(i) * (masked[i] - dbias[i % channels] / m - hat(i) * dweight[i % channels] / m))
            .collect();
        assert_near(&what("dx"), &r.dx, &dx, 1e-5 * scale(&weight) / scale(&dx).min(scale(&weight)));
        let dx: Vec<f64> = (0..n).map(|i| factor(i) * masked[i]).collect();
        assert_near(&what("constant dx"), &r.constant_dx, &dx, 1e-6);
        let expected = if with_residual { &masked } else { &dy };
        assert_near(&what("dresidual"), &r.dresidual, expected, 0.0);
    }
}

#[test]
fn large_means_cost_no_accuracy() {
    check(5000, 3, Some(Activation::Relu), true, 100.0);
    check(300, 70, None, false, -30.0);
    check(700, 67, Some(Activation::Silu), false, 20.0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_size(
        rows in 2usize..700,
        channels in prop_oneof![1usize..70, 70usize..150],
        activation in prop::sample::select(vec![
            None,
            Some(Activation::Relu),
            Some(Activation::Relu6),
            Some(Activation::Silu),
            Some(Activation::HardSwish),
        ]),
        with_residual: bool,
    ) {
        let with_residual = with_residual && activation.is_none_or(Activation::is_relu);
        check(rows, channels, activation, with_residual, 0.5);
    }
}

/// Bits of the gradients without a residual: dbias, dweight, dx, and dx over running statistics.
fn gradients<E: Element>(
    isa: Isa,
    size: Rows,
    activation: Activation,
    [x, dy, weight, bias]: &[Vec<f32>; 4],
    recomputed: bool,
) -> Vec<u32> {
    let context = &mut GuardedContext::new(Edge::BOTH[0], 2, isa, size.workspace());
    let stored = |values: &[f32]| values.iter().map(|&value| E::of(value)).collect::<Vec<E>>();
    let (x, dy) = (stored(x), stored(dy));
    let mut sums = [(); 4].map(|()| vec![0.0; size.channels]);
    let mut activations = [(); 3].map(|()| vec![E::ZERO; x.len()]);
    let [mean, variance, dbias, dweight] = sums.each_mut().map(|values| Region::of_mut(values));
    let [y, dx, constant_dx] = activations.each_mut().map(|values| Region::of_mut(values));
    let x = Region::of(&x);
    let dy = Region::of(&dy);
    let weight = Region::of(weight);
    let bias = Region::of(bias);
    let moments = Moments { mean, variance };
    let epsilon = EPSILON;
    // SAFETY: every region is a live buffer of the right size.
    unsafe {
        statistics(context, size, x, moments);
        let activation = Some(activation);
        normalize(context, &Forward { size, x, moments, weight, bias, residual: None, y, epsilon, activation });
        let gate = if recomputed { Gate::Recomputed { weight, bias } } else { Gate::Stored(y) };
        let g = Gradient { size, dy, x, moments, gate: activation.map(|r| (r, gate)), epsilon };
        reduce(context, &g, dbias, dweight);
        backward(context, &g, weight, Some((dbias, dweight, size.rows)), dx, None);
        backward(context, &g, weight, None, constant_dx, None);
    }
    let activations = activations[1..].iter().flatten().map(|value| value.get());
    sums[2..].iter().flatten().copied().chain(activations).map(f32::to_bits).collect()
}

fn check_gates<E: Element>(rows: usize, channels: usize, activation: Activation) {
    let n = rows * channels;
    // Results around 0 and 6, normal and denormal: in bf16 rounding decides at both limits.
    let at =
        |channel: usize| [(1.0, 0.0), (1e-38, 0.0), (1e-38, 1e-38), (0.03, 6.0), (0.0, 0.0), (-4.0, 3.0)][channel % 6];
    let (weight, bias) = (0..channels).map(at).unzip();
    let operands = [noise(1, n), noise(2, n), weight, bias];
    let size = Rows { rows, channels };
    for isa in available() {
        let [stored, recomputed] = [false, true].map(|by| gradients::<E>(isa, size, activation, &operands, by));
        assert_eq!(stored, recomputed, "{isa} {} {rows}x{channels}", E::DTYPE);
    }
}

#[test]
fn recomputed_gates_equal_stored_ones() {
    for activation in [Activation::Relu, Activation::Relu6] {
        for (rows, channels) in [(500, 64), (301, 37), (7, 3)] {
            check_gates::<f32>(rows, channels, activation);
            check_gates::<enmasse_tensor::Bf16>(rows, channels, activation);
        }
    }
}

#[test]
fn running_statistics() {
    let mean = [2.0f32, -1.0];
    let variance = [3.0f32, 6.0];
    let moments = Moments { mean: Region::of(&mean), variance: Region::of(&variance) };
    let mut share = [0.0; 4];
    // SAFETY: live buffers of the right sizes.
    unsafe { running_share(moments, 4, 2, Region::of_mut(&mut share)) };
    assert_near("share", &share, &[1.0, -0.5, 2.0, 4.0], 1e-7);
    let mut running = [10.0f32, 20.0];
    // SAFETY: as above.
    unsafe { running_update(Region::of(&share[..2]), Region::of_mut(&mut running), 0.1) };
    assert_near("running", &running, &[9.1, 17.95], 1e-7);
}
