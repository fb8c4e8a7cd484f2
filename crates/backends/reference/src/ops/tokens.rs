//! Tokens that all samples share, and some of the tokens of each sample.

use std::ops::Range;

use enmasse_graph::ops::{AddTokens, PrependTokens, SelectTokens, SelectTokensBackward, SumTokens};

/// `x` plus the same tokens for each sample.
pub fn add(x: &[f64], tokens: &[f64]) -> Vec<f64> {
    x.iter().zip(tokens.iter().cycle()).map(|(x, token)| x + token).collect()
}

each_shard!(AddTokens, |_, _, [x, tokens]| vec![add(x, tokens)]);

/// The same tokens before those of each of `batch` samples.
pub fn prepend(x: &[f64], tokens: &[f64], batch: usize) -> Vec<f64> {
    x.chunks(x.len() / batch).flat_map(|sample| [tokens, sample].concat()).collect()
}

each_shard!(PrependTokens, |_, call, [x, tokens]| {
    let [batch, ..] = call.input::<3>(0)?;
    vec![prepend(x, tokens, batch)]
});

/// The sum over `batch` samples of the first `elements` of each.
pub fn sum(dy: &[f64], batch: usize, elements: usize) -> Vec<f64> {
    let element = |at: usize| dy.chunks(dy.len() / batch).map(|sample| sample[at]).sum();
    (0..elements).map(element).collect()
}

each_shard!(SumTokens, |_, call, [dy]| {
    let [batch, ..] = call.input::<3>(0)?;
    vec![sum(dy, batch, call.result_elements(0))]
});

/// A range of the elements of each of `batch` samples.
pub fn select(x: &[f64], batch: usize, elements: Range<usize>) -> Vec<f64> {
    x.chunks(x.len() / batch).flat_map(|sample| sample[elements.clone()].to_vec()).collect()
}

each_shard!(SelectTokens, |SelectTokens { first }, call, [x]| {
    let [batch, tokens, channels] = call.output(0)?;
    vec![select(x, batch, first * channels..(first + tokens) * channels)]
});

/// The gradient of [`select`], of `elements` for all samples together: those from `first` on in each sample, and 0.
pub fn select_backward(dy: &[f64], batch: usize, first: usize, elements: usize) -> Vec<f64> {
    let mut dx = vec![0.0; elements];
    for (dx, dy) in dx.chunks_mut(elements / batch).zip(dy.chunks(dy.len() / batch)) {
        dx[first..first + dy.len()].copy_from_slice(dy);
    }
    dx
}

each_shard!(SelectTokensBackward, |SelectTokensBackward { first }, call, [dy]| {
    let [batch, _, channels] = call.output(0)?;
    vec![select_backward(dy, batch, first * channels, call.result_elements(0))]
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_samples_by_hand() {
        // Two samples of two tokens and two channels.
        let x = [1., 2., 3., 4., 5., 6., 7., 8.];
        assert_eq!(add(&x, &[10., 20., 30., 40.]), [11., 22., 33., 44., 15., 26., 37., 48.]);
        let longer = [9., 9., 1., 2., 3., 4., 9., 9., 5., 6., 7., 8.];
        assert_eq!(prepend(&x, &[9., 9.], 2), longer);
        assert_eq!(sum(&x, 2, 4), [6., 8., 10., 12.]);
        assert_eq!(sum(&x, 2, 2), [6., 8.]);
        assert_eq!(select(&longer, 2, 2..6), x);
        assert_eq!(select_backward(&[1., 2., 3., 4.], 2, 2, 12), [0., 0., 1., 2., 0., 0., 0., 0., 3., 4., 0., 0.]);
    }
}
