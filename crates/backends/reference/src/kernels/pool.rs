//! Max, average and adaptive average pooling, and their gradients.

use enmasse_graph::Window;

use super::window::visit;

/// The largest element of each window, and its tap. The first of equal elements wins. NaN wins over numbers, and the last
/// of several NaN wins, as in PyTorch.
pub fn max(x: &[f64], input: [usize; 4], output: [usize; 4], window: &Window) -> (Vec<f64>, Vec<f64>) {
    let channels = input[3];
    let elements = output.iter().product();
    let (mut y, mut position) = (vec![f64::NEG_INFINITY; elements], vec![0.0; elements]);
    let mut started = vec![false; elements];
    visit(input, output, window, |out_pixel, in_pixel, tap| {
        for c in 0..channels {
            let (at, value) = (out_pixel * channels + c, x[in_pixel * channels + c]);
            // The first element counts even if it is minus infinity, so that no position points at padding.
            if !started[at] || value > y[at] || value.is_nan() {
                (y[at], position[at], started[at]) = (value, tap as f64, true);
            }
        }
    });
    (y, position)
}

/// Adds each `dy` to the winner of its window.
pub fn max_backward(dy: &[f64], position: &[f64], input: [usize; 4], output: [usize; 4], window: &Window) -> Vec<f64> {
    let channels = input[3];
    let mut dx = vec![0.0; input.iter().product()];
    visit(input, output, window, |out_pixel, in_pixel, tap| {
        for c in 0..channels {
            let at = out_pixel * channels + c;
            if position[at] == tap as f64 {
                dx[in_pixel * channels + c] += dy[at];
            }
        }
    });
    dx
}

/// Adds the channels of a pixel, divided by a number, to those of another tensor's pixel.
fn add_share(to: &mut [f64], to_pixel: usize, from: &[f64], from_pixel: usize, channels: usize, divisor: f64) {
    let from = &from[from_pixel * channels..][..channels];
    to[to_pixel * channels..].iter_mut().zip(from).for_each(|(to, from)| *to += from / divisor);
}

/// The sum of each window divided by the number of its taps, including those on padding.
pub fn average(x: &[f64], input: [usize; 4], output: [usize; 4], window: &Window) -> Vec<f64> {
    let taps = (window.kernel[0] * window.kernel[1]) as f64;
    let mut y = vec![0.0; output.iter().product()];
    visit(input, output, window, |out_pixel, in_pixel, _| add_share(&mut y, out_pixel, x, in_pixel, input[3], taps));
    y
}

/// Adds each `dy`, divided by the number of taps, to every element of its window.
pub fn average_backward(dy: &[f64], input: [usize; 4], output: [usize; 4], window: &Window) -> Vec<f64> {
    let taps = (window.kernel[0] * window.kernel[1]) as f64;
    let mut dx = vec![0.0; input.iter().product()];
    visit(input, output, window, |out_pixel, in_pixel, _| add_share(&mut dx, in_pixel, dy, out_pixel, input[3], taps));
    dx
}

/// Output i of n averages inputs `floor(i * size / n) .. ceil((i + 1) * size / n)` along each axis.
pub fn adaptive_average(x: &[f64], input: [usize; 4], output: [usize; 4]) -> Vec<f64> {
    let mut y = vec![0.0; output.iter().product()];
    visit_adaptive(input, output, |out_pixel, in_pixel, count| {
        add_share(&mut y, out_pixel, x, in_pixel, input[3], count);
    });
    y
}

/// Adds each `dy`, divided by the size of its region, to every element of the region.
pub fn adaptive_average_backward(dy: &[f64], input: [usize; 4], output: [usize; 4]) -> Vec<f64> {
    let mut dx = vec![0.0; input.iter().product()];
    visit_adaptive(input, output, |out_pixel, in_pixel, count| {
        add_share(&mut dx, in_pixel, dy, out_pixel, input[3], count);
    });
    dx
}

/// Calls `visit(output pixel, input pixel, pixels in the region)` for every pixel of every output's region.
fn visit_adaptive(input: [usize; 4], output: [usize; 4], mut visit: impl FnMut(usize, usize, f64)) {
    let region = |i: usize, size: usize, n: usize| (i * size / n)..((i + 1) * size).div_ceil(n);
    for n in 0..output[0] {
        for oy in 0..output[1] {
            for ox in 0..output[2] {
                let (rows, columns) = (region(oy, input[1], output[1]), region(ox, input[2], output[2]));
                let count = (rows.len() * columns.len()) as f64;
                for iy in rows {
                    for ix in columns.clone() {
                        let out_pixel = (n * output[1] + oy) * output[2] + ox;
                        visit(out_pixel, (n * input[1] + iy) * input[2] + ix, count);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::assert_close;
    use super::*;

    fn window(kernel: usize, stride: usize, padding: usize, dilation: usize) -> Window {
        Window { kernel: [kernel; 2], stride: [stride; 2], padding: [padding; 2], dilation: [dilation; 2] }
    }

    const NINE: [f64; 9] = [1., 9., 3., 4., 5., 6., 7., 8., 2.];
    const THREE: [usize; 4] = [1, 3, 3, 1];
    const TWO: [usize; 4] = [1, 2, 2, 1];

    #[test]
    fn max_by_hand() {
        let check = |x: &[f64], input, output, window, y: &[f64], position: &[f64]| {
            assert_eq!(max(x, input, output, &window), (y.to_vec(), position.to_vec()));
        };
        check(&NINE, THREE, TWO, window(2, 1, 0, 1), &[9., 9., 8., 8.], &[1., 0., 3., 2.]);
        // Padding is minus infinity, and its taps count in the numbering.
        check(&NINE, THREE, TWO, window(2, 2, 1, 1), &[1., 9., 7., 8.], &[3., 2., 3., 2.]);
        check(&NINE, THREE, [1, 1, 1, 1], window(2, 1, 0, 2), &[7.], &[2.]);
        // The first of equal elements wins, even if all are minus infinity.
        check(&[5.; 4], TWO, [1, 1, 1, 1], window(2, 1, 0, 1), &[5.], &[0.]);
        let lowest = f64::NEG_INFINITY;
        check(&[lowest; 4], TWO, TWO, window(2, 2, 1, 1), &[lowest; 4], &[3., 2., 1., 0.]);
        // Channels are independent.
        check(
            &[1., 4., 3., 2.],
            [1, 1, 2, 2],
            [1, 1, 1, 2],
            Window { kernel: [1, 2], ..window(1, 1, 0, 1) },
            &[3., 4.],
            &[1., 0.],
        );
    }

    #[test]
    fn max_of_nan_is_nan() {
        let (y, position) = max(&[1., f64::NAN, 3., 4.], TWO, [1, 1, 1, 1], &window(2, 1, 0, 1));
        assert!(y[0].is_nan());
        assert_eq!(position, [1.]);
    }

    #[test]
    fn max_gradient_by_hand() {
        let dx = max_backward(&[1., 10., 100., 1000.], &[1., 0., 3., 2.], THREE, TWO, &window(2, 1, 0, 1));
        assert_eq!(dx, [0., 11., 0., 0., 0., 0., 0., 1100., 0.]);
        let dx = max_backward(&[1., 10., 100., 1000.], &[3., 2., 3., 2.], THREE, TWO, &window(2, 2, 1, 1));
        assert_eq!(dx, [1., 10., 0., 0., 0., 0., 100., 1000., 0.]);
    }

    #[test]
    fn average_by_hand() {
        assert_eq!(average(&NINE, THREE, TWO, &window(2, 1, 0, 1)), [4.75, 5.75, 6.0, 5.25]);
        // The divisor includes padding.
        assert_eq!(average(&NINE, THREE, TWO, &window(2, 2, 1, 1)), [0.25, 3.0, 2.75, 5.25]);
        let dx = average_backward(&[4., 8., 12., 16.], THREE, TWO, &window(2, 1, 0, 1));
        assert_eq!(dx, [1., 3., 2., 4., 10., 6., 3., 7., 4.]);
        let dx = average_backward(&[4., 8., 12., 16.], THREE, TWO, &window(2, 2, 1, 1));
        assert_eq!(dx, [1., 2., 2., 3., 4., 4., 3., 4., 4.]);
    }

    #[test]
    fn adaptive_average_by_hand() {
        let check = |x: &[f64], input, output, y: &[f64], dy: &[f64], dx: &[f64]| {
            assert_close(&adaptive_average(x, input, output), y);
            assert_close(&adaptive_average_backward(dy, input, output), dx);
        };
        check(&NINE, THREE, [1, 1, 1, 1], &[5.0], &[9.], &[1.; 9]);
        // Three to two: regions 0..2 and 1..3 overlap.
        check(&NINE, THREE, TWO, &[4.75, 5.75, 6.0, 5.25], &[4., 8., 12., 16.], &[1., 3., 2., 4., 10., 6., 3., 7., 4.]);
        // Two to three: regions 0..1, 0..2, 1..2.
        check(&[2., 4.], [1, 1, 2, 1], [1, 1, 3, 1], &[2., 3., 4.], &[1., 10., 100.], &[6., 105.]);
        check(&NINE, THREE, THREE, &NINE, &NINE, &NINE);
    }
}
