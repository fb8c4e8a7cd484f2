//! Each class times a factor.

use enmasse_graph::ops::ScaleClasses;

/// Each class times its factor.
pub fn scale_classes(x: &[f64], factors: &[f32]) -> Vec<f64> {
    x.iter().zip(factors.iter().cycle()).map(|(x, &factor)| x * f64::from(factor)).collect()
}

each_shard!(ScaleClasses, |ScaleClasses { factors }, _, [x]| vec![scale_classes(x, factors)]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_by_hand() {
        assert_eq!(scale_classes(&[1.0, 2.0, 3.0, 4.0], &[0.5, -2.0]), [0.5, -4.0, 1.5, -8.0]);
    }
}
