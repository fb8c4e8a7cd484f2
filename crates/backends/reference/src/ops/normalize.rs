//! Images: from bytes to the numbers that the first layer takes.

use enmasse_graph::ops::Normalize;

/// `(x / 255 - mean) / std` of images with three channels. The result has the first channels, one for each mean, and then zeros.
pub fn normalize(x: &[f64], mean: &[f32], std: &[f32], channels: usize) -> Vec<f64> {
    let by = || mean.iter().zip(std).map(|(&mean, &std)| (f64::from(mean), f64::from(std)));
    let pixel = |x: &[f64]| -> Vec<f64> {
        let own = x.iter().zip(by()).map(|(x, (mean, std))| (x / 255.0 - mean) / std);
        own.chain(std::iter::repeat(0.0)).take(channels).collect()
    };
    x.chunks(3).flat_map(pixel).collect()
}

each_shard!(Normalize, |Normalize { mean, std }, call, [x]| {
    let [.., channels] = call.output::<4>(0)?;
    vec![normalize(x, mean, std, channels)]
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalize_by_hand() {
        let pixels = [0., 51., 255., 255., 0., 0.];
        let y = |channels| normalize(&pixels, &[0.5, 0.0, 0.25], &[0.5, 0.25, 1.0], channels);
        assert_eq!(y(3), [-1.0, 0.8, 0.75, 1.0, 0.0, -0.25]);
        assert_eq!(y(4), [-1.0, 0.8, 0.75, 0.0, 1.0, 0.0, -0.25, 0.0]);
        assert_eq!(normalize(&pixels, &[0.5], &[0.25], 1), [-2.0, 2.0]);
        assert_eq!(normalize(&pixels, &[0.5], &[0.25], 2), [-2.0, 0.0, 2.0, 0.0]);
    }
}
