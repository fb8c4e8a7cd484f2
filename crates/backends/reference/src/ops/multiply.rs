//! The product of two tensors.

use enmasse_graph::ops::Multiply;

/// `a * b`, element by element.
pub fn multiply(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}

each_shard!(Multiply, |_, _, [a, b]| vec![multiply(a, b)]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiply_by_hand() {
        assert_eq!(multiply(&[3.0, 2.0], &[10.0, -0.5]), [30.0, -1.0]);
    }
}
