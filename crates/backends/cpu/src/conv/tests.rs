//! Convolutions against plain loops in f64, over odd sizes and on every level of this machine.

use std::ops::Range;

use enmasse_graph::Window;
use enmasse_graph::ops::Conv2d;
use enmasse_tensor::Bf16;
use proptest::prelude::*;

use super::*;
use crate::element::Element;
use crate::guard::{Edge, Guarded, GuardedContext};
use crate::isa::Isa;
use crate::region::Region;
use crate::statistics::{Moments, statistics_of_pieces, workspace_of_places};
use crate::sweep::Rows;
use crate::test_support::{assert_near, available, noise};
use crate::workspace::{Context, Workspace};

/// Calls `visit(x index, w indices, y indices)` for all products of the convolution: those of one input with the outputs
/// of its group, which lie side by side, in one call.
fn for_each_matmul(shape: &ConvShape, mut visit: impl FnMut(usize, Range<usize>, Range<usize>)) {
    let (window, groups) = (&shape.conv.window, shape.conv.groups);
    let ([h, w, c], [oh, ow, oc]) = (shape.input, shape.output);
    let (inputs, outputs) = (c / groups, oc / groups);
    for (n, oy, ox) in (0..shape.batch * oh * ow).map(|i| (i / (oh * ow), i / ow % oh, i % ow)) {
        for (ky, kx) in (0..window.kernel[0] * window.kernel[1]).map(|t| (t / window.kernel[1], t % window.kernel[1])) {
            let y = (oy * window.stride[0] + ky * window.dilation[0]).wrapping_sub(window.padding[0][0]);
            let x = (ox * window.stride[1] + kx * window.dilation[1]).wrapping_sub(window.padding[1][0]);
            if y >= h || x >= w {
                continue;
            }
            for (group, i) in (0..groups).flat_map(|group| (0..inputs).map(move |i| (group, i))) {
                let from = ((n * h + y) * w + x) * c + group * inputs + i;
                let weight = ((ky * window.kernel[1] + kx) * inputs + i) * oc + group * outputs;
                let to = ((n * oh + oy) * ow + ox) * oc + group * outputs;
                visit(from, weight..weight + outputs, to..to + outputs);
            }
        }
    }
}

fn elements(batch: usize, size: [usize; 3]) -> usize {
    batch * size.iter().product::<usize>()
}

/// A copy of values as elements.
fn operand<E: Element>(edge: Edge, values: &[f32]) -> Guarded<E> {
    Guarded::new(edge, &values.iter().map(|&value| E::of(value)).collect::<Vec<E>>())
}

fn values<E: Element>(elements: &[E]) -> Vec<f32> {
    elements.iter().map(|element| element.get()).collect()
}

/// A convolution in one direction: source, weights, result.
type Directed<E> = Box<dyn Fn(&mut Context, Region<E>, Region<f32>, Region<E>, Start<E>)>;
/// The same with the statistics of the result.
type WithStatistics<E> = Box<dyn Fn(&mut Context, Region<E>, Region<f32>, Region<E>, Start<E>, Moments)>;
/// x, dy, dw.
type Gradient<E> = Box<dyn Fn(&mut Context, Region<E>, Region<E>, Region<f32>)>;

/// The directions of a layer by one algorithm.
struct Algorithm<E> {
    name: &'static str,
    /// Relative to the largest value in f32, to the root mean square in bf16.
    tolerance: f64,
    workspace: Workspace,
    forward: Directed<E>,
    statistics: WithStatistics<E>,
    backward: Directed<E>,
    gradient: Gradient<E>,
}

macro_rules! algorithm {
    ($name:literal, $shape:expr, $isa:expr, $limits:expr, $conv:ty, $back:ty, $gradient:ty) => {{
        let forward = <$conv>::new($shape, $isa, false);
        let backward = <$back>::new($shape, $isa, true);
        let gradient = <$gradient>::new($shape, $isa);
        let counted = <$conv>::new($shape, $isa, false);
        let Workspace { shared, private } = forward.workspace();
        let [height, width, channels] = $shape.output;
        let size = Rows { rows: $shape.batch * height * width, channels };
        let kept = workspace_of_places(counted.places(), channels);
        let with_places = Workspace { shared: shared + kept, private };
        Algorithm {
            name: $name,
            tolerance: $limits[E::PER_WORD - 1],
            workspace: with_places.max(backward.workspace()).max(gradient.workspace()),
            // SAFETY: here and below, every region is a live buffer of the shape's size.
            forward: Box::new(move |c, x, w, y, start| unsafe { forward.run(c, x, w, y, start, None) }),
            statistics: Box::new(move |c, x, w, y, start, moments| {
                let kept = c.shared.part(shared, kept);
                // SAFETY: as above.
                unsafe {
                    statistics_of_pieces(c, size, y, moments, kept, |c, epilogue| {
                        counted.run(c, x, w, y, start, Some(epilogue));
                    });
                }
            }),
            // SAFETY: as above.
            backward: Box::new(move |c, dy, w, dx, start| unsafe { backward.run(c, dy, w, dx, start, None) }),
            // SAFETY: as above.
            gradient: Box::new(move |c, x, dy, dw| unsafe { gradient.run(c, x, dy, dw) }),
        }
    }};
}

fn matmuls<E: Element>(shape: &ConvShape, isa: Isa) -> Algorithm<E> {
    const LIMITS: [f64; 2] = [1e-5, 5e-3];
    match (pairs(shape, false), pairs(shape, true)) {
        (true, true) => algorithm!("matmuls", shape, isa, LIMITS, Gather<E, E>, Gather<E, E>, WeightGradient<E>),
        (true, _) => algorithm!("matmuls", shape, isa, LIMITS, Gather<E, E>, Gather<E, f32>, WeightGradient<E>),
        (_, true) => algorithm!("matmuls", shape, isa, LIMITS, Gather<E, f32>, Gather<E, E>, WeightGradient<E>),
        _ => algorithm!("matmuls", shape, isa, LIMITS, Gather<E, f32>, Gather<E, f32>, WeightGradient<E>),
    }
}

fn in_groups<E: Element>(shape: &ConvShape, isa: Isa) -> Algorithm<E> {
    algorithm!("groups", shape, isa, [1e-5, 5e-3], Grouped, Grouped, GroupedGradient)
}

fn winograd<E: Element>(shape: &ConvShape, isa: Isa) -> Algorithm<E> {
    algorithm!("winograd", shape, isa, [2e-5, 1.5e-2], Winograd<E>, Winograd<E>, WinogradGradient<E>)
}

/// The expected values of a result, and the magnitude of the terms that are summed.
#[derive(Clone)]
struct Expected {
    values: Vec<f64>,
    squares: Vec<f64>,
}

impl Expected {
    fn new(start: impl Iterator<Item = f64>) -> Self {
        let values: Vec<f64> = start.collect();
        Expected { squares: values.iter().map(|v| v * v).collect(), values }
    }

    fn add(&mut self, at: usize, term: f64) {
        self.values[at] += term;
        self.squares[at] += term * term;
    }

    /// Root mean square of the results, or of the terms where they cancel each other, because their rounding remains.
    fn scale(&self) -> f64 {
        let squares = self.squares.iter().zip(&self.values).map(|(s, v)| s.max(v * v)).sum::<f64>();
        (squares / self.values.len() as f64).sqrt().max(1e-30)
    }

    /// Checks the largest error in f32, the root mean square in bf16. `rounded`: number of values in the smallest operand.
    #[track_caller]
    fn check<E: Element>(&self, what: &str, found: &[f32], tolerance: f64, rounded: usize) {
        if E::PER_WORD == 1 {
            // Rounding depends on the largest term, not on the sum that is left.
            let largest = self.values.iter().fold(1e-30f64, |m, v| m.max(v.abs())).max(self.scale());
            let rescaled = tolerance * largest / self.values.iter().fold(1e-30f64, |m, v| m.max(v.abs()));
            return assert_near(what, found, &self.values, rescaled);
        }
        let error = root_mean_square(found, &self.values) / self.scale();
        // Few rounded values scatter more widely than many.
        let few = 1.0 + 6.0 / (rounded as f64).sqrt();
        assert!(error <= tolerance * few, "{what}: error {error:.1e}");
    }
}

fn root_mean_square(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let squares: f64 = found.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    (squares / found.len().max(1) as f64).sqrt()
}

fn check(shape: &ConvShape) {
    let long = test_support::time();
    check_stored::<f32>(shape, long);
    check_stored::<Bf16>(shape, long);
}

/// `long`: also with three threads.
fn check_stored<E: Element>(shape: &ConvShape, long: bool) {
    let window = &shape.conv.window;
    let weights = window.kernel[0] * window.kernel[1] * shape.input[2] / shape.conv.groups * shape.output[2];
    let stored = |key, n| noise(key, n).into_iter().map(|value| E::of(value).get()).collect::<Vec<f32>>();
    let x = stored(1, elements(shape.batch, shape.input));
    let w = noise(2, weights);
    let dy = stored(3, elements(shape.batch, shape.output));
    let bias = noise(4, shape.output[2]);
    let base = stored(5, x.len());
    let mut y64 = Expected::new((0..dy.len()).map(|i| f64::from(bias[i % shape.output[2]])));
    let mut dx64 = Expected::new(x.iter().map(|_| 0.0));
    let mut dw64 = Expected::new(w.iter().map(|_| 0.0));
    for_each_matmul(shape, |i, k, o| {
        let x = f64::from(x[i]);
        for (k, o) in k.zip(o) {
            let (w, dy) = (f64::from(w[k]), f64::from(dy[o]));
            y64.add(o, x * w);
            dx64.add(i, dy * w);
            dw64.add(k, dy * x);
        }
    });
    let rounded = x.len().min(w.len()).min(dy.len());
    let mut based = dx64.clone();
    base.iter().enumerate().for_each(|(i, &base)| based.add(i, base.into()));
    let algorithms = |isa| {
        let grouped = grouped::applies(shape, isa).then(|| in_groups::<E>(shape, isa));
        let winograd = winograd::applies(shape).then(|| winograd::<E>(shape, isa));
        [Some(matmuls::<E>(shape, isa)), grouped, winograd]
    };
    for (isa, algorithm) in available().flat_map(|isa| algorithms(isa).into_iter().flatten().map(move |a| (isa, a))) {
        let Algorithm { name, tolerance, workspace, forward, statistics, backward, gradient } = algorithm;
        let name = |what: &str| format!("{isa} {} {name} {what} {shape:?}", E::DTYPE);
        let run = |threads| {
            let edge = Edge::BOTH[threads % 2];
            let context = &mut GuardedContext::new(edge, threads, isa, workspace);
            let [x, from] = [&x, &dy].map(|values| operand::<E>(edge, values));
            let [w, bias] = [&w, &bias].map(|values| operand::<f32>(edge, values));
            let [mut y, mut unbased] = [dy.len(), base.len()].map(|len| Guarded::filled(edge, E::of(f32::NAN), len));
            let mut dx = operand::<E>(edge, &base);
            let mut dw = Guarded::filled(edge, f32::NAN, weights);
            let x = Region::of(&x);
            let w = Region::of(&w);
            let from = Region::of(&from);
            let over = Region::of_mut(&mut dx);
            forward(context, x, w, Region::of_mut(&mut y), Start::Bias(Region::of(&bias)));
            // Far from zero, so that squares would cancel.
            let far = operand::<f32>(edge, &bias.iter().map(|bias| bias + 100.0).collect::<Vec<_>>());
            let [mut alone, mut counted] = [(); 2].map(|()| Guarded::filled(edge, E::of(f32::NAN), dy.len()));
            let [mut mean, mut variance] = [(); 2].map(|()| Guarded::filled(edge, f32::NAN, bias.len()));
            let start = Start::Bias(Region::of(&far));
            let moments = Moments { mean: Region::of_mut(&mut mean), variance: Region::of_mut(&mut variance) };
            forward(context, x, w, Region::of_mut(&mut alone), start);
            statistics(context, x, w, Region::of_mut(&mut counted), start, moments);
            assert_eq!(values(&counted), values(&alone), "{}", name("with statistics"));
            check_moments(&name("statistics"), &values(&counted), &mean, &variance);
            backward(context, from, w, over, Start::Base(over));
            backward(context, from, w, Region::of_mut(&mut unbased), Start::Zero);
            gradient(context, x, from, Region::of_mut(&mut dw));
            (values(&y), values(&dx), values(&dw), values(&unbased), [mean.to_vec(), variance.to_vec()])
        };
        let (y, dx, dw, unbased, moments) = run(1);
        y64.check::<E>(&name("forward"), &y, tolerance, rounded);
        based.check::<E>(&name("backward data"), &dx, tolerance, rounded);
        dw64.check::<E>(&name("backward weights"), &dw, tolerance, rounded);
        dx64.check::<E>(&name("without base"), &unbased, tolerance, rounded);
        let one = (y, dx, dw, unbased, moments);
        assert!(run(2) == one, "{}: two threads give other bits", name("any direction"));
        assert!(!long || run(3) == one, "{}: three threads give other bits", name("any direction"));
    }
}

/// Compares mean and variance of each channel with those of the stored values.
fn check_moments(what: &str, y: &[f32], mean: &[f32], variance: &[f32]) {
    let channels = mean.len();
    let rows = (y.len() / mean.len()) as f64;
    let of = |c: usize| y.iter().skip(c).step_by(channels).map(|&y| f64::from(y));
    let means: Vec<f64> = (0..channels).map(|c| of(c).sum::<f64>() / rows).collect();
    let exact: Vec<f64> =
        means.iter().enumerate().map(|(c, mean)| of(c).map(|y| (y - mean).powi(2)).sum::<f64>() / rows).collect();
    let largest = exact.iter().copied().fold(1e-6, f64::max);
    for (found, exact) in mean.iter().zip(means) {
        // The rounding of the mean itself, and that of sums of deviations from a pivot, which may be some std from the mean.
        let bound = 6e-8 * exact.abs() + 2e-6 * largest.sqrt();
        assert!((f64::from(*found) - exact).abs() <= bound, "{what}: mean {found} instead of {exact}");
    }
    for (found, exact) in variance.iter().zip(exact) {
        // Pixels that meet padding alone may come first, and be far from the mean of the others.
        assert!((f64::from(*found) - exact).abs() <= 2e-5 * largest, "{what}: variance {found} instead of {exact}");
    }
}

#[derive(Clone, Copy)]
struct Case(usize, [usize; 2], [usize; 2], [usize; 2], [usize; 2], [[usize; 2]; 2], [usize; 2], usize);

fn shape(case: Case) -> Option<ConvShape> {
    let Case(batch, size, channels, kernel, stride, padding, dilation, groups) = case;
    let window = Window { kernel, stride, padding, dilation };
    let output = [window.output(0, size[0])?, window.output(1, size[1])?, channels[1]];
    let input = [size[0], size[1], channels[0]];
    Some(ConvShape { batch, input, output, conv: Conv2d { window, groups }, normalized: false })
}

#[test]
fn layers_of_resnets() {
    for case in [
        Case(2, [17, 19], [3, 20], [7, 7], [2, 2], [[3; 2]; 2], [1, 1], 1),
        Case(3, [7, 7], [33, 40], [3, 3], [1, 1], [[1; 2]; 2], [1, 1], 1),
        Case(5, [2, 2], [64, 65], [3, 3], [1, 1], [[1; 2]; 2], [1, 1], 1),
        Case(18, [1, 1], [70, 17], [3, 3], [1, 1], [[1; 2]; 2], [1, 1], 1),
        Case(2, [8, 8], [48, 50], [3, 3], [2, 2], [[1; 2]; 2], [1, 1], 1),
        Case(2, [9, 9], [48, 50], [1, 1], [2, 2], [[0; 2]; 2], [1, 1], 1),
        Case(2, [12, 5], [40, 24], [1, 1], [1, 1], [[0; 2]; 2], [1, 1], 1),
        Case(1, [5, 5], [1024, 300], [1, 1], [1, 1], [[0; 2]; 2], [1, 1], 1),
        Case(2, [10, 11], [16, 16], [3, 3], [1, 1], [[1; 2]; 2], [1, 1], 16),
        Case(2, [6, 6], [64, 32], [3, 3], [2, 2], [[1; 2]; 2], [1, 1], 2),
        // Enough pixels to divide the weight gradient into parts.
        Case(3, [40, 41], [5, 34], [3, 3], [1, 1], [[1; 2]; 2], [1, 1], 1),
        Case(1, [11, 9], [5, 7], [3, 3], [1, 1], [[2; 2]; 2], [2, 2], 1),
        // TensorFlow's padding of even sizes.
        Case(2, [16, 18], [3, 20], [3, 3], [2, 2], [[0, 1]; 2], [1, 1], 1),
        Case(2, [8, 8], [48, 50], [5, 5], [2, 2], [[1, 2]; 2], [1, 1], 1),
    ] {
        check(&shape(case).unwrap());
    }
}

#[test]
fn layers_of_many_groups() {
    for case in [
        Case(2, [11, 9], [128, 128], [3, 3], [1, 1], [[1; 2]; 2], [1, 1], 32),
        Case(2, [10, 11], [64, 64], [3, 3], [2, 2], [[1; 2]; 2], [1, 1], 8),
        // Small enough to be treated separately at its borders once groups are blended.
        Case(3, [7, 7], [96, 96], [3, 3], [1, 1], [[1; 2]; 2], [1, 1], 12),
        Case(2, [9, 13], [32, 32], [3, 5], [1, 1], [[1; 2], [2; 2]], [1, 1], 16),
        Case(1, [12, 10], [64, 64], [3, 3], [1, 2], [[1; 2]; 2], [2, 1], 4),
        // Several pieces of channels.
        Case(1, [6, 30], [64, 64], [3, 3], [1, 1], [[1; 2]; 2], [1, 1], 4),
        // Groups that do not fill a panel in any number.
        Case(1, [6, 7], [21, 35], [3, 3], [1, 1], [[1; 2]; 2], [1, 1], 7),
        // Several outputs for each input.
        Case(2, [5, 6], [30, 60], [3, 3], [1, 1], [[1; 2]; 2], [1, 1], 30),
    ] {
        check(&shape(case).unwrap());
    }
}

fn check_winograd(batch: usize, size: [usize; 2], channels: [usize; 2], padding: [[usize; 2]; 2]) {
    check(&shape(Case(batch, size, channels, [3; 2], [1; 2], padding, [1; 2], 1)).unwrap());
}

/// Every way in which Winograd's work is divided, here and in the next test.
#[test]
fn layers_for_winograd() {
    // Blocks of tiles; parts of the weight gradient, with several blocks each.
    check_winograd(3, [14, 13], [70, 50], [[1; 2]; 2]);
    check_winograd(5, [3, 11], [20, 30], [[1; 2]; 2]);
    check_winograd(70, [14, 16], [17, 33], [[1; 2]; 2]);
    check_winograd(6, [16, 14], [140, 40], [[1; 2]; 2]);
    // More padding than taps.
    check_winograd(1, [9, 7], [18, 20], [[5; 2], [3; 2]]);
    check_winograd(2, [9, 7], [18, 20], [[0, 4], [3, 0]]);
}

/// Regression test: the bound of the mean knew nothing of the pivot, which here comes from pixels that meet padding alone.
#[test]
fn a_pivot_far_from_the_mean() {
    check_winograd(3, [12, 15], [130, 160], [[4, 1], [3, 0]]);
}

/// Patches that all threads share: pieces of tiles, columns and depths, and several blocks.
#[test]
fn layers_for_winograd_with_shared_patches() {
    check_winograd(3, [14, 13], [130, 70], [[1; 2]; 2]);
    check_winograd(2, [5, 6], [40, 300], [[1; 2]; 2]);
    check_winograd(1, [36, 36], [2000, 3], [[1; 2]; 2]);
}

#[test]
fn where_winograd_pays() {
    let check = |case, expected| {
        let shape = shape(case).unwrap();
        assert_eq!([winograd::pays::<f32>(&shape), winograd::gradient_pays::<f32>(&shape)], expected, "{shape:?}");
    };
    let layer = |batch, size, channels| Case(batch, [size; 2], channels, [3; 2], [1; 2], [[1; 2]; 2], [1; 2], 1);
    check(layer(16, 56, [64, 64]), [true, true]);
    check(layer(128, 4, [128, 128]), [true, true]);
    check(layer(16, 7, [512, 512]), [true, true]);
    // Most taps of a tiny map meet padding.
    for size in [1, 2] {
        check(layer(128, size, [256, 256]), [false, false]);
    }
    for size in [3, 5, 6] {
        check(layer(128, size, [256, 256]), [true, true]);
        let shape = shape(layer(128, size, [256, 256])).unwrap();
        assert_eq!(winograd::pays::<Bf16>(&shape), size == 6, "bf16, {size}");
    }
    check(layer(16, 3, [512, 512]), [true, false]);
    // One image: transformed weights are used for few tiles.
    check(layer(1, 7, [512, 512]), [true, false]);
    check(layer(1, 4, [512, 512]), [false, false]);
    // The first layer.
    check(layer(16, 224, [3, 64]), [false, false]);
    // Other windows.
    check(Case(16, [56; 2], [64; 2], [3; 2], [2; 2], [[1; 2]; 2], [1; 2], 1), [false, false]);
    check(Case(16, [56; 2], [64; 2], [3; 2], [1; 2], [[2; 2]; 2], [2; 2], 1), [false, false]);
    check(Case(16, [56; 2], [64; 2], [1; 2], [1; 2], [[0; 2]; 2], [1; 2], 1), [false, false]);
    check(Case(16, [56; 2], [64; 2], [3; 2], [1; 2], [[1; 2]; 2], [1; 2], 2), [false, false]);
}

#[test]
fn layers_of_mobile_networks() {
    for case in [
        Case(2, [14, 19], [40, 40], [3, 3], [1, 1], [[1; 2]; 2], [1, 1], 40),
        Case(2, [15, 16], [67, 67], [3, 3], [2, 2], [[1; 2]; 2], [1, 1], 67),
        Case(3, [1, 2], [33, 33], [3, 3], [1, 1], [[1; 2]; 2], [1, 1], 33),
        Case(2, [14, 16], [67, 67], [3, 3], [2, 2], [[0, 1]; 2], [1, 1], 67),
        Case(2, [14, 16], [33, 33], [5, 5], [2, 2], [[1, 2]; 2], [1, 1], 33),
        Case(1, [9, 40], [18, 18], [5, 5], [2, 1], [[2; 2]; 2], [1, 1], 18),
        // Enough rows for several blocks of sums.
        Case(2, [30, 70], [5, 5], [3, 3], [1, 1], [[1; 2]; 2], [1, 1], 5),
        // Blocks of several images; maps smaller than the kernel.
        Case(65, [2, 3], [19, 19], [5, 5], [1, 1], [[2; 2]; 2], [1, 1], 19),
        Case(2, [4, 4], [24, 24], [7, 7], [1, 1], [[3; 2]; 2], [1, 1], 24),
        // Several pieces of channels; bands of rows.
        Case(1, [21, 112], [96, 96], [3, 3], [1, 1], [[1; 2]; 2], [1, 1], 96),
        Case(1, [67, 9], [20, 20], [7, 7], [2, 2], [[3, 2], [1, 4]], [1, 1], 20),
    ] {
        check(&shape(case).unwrap());
    }
}

#[test]
fn a_linear_layer_is_a_convolution_of_single_pixels() {
    check(&ConvShape::linear(37, 1, 19, 10));
    check(&ConvShape::linear(3, 1, 513, 1000));
    check(&ConvShape::linear(3, 50, 64, 35));
    check(&ConvShape::linear(2, 7, 33, 16));
}

/// Paddings of the four sides, each below `end`.
fn sides(end: usize) -> impl Strategy<Value = [[usize; 2]; 2]> {
    [[0..end, 0..end], [0..end, 0..end]]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if test_support::time() { 60 } else { 24 }))]
    #[test]
    fn any_convolution(
        batch in 1usize..4,
        size in [1usize..12, 1usize..12],
        channels in [prop::sample::select(vec![1usize, 3, 5, 17, 33]), prop::sample::select(vec![1usize, 2, 16, 35])],
        kernel in [1usize..5, 1usize..4],
        stride in [1usize..4, 1usize..4],
        padding in sides(3),
        dilation in [1usize..3, 1usize..3],
        groups in 1usize..4,
    ) {
        let channels = [channels[0] * groups, channels[1] * groups];
        if let Some(shape) = shape(Case(batch, size, channels, kernel, stride, padding, dilation, groups)) {
            check(&shape);
        }
    }

    #[test]
    fn any_convolution_of_many_groups(
        batch in 1usize..3,
        size in [1usize..10, 1usize..10],
        channels in [1usize..9, 1usize..9],
        kernel in [1usize..4, 1usize..4],
        stride in [1usize..3, 1usize..3],
        padding in sides(3),
        groups in 2usize..20,
    ) {
        let channels = channels.map(|each| each * groups);
        if let Some(shape) = shape(Case(batch, size, channels, kernel, stride, padding, [1; 2], groups)) {
            check(&shape);
        }
    }

    #[test]
    fn any_winograd_convolution(
        batch in 1usize..5,
        size in [1usize..20, 1usize..20],
        channels in [prop::sample::select(vec![1usize, 5, 16, 33, 130]), prop::sample::select(vec![1usize, 2, 35, 160])],
        padding in sides(5),
    ) {
        if let Some(shape) = shape(Case(batch, size, channels, [3; 2], [1; 2], padding, [1; 2], 1)) {
            check(&shape);
        }
    }

    #[test]
    fn any_depthwise_convolution(
        batch in 1usize..4,
        size in [1usize..24, 1usize..24],
        channels in 2usize..40,
        kernel in [1usize..6, 1usize..8],
        stride in [1usize..4, 1usize..4],
        padding in sides(3),
        dilation in [1usize..3, 1usize..3],
    ) {
        if let Some(shape) = shape(Case(batch, size, [channels; 2], kernel, stride, padding, dilation, channels)) {
            check(&shape);
        }
    }
}

/// The error of a result: in f32 the largest, relative to the largest value; in bf16 the root mean square, relative to
/// that of the values.
fn error<E: Element>(found: &[f32], expected: &[f64]) -> f64 {
    if E::PER_WORD > 1 {
        return root_mean_square(found, expected) / root_mean_square(&vec![0.0; found.len()], expected);
    }
    let scale = expected.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    found.iter().zip(expected).fold(0.0f64, |m, (a, b)| m.max((f64::from(*a) - b).abs())) / scale
}

/// The figures in the documentation of `winograd` and `conv`; shown with `--nocapture`.
fn errors_of_layers<E: Element>(share: f64) {
    let layers: &[_] = if test_support::time() { &[[64, 56], [128, 28], [256, 14], [512, 7]] } else { &[[256, 14]] };
    for &[channels, size] in layers {
        let shape = shape(Case(1, [size; 2], [channels; 2], [3; 2], [1; 2], [[1; 2]; 2], [1; 2], 1)).unwrap();
        let stored = |key, n| noise(key, n).into_iter().map(E::of).collect::<Vec<E>>();
        let x = stored(1, elements(1, shape.input));
        let dy = stored(3, elements(1, shape.output));
        let weights = noise(2, 9 * channels * channels);
        let mut y64 = vec![0.0; dy.len()];
        let mut dx64 = vec![0.0; x.len()];
        let mut dw64 = vec![0.0; weights.len()];
        let value = |element: E| f64::from(element.get());
        for_each_matmul(&shape, |i, k, o| {
            let x = value(x[i]);
            for (k, o) in k.zip(o) {
                y64[o] += x * f64::from(weights[k]);
                dx64[i] += value(dy[o]) * f64::from(weights[k]);
                dw64[k] += value(dy[o]) * x;
            }
        });
        for isa in available() {
            for algorithm in [matmuls::<E>(&shape, isa), winograd(&shape, isa)] {
                let [mut y, mut dx] = [dy.len(), x.len()].map(|len| vec![E::ZERO; len]);
                let mut dw = vec![0.0; weights.len()];
                let context = &mut GuardedContext::new(Edge::Last, 2, isa, algorithm.workspace);
                let w = Region::of(&weights);
                (algorithm.forward)(context, Region::of(&x), w, Region::of_mut(&mut y), Start::Zero);
                (algorithm.backward)(context, Region::of(&dy), w, Region::of_mut(&mut dx), Start::Zero);
                (algorithm.gradient)(context, Region::of(&x), Region::of(&dy), Region::of_mut(&mut dw));
                let [y, dx] = [y, dx].map(|values| values.into_iter().map(E::get).collect::<Vec<f32>>());
                let errors = [error::<E>(&y, &y64), error::<E>(&dx, &dx64), error::<E>(&dw, &dw64)];
                let (dtype, name, [y, dx, dw]) = (E::DTYPE, algorithm.name, errors);
                println!("{channels}@{size} {isa} {dtype} {name}: {y:.1e} {dx:.1e} {dw:.1e}");
                assert!(errors.iter().all(|&error| error < algorithm.tolerance * share), "{errors:?}");
            }
        }
    }
}

#[test]
fn errors_of_layers_in_f32() {
    errors_of_layers::<f32>(0.25);
}

#[test]
fn errors_of_layers_in_bf16() {
    errors_of_layers::<Bf16>(1.0);
}
