//! The sum over classes, and its gradient.

use enmasse_graph::ops::{SumClasses, SumClassesBackward};

/// `[N,K]` to `[N]`: the sum over classes.
pub fn sum_classes(x: &[f64], classes: usize) -> Vec<f64> {
    x.chunks(classes).map(|row| row.iter().sum()).collect()
}

each_shard!(SumClasses, |_, call, [x]| vec![sum_classes(x, call.last(0))]);

/// `[N]` to `[N,K]`: the sample's gradient at every class.
pub fn sum_classes_backward(dy: &[f64], classes: usize) -> Vec<f64> {
    dy.iter().flat_map(|&dy| std::iter::repeat_n(dy, classes)).collect()
}

each_shard!(SumClassesBackward, |_, call, [dy]| vec![sum_classes_backward(dy, call.classes())]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_by_hand() {
        assert_eq!(sum_classes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3), [6.0, 15.0]);
        assert_eq!(sum_classes_backward(&[1.0, 2.0], 3), [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
    }
}
