//! Pictures: bytes to the numbers that the first layer takes.

/// `(x / 255 - mean) / deviation` per channel of three.
pub fn normalize(x: &[f64], mean: [f32; 3], deviation: [f32; 3]) -> Vec<f64> {
    let place = |(i, x): (usize, &f64)| (x / 255.0 - f64::from(mean[i % 3])) / f64::from(deviation[i % 3]);
    x.iter().enumerate().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalize_by_hand() {
        let y = normalize(&[0., 51., 255., 255., 0., 0.], [0.5, 0.0, 0.25], [0.5, 0.25, 1.0]);
        assert_eq!(y, [-1.0, 0.8, 0.75, 1.0, 0.0, -0.25]);
    }
}
