//! Layer norm over the last dimension, and its gradients.

use enmasse_graph::ops::{LayerNorm, LayerNormBackward, LayerNormReduce};

/// The result, and the mean and `1 / sqrt(variance + epsilon)` of each row.
pub fn forward(x: &[f64], weight: &[f64], bias: &[f64], epsilon: f32) -> [Vec<f64>; 3] {
    let channels = weight.len();
    let count = channels as f64;
    let mean: Vec<f64> = x.chunks(channels).map(|row| row.iter().sum::<f64>() / count).collect();
    let inverse_std = |(row, mean): (&[f64], &f64)| {
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        1.0 / (variance + f64::from(epsilon)).sqrt()
    };
    let inverse_std: Vec<f64> = x.chunks(channels).zip(&mean).map(inverse_std).collect();
    let normalized = normalized(x, &mean, &inverse_std);
    let y = normalized.iter().enumerate().map(|(i, z)| z * weight[i % channels] + bias[i % channels]).collect();
    [y, mean, inverse_std]
}

each_shard!(LayerNorm, |LayerNorm { epsilon }, _, [x, weight, bias]| forward(x, weight, bias, *epsilon).into());

/// `(x - mean) * inverse_std`.
fn normalized(x: &[f64], mean: &[f64], inverse_std: &[f64]) -> Vec<f64> {
    let channels = x.len() / mean.len();
    x.iter().enumerate().map(|(i, x)| (x - mean[i / channels]) * inverse_std[i / channels]).collect()
}

/// The gradient of x.
pub fn backward(dy: &[f64], x: &[f64], mean: &[f64], inverse_std: &[f64], weight: &[f64]) -> Vec<f64> {
    let channels = weight.len();
    let normalized = normalized(x, mean, inverse_std);
    let row = |((dy, normalized), inverse_std): ((&[f64], &[f64]), &f64)| {
        let weighted: Vec<f64> = dy.iter().zip(weight).map(|(dy, weight)| dy * weight).collect();
        let sum: f64 = weighted.iter().sum();
        let product: f64 = weighted.iter().zip(normalized).map(|(g, z)| g * z).sum();
        let count = channels as f64;
        weighted.iter().zip(normalized).map(|(g, z)| inverse_std * (g - sum / count - z * product / count)).collect()
    };
    dy.chunks(channels).zip(normalized.chunks(channels)).zip(inverse_std).flat_map::<Vec<f64>, _>(row).collect()
}

each_shard!(LayerNormBackward, |_, _, [dy, x, mean, inverse_std, weight]| {
    vec![backward(dy, x, mean, inverse_std, weight)]
});

/// The gradients of bias and weight.
pub fn reduce(dy: &[f64], x: &[f64], mean: &[f64], inverse_std: &[f64]) -> [Vec<f64>; 2] {
    let channels = x.len() / mean.len();
    let (mut dbias, mut dweight) = (vec![0.0; channels], vec![0.0; channels]);
    for (i, (dy, z)) in dy.iter().zip(normalized(x, mean, inverse_std)).enumerate() {
        dbias[i % channels] += dy;
        dweight[i % channels] += dy * z;
    }
    [dbias, dweight]
}

each_shard!(LayerNormReduce, |_, _, [dy, x, mean, inverse_std]| reduce(dy, x, mean, inverse_std).into());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::assert_close;

    #[test]
    fn two_rows_by_hand() {
        // Rows of mean 4 and variance 8, and of mean 1 and variance 0; epsilon 1.
        let x = [0.0, 4.0, 4.0, 8.0, 1.0, 1.0, 1.0, 1.0];
        let weight = [1.0, 2.0, 3.0, 6.0];
        let bias = [0.5, 0.0, 0.0, 1.0];
        let [y, mean, inverse_std] = forward(&x, &weight, &bias, 1.0);
        assert_close(&mean, &[4.0, 1.0]);
        assert_close(&inverse_std, &[1.0 / 3.0, 1.0]);
        assert_close(&y, &[0.5 - 4.0 / 3.0, 0.0, 0.0, 9.0, 0.5, 0.0, 0.0, 1.0]);
        let dy = [1.0, 0.0, 1.0, 0.5, 0.0, 1.0, 0.0, 0.0];
        let [dbias, dweight] = reduce(&dy, &x, &mean, &inverse_std);
        assert_close(&dbias, &[1.0, 1.0, 1.0, 0.5]);
        assert_close(&dweight, &[-4.0 / 3.0, 0.0, 0.0, 2.0 / 3.0]);
        // Weighted by 1, 2, 3, 6: 1, 0, 3, 3 of mean 7/4, whose product with z has the mean (-4/3 + 4) / 4; and 0, 2, 0, 0.
        let (third, product) = (1.0 / 3.0, 2.0 / 3.0);
        let first = [
            third * (1.0 - 1.75 + 4.0 / 3.0 * product),
            third * -1.75,
            third * 1.25,
            third * (3.0 - 1.75 - 4.0 / 3.0 * product),
        ];
        let expected = [first, [-0.5, 1.5, -0.5, -0.5]].concat();
        assert_close(&backward(&dy, &x, &mean, &inverse_std, &weight), &expected);
    }
}
