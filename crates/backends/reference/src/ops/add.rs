//! The sum of two tensors.

use enmasse_graph::ops::Add;

/// `a + b`.
pub fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

each_shard!(Add, |_, _, [a, b]| vec![add(a, b)]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn add_by_hand() {
        assert_eq!(add(&[1.0, 2.0], &[10.0, 20.0]), [11.0, 22.0]);
    }
}
