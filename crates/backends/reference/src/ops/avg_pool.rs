//! Average pooling, and its gradient.

use enmasse_graph::Window;
use enmasse_graph::ops::{AvgPool, AvgPoolBackward};

use crate::window::visit_elements;

/// The sum of each window divided by the number of its taps, including those on padding.
pub fn average(x: &[f64], input: [usize; 4], output: [usize; 4], window: &Window) -> Vec<f64> {
    let taps = (window.kernel[0] * window.kernel[1]) as f64;
    let mut y = vec![0.0; output.iter().product()];
    visit_elements(input, output, window, |to, from, _| y[to] += x[from] / taps);
    y
}

each_shard!(AvgPool, |AvgPool(window), call, [x]| vec![average(x, call.input(0)?, call.output(0)?, window)]);

/// Adds each `dy`, divided by the number of taps, to every element of its window.
pub fn average_backward(dy: &[f64], input: [usize; 4], output: [usize; 4], window: &Window) -> Vec<f64> {
    let taps = (window.kernel[0] * window.kernel[1]) as f64;
    let mut dx = vec![0.0; input.iter().product()];
    visit_elements(input, output, window, |from, to, _| dx[to] += dy[from] / taps);
    dx
}

each_shard!(AvgPoolBackward, |AvgPoolBackward(window), call, [dy]| {
    vec![average_backward(dy, call.output(0)?, call.input(0)?, window)]
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{NINE, THREE, TWO, window};

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
}
