//! Max pooling, and its gradient.

use enmasse_graph::Window;
use enmasse_graph::ops::{MaxPool, MaxPoolBackward};

use crate::window::visit_elements;

/// The largest element of each window, and its tap. The first of equal elements wins. NaN wins over numbers, and the last
/// of several NaN wins, as in PyTorch.
pub fn max(x: &[f64], input: [usize; 4], output: [usize; 4], window: &Window) -> (Vec<f64>, Vec<f64>) {
    let elements = output.iter().product();
    let mut y = vec![f64::NEG_INFINITY; elements];
    let mut position = vec![0.0; elements];
    let mut started = vec![false; elements];
    visit_elements(input, output, window, |to, from, tap| {
        // The first element counts even if it is minus infinity, so that no position points at padding.
        if !started[to] || x[from] > y[to] || x[from].is_nan() {
            (y[to], position[to], started[to]) = (x[from], tap as f64, true);
        }
    });
    (y, position)
}

each_shard!(MaxPool, |MaxPool(window), call, [x]| {
    let (y, position) = max(x, call.input(0)?, call.output(0)?, window);
    vec![y, position]
});

/// Adds each `dy` to the winner of its window.
pub fn max_backward(dy: &[f64], position: &[f64], input: [usize; 4], output: [usize; 4], window: &Window) -> Vec<f64> {
    let mut dx = vec![0.0; input.iter().product()];
    visit_elements(input, output, window, |from, to, tap| {
        if position[from] == tap as f64 {
            dx[to] += dy[from];
        }
    });
    dx
}

each_shard!(MaxPoolBackward, |MaxPoolBackward(window), call, [dy, position]| {
    vec![max_backward(dy, position, call.output(0)?, call.input(0)?, window)]
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{NINE, THREE, TWO, window};

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
}
