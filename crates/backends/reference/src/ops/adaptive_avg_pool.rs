//! Average pooling to a given size, and its gradient.

use enmasse_graph::ops::{AdaptiveAvgPool, AdaptiveAvgPoolBackward};

/// Output i of n averages inputs `floor(i * size / n) .. ceil((i + 1) * size / n)` along each axis.
pub fn adaptive_average(x: &[f64], input: [usize; 4], output: [usize; 4]) -> Vec<f64> {
    let mut y = vec![0.0; output.iter().product()];
    visit_elements(input, output, |to, from, count| y[to] += x[from] / count);
    y
}

each_shard!(AdaptiveAvgPool, |_, call, [x]| vec![adaptive_average(x, call.input(0)?, call.output(0)?)]);

/// Adds each `dy`, divided by the size of its region, to every element of the region.
pub fn adaptive_average_backward(dy: &[f64], input: [usize; 4], output: [usize; 4]) -> Vec<f64> {
    let mut dx = vec![0.0; input.iter().product()];
    visit_elements(input, output, |from, to, count| dx[to] += dy[from] / count);
    dx
}

each_shard!(AdaptiveAvgPoolBackward, |_, call, [dy]| {
    vec![adaptive_average_backward(dy, call.output(0)?, call.input(0)?)]
});

/// Calls `visit(output element, input element, pixels in the region)` for every element of every output's region.
fn visit_elements(input: [usize; 4], output: [usize; 4], mut visit: impl FnMut(usize, usize, f64)) {
    let channels = input[3];
    let region = |i: usize, size: usize, n: usize| (i * size / n)..((i + 1) * size).div_ceil(n);
    for n in 0..output[0] {
        for oy in 0..output[1] {
            for ox in 0..output[2] {
                let rows = region(oy, input[1], output[1]);
                let columns = region(ox, input[2], output[2]);
                let count = (rows.len() * columns.len()) as f64;
                for iy in rows {
                    for ix in columns.clone() {
                        let to = ((n * output[1] + oy) * output[2] + ox) * channels;
                        let from = ((n * input[1] + iy) * input[2] + ix) * channels;
                        (0..channels).for_each(|c| visit(to + c, from + c, count));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{NINE, THREE, TWO, assert_close};

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
