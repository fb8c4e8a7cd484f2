//! Convolution (cross-correlation with zero padding) and its two gradients.
//!
//! All three visit the same triples (output pixel, input pixel, tap), and add products of two of (x, w, y) to the third. The
//! weights are first put in an order in which the innermost loop reads neighbours, whichever order the plan stores.

use std::borrow::Cow;
use std::ops::Range;

use enmasse_graph::FilterOrder;
use enmasse_graph::ops::{Conv2d, Conv2dBackwardData, Conv2dBackwardWeights};

use super::Call;
use super::batch_norm::statistics;
use crate::window::visit;

/// Shapes of one convolution.
#[derive(Clone, Copy, Debug)]
pub struct Shapes {
    /// `[batch, height, width, input channels]`.
    pub x: [usize; 4],
    /// Kernel height and width, input channels / groups and output channels, in the order of `filters`.
    pub w: [usize; 4],
    /// `[batch, height, width, output channels]`.
    pub y: [usize; 4],
    /// The order in which `w` is stored.
    pub filters: FilterOrder,
}

impl Shapes {
    /// Input channels / groups of the weights. Further channels of `x` are zeros.
    fn inputs(&self) -> usize {
        match self.filters {
            FilterOrder::Hwio => self.w[2],
            FilterOrder::Ohwi => self.w[3],
        }
    }
}

/// `y[o] = bias + sum over taps and input channels of x * w`.
pub fn forward(x: &[f64], w: &[f64], bias: Option<&[f64]>, shapes: &Shapes, conv: &Conv2d) -> Vec<f64> {
    let mut y = match bias {
        Some(bias) => bias.iter().copied().cycle().take(shapes.y.iter().product()).collect(),
        None => vec![0.0; shapes.y.iter().product()],
    };
    let mut by_input = vec![0.0; w.len()];
    weights(shapes, conv, |stored, at, _| by_input[at] = w[stored]);
    products(shapes, conv, |x_at, w_at, y_at| {
        for (x, w) in x[x_at].iter().zip(by_input[w_at].chunks_exact(y_at.len())) {
            add_scaled(&mut y[y_at.clone()], *x, w);
        }
    });
    y
}

each_shard!(Conv2d, |conv, call, [x, w]| {
    let shapes = Shapes { x: call.input(0)?, w: call.input(1)?, y: call.output(0)?, filters: call.step.plan.filters };
    let y = forward(x, &rounded_weights(call, w), call.rest.first().copied(), &shapes, conv);
    with_statistics(call, y, shapes.y[3])
});

/// A result of so many channels, and its statistics if the node gives them.
pub(super) fn with_statistics(call: &Call, y: Vec<f64>, channels: usize) -> Vec<Vec<f64>> {
    if call.step.node.outputs.len() == 1 {
        return vec![y];
    }
    let (mean, variance) = statistics(&call.stored(0, &y), channels);
    vec![y, mean, variance]
}

/// The gradient of the input, plus `base` if given.
pub fn backward_data(dy: &[f64], w: &[f64], base: Option<&[f64]>, shapes: &Shapes, conv: &Conv2d) -> Vec<f64> {
    let mut dx = base.map_or_else(|| vec![0.0; shapes.x.iter().product()], <[f64]>::to_vec);
    let mut by_output = vec![0.0; w.len()];
    weights(shapes, conv, |stored, _, at| by_output[at] = w[stored]);
    products(shapes, conv, |x_at, w_at, y_at| {
        for (dy, w) in dy[y_at].iter().zip(by_output[w_at].chunks_exact(x_at.len())) {
            add_scaled(&mut dx[x_at.clone()], *dy, w);
        }
    });
    dx
}

each_shard!(Conv2dBackwardData, |Conv2dBackwardData(conv), call, [dy, w]| {
    let shapes = Shapes { x: call.output(0)?, w: call.input(1)?, y: call.input(0)?, filters: call.step.plan.filters };
    vec![backward_data(dy, &rounded_weights(call, w), call.rest.first().copied(), &shapes, conv)]
});

/// The gradient of the weights.
pub fn backward_weights(x: &[f64], dy: &[f64], shapes: &Shapes, conv: &Conv2d) -> Vec<f64> {
    let mut by_input = vec![0.0; shapes.w.iter().product()];
    products(shapes, conv, |x_at, w_at, y_at| {
        for (x, dw) in x[x_at].iter().zip(by_input[w_at].chunks_exact_mut(y_at.len())) {
            add_scaled(dw, *x, &dy[y_at.clone()]);
        }
    });
    let mut dw = vec![0.0; by_input.len()];
    weights(shapes, conv, |stored, at, _| dw[stored] = by_input[at]);
    dw
}

each_shard!(Conv2dBackwardWeights, |Conv2dBackwardWeights(conv), call, [x, dy]| {
    let shapes = Shapes { x: call.input(0)?, w: call.output(0)?, y: call.input(1)?, filters: call.step.plan.filters };
    vec![backward_weights(x, dy, &shapes, conv)]
});

/// The weights as devices round them if they multiply activations of 16 bits, the first operand.
pub(super) fn rounded_weights<'a>(call: &Call, w: &'a [f64]) -> Cow<'a, [f64]> {
    let activations = call.step.plan.value(call.step.node.inputs[0]).dtype;
    call.shard.rounded(activations, w).map_or(Cow::Borrowed(w), Cow::Owned)
}

fn add_scaled(to: &mut [f64], scale: f64, values: &[f64]) {
    to.iter_mut().zip(values).for_each(|(to, value)| *to += scale * value);
}

/// Calls `product(x indices, w indices, y indices)` for the channels of each group at each pair of pixels. Every x is
/// multiplied with every y, or with its weight. The weights of a tap are adjacent: see [`weights`].
fn products(shapes: &Shapes, conv: &Conv2d, mut product: impl FnMut(Range<usize>, Range<usize>, Range<usize>)) {
    let (in_channels, out_channels) = (shapes.x[3], shapes.y[3]);
    let inputs = shapes.inputs();
    let outputs = out_channels / conv.groups;
    let taps: usize = conv.window.kernel.iter().product();
    visit(shapes.x, shapes.y, &conv.window, |out_pixel, in_pixel, tap| {
        for group in 0..conv.groups {
            let x = in_pixel * in_channels + group * inputs;
            let w = (group * taps + tap) * inputs * outputs;
            let y = out_pixel * out_channels + group * outputs;
            product(x..x + inputs, w..w + inputs * outputs, y..y + outputs);
        }
    });
}

/// Calls `weight(stored, by input, by output)` for every weight, with its index as the plan stores it, and in the orders
/// `[group, tap, input, output]` and `[group, tap, output, input]`.
fn weights(shapes: &Shapes, conv: &Conv2d, mut weight: impl FnMut(usize, usize, usize)) {
    let inputs = shapes.inputs();
    let outputs = shapes.y[3] / conv.groups;
    let taps: usize = conv.window.kernel.iter().product();
    for group in 0..conv.groups {
        for output in 0..outputs {
            for tap in 0..taps {
                for input in 0..inputs {
                    let stored = match shapes.filters {
                        FilterOrder::Hwio => (tap * inputs + input) * shapes.y[3] + group * outputs + output,
                        FilterOrder::Ohwi => ((group * outputs + output) * taps + tap) * inputs + input,
                    };
                    let first = (group * taps + tap) * inputs * outputs;
                    weight(stored, first + input * outputs + output, first + output * inputs + input);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use enmasse_graph::Window;

    use super::*;
    use crate::test_support::window;

    fn conv(kernel: [usize; 2], stride: usize, padding: usize, dilation: usize, groups: usize) -> Conv2d {
        Conv2d { window: Window { kernel, ..window(1, stride, padding, dilation) }, groups }
    }

    const NINE: [f64; 9] = [1., 2., 3., 4., 5., 6., 7., 8., 9.];

    #[test]
    fn forward_by_hand() {
        let check = |x: &[f64], w: &[f64], bias: Option<&[f64]>, x_shape, w_shape, y_shape, conv, expected: &[f64]| {
            assert_eq!(
                forward(x, w, bias, &Shapes { x: x_shape, w: w_shape, y: y_shape, filters: FilterOrder::Hwio }, &conv),
                expected
            );
        };
        let (one, two) = ([1, 3, 3, 1], [2, 2, 1, 1]);
        // 1*1 + 2*2 + 3*4 + 4*5 = 37, and so on.
        check(&NINE, &[1., 2., 3., 4.], None, one, two, [1, 2, 2, 1], conv([2, 2], 1, 0, 1, 1), &[37., 47., 67., 77.]);
        let biased: &[f64] = &[38., 48., 68., 78.];
        check(&NINE, &[1., 2., 3., 4.], Some(&[1.]), one, two, [1, 2, 2, 1], conv([2, 2], 1, 0, 1, 1), biased);
        // Padding 1, stride 2: the windows hold 1, 2, 2 and 4 elements of the image.
        let padded: &[f64] = &[4. * 1., 3. * 2. + 4. * 3., 2. * 4. + 4. * 7., 1. * 5. + 2. * 6. + 3. * 8. + 4. * 9.];
        check(&NINE, &[1., 2., 3., 4.], None, one, two, [1, 2, 2, 1], conv([2, 2], 2, 1, 1, 1), padded);
        // Dilation 2: the corners 1, 3, 7, 9.
        check(&NINE, &[1., 2., 3., 4.], None, one, two, [1, 1, 1, 1], conv([2, 2], 1, 0, 2, 1), &[64.]);
        // Two inputs to three outputs at one pixel: w[input][output].
        let pointwise = conv([1, 1], 1, 0, 1, 1);
        let expected: &[f64] = &[2. + 3. * 10., 4. + 3. * 20., 6. + 3. * 30.];
        check(
            &[2., 3.],
            &[1., 2., 3., 10., 20., 30.],
            None,
            [1, 1, 1, 2],
            [1, 1, 2, 3],
            [1, 1, 1, 3],
            pointwise,
            expected,
        );
        // Two groups of one input and two outputs each.
        let grouped = conv([1, 1], 1, 0, 1, 2);
        check(
            &[2., 3.],
            &[1., 2., 3., 4.],
            None,
            [1, 1, 1, 2],
            [1, 1, 1, 4],
            [1, 1, 1, 4],
            grouped,
            &[2., 4., 9., 12.],
        );
        // A kernel that is not square: 1x2, on two images of 1x2.
        let wide = conv([1, 2], 1, 0, 1, 1);
        check(&[1., 2., 3., 4.], &[10., 1.], None, [2, 1, 2, 1], [1, 2, 1, 1], [2, 1, 1, 1], wide, &[12., 34.]);
    }

    #[test]
    fn gradients_by_hand() {
        let shapes = Shapes { x: [1, 3, 3, 1], w: [2, 2, 1, 1], y: [1, 2, 2, 1], filters: FilterOrder::Hwio };
        let w = [1., 2., 3., 4.];
        let dy = [1., 10., 100., 1000.];
        let window = conv([2, 2], 1, 0, 1, 1);
        let dx = [1., 12., 20., 103., 1234., 2040., 300., 3400., 4000.];
        assert_eq!(backward_data(&dy, &w, None, &shapes, &window), dx);
        assert_eq!(backward_data(&dy, &w, Some(&[0.5; 9]), &shapes, &window), dx.map(|v| v + 0.5));
        // dw[0,0] = 1*1 + 10*2 + 100*4 + 1000*5.
        assert_eq!(backward_weights(&NINE, &dy, &shapes, &window), [5421., 6532., 8754., 9865.]);
    }

    #[test]
    fn gradients_by_hand_with_groups() {
        let shapes = Shapes { x: [1, 1, 1, 2], w: [1, 1, 1, 4], y: [1, 1, 1, 4], filters: FilterOrder::Hwio };
        let x = [2., 3.];
        let w = [1., 2., 3., 4.];
        let dy = [1., 10., 100., 1000.];
        let grouped = conv([1, 1], 1, 0, 1, 2);
        assert_eq!(backward_data(&dy, &w, None, &shapes, &grouped), [21., 4300.]);
        assert_eq!(backward_weights(&x, &dy, &shapes, &grouped), [2., 20., 300., 3000.]);
    }
}
