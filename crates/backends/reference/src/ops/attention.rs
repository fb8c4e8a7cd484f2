//! Attention in several heads, and its gradient. `qkv` is `[batch, tokens, 3, heads, head]`, the result `[batch, tokens, heads, head]`.

use std::ops::Range;

use enmasse_graph::ops::{Attention, AttentionBackward};

/// The sizes of an attention.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Samples.
    pub batch: usize,
    /// Tokens of each.
    pub tokens: usize,
    /// Heads.
    pub heads: usize,
    /// Channels of a head.
    pub head: usize,
}

impl Size {
    fn new([batch, tokens, packed]: [usize; 3], heads: usize) -> Self {
        Size { batch, tokens, heads, head: packed / 3 / heads }
    }

    /// `1 / sqrt(D)`.
    fn scale(self) -> f64 {
        1.0 / (self.head as f64).sqrt()
    }

    /// The channels of a head of a token, of `parts` that it has.
    fn part(self, [sample, head, token]: [usize; 3], part: usize, parts: usize) -> Range<usize> {
        let start = (((sample * self.tokens + token) * parts + part) * self.heads + head) * self.head;
        start..start + self.head
    }

    /// Those of a query, key and value in `qkv`.
    fn query(self, at: [usize; 3]) -> Range<usize> {
        self.part(at, 0, 3)
    }

    fn key(self, at: [usize; 3]) -> Range<usize> {
        self.part(at, 1, 3)
    }

    fn value(self, at: [usize; 3]) -> Range<usize> {
        self.part(at, 2, 3)
    }

    /// Those of a token of the result.
    fn result(self, at: [usize; 3]) -> Range<usize> {
        self.part(at, 0, 1)
    }

    /// Every sample, head and query.
    fn queries(self) -> impl Iterator<Item = [usize; 3]> {
        let heads = (0..self.batch).flat_map(move |sample| (0..self.heads).map(move |head| [sample, head]));
        heads.flat_map(move |[sample, head]| (0..self.tokens).map(move |token| [sample, head, token]))
    }

    /// The keys of a query, each with the scaled product of both.
    fn scores(self, qkv: &[f64], query @ [sample, head, _]: [usize; 3]) -> impl Iterator<Item = ([usize; 3], f64)> {
        let keys = (0..self.tokens).map(move |token| [sample, head, token]);
        keys.map(move |key| (key, self.scale() * dot(&qkv[self.query(query)], &qkv[self.key(key)])))
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `to += factor * from`.
fn accumulate(to: &mut [f64], factor: f64, from: &[f64]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += factor * from);
}

/// The result, and the logarithm of the softmax's denominator for every sample, head and query.
pub fn forward(qkv: &[f64], size: Size) -> [Vec<f64>; 2] {
    let mut y = vec![0.0; qkv.len() / 3];
    let mut log_sum_exp = Vec::new();
    for query in size.queries() {
        let largest = size.scores(qkv, query).map(|(_, score)| score).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = size.scores(qkv, query).map(|(_, score)| (score - largest).exp()).sum();
        for (key, score) in size.scores(qkv, query) {
            accumulate(&mut y[size.result(query)], (score - largest).exp() / sum, &qkv[size.value(key)]);
        }
        log_sum_exp.push(largest + sum.ln());
    }
    [y, log_sum_exp]
}

each_shard!(Attention, |Attention { heads }, call, [qkv]| forward(qkv, Size::new(call.input(0)?, *heads)).into());

/// The gradient of `qkv`.
pub fn backward(dy: &[f64], qkv: &[f64], y: &[f64], log_sum_exp: &[f64], size: Size) -> Vec<f64> {
    let mut dqkv = vec![0.0; qkv.len()];
    for (query, log_sum_exp) in size.queries().zip(log_sum_exp) {
        let (dy, y) = (&dy[size.result(query)], &y[size.result(query)]);
        for (key, score) in size.scores(qkv, query) {
            let probability = (score - log_sum_exp).exp();
            let ds = size.scale() * probability * (dot(dy, &qkv[size.value(key)]) - dot(dy, y));
            accumulate(&mut dqkv[size.query(query)], ds, &qkv[size.key(key)]);
            accumulate(&mut dqkv[size.key(key)], ds, &qkv[size.query(query)]);
            accumulate(&mut dqkv[size.value(key)], probability, dy);
        }
    }
    dqkv
}

each_shard!(AttentionBackward, |AttentionBackward { heads }, call, [dy, qkv, y, log_sum_exp]| {
    vec![backward(dy, qkv, y, log_sum_exp, Size::new(call.input(1)?, *heads))]
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::assert_close;

    /// Two tokens, two heads of one channel: the products are the logarithms of 3 and 1, and of 1 and 1, in the first head, and 0
    /// in the second.
    #[test]
    fn two_tokens_by_hand() {
        let size = Size { batch: 1, tokens: 2, heads: 2, head: 1 };
        let log3 = 3f64.ln();
        let qkv = [[1.0, 0.0, log3, 5.0, 8.0, 2.0], [0.0, 0.0, 0.0, 7.0, 4.0, 6.0]].concat();
        let [y, log_sum_exp] = forward(&qkv, size);
        assert_close(&y, &[7.0, 4.0, 6.0, 4.0]);
        assert_close(&log_sum_exp, &[4f64.ln(), 2f64.ln(), 2f64.ln(), 2f64.ln()]);

        let dqkv = backward(&[1.0, 2.0, 0.0, 0.0], &qkv, &y, &log_sum_exp, size);
        // Of the first query: ds = 3/4 * (8 - 7) and 1/4 * (4 - 7); in the second head 1/2 * (4 - 8) and 1/2 * (12 - 8).
        let first = [0.75 * log3, 2.0 * 7.0 - 2.0 * 5.0, 0.75, 0.0, 0.75, 1.0];
        let second = [0.0, 0.0, -0.75, 0.0, 0.25, 1.0];
        assert_close(&dqkv, &[first, second].concat());
    }

    #[test]
    fn a_single_token_is_its_value() {
        let size = Size { batch: 2, tokens: 1, heads: 1, head: 2 };
        let qkv = [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [-1.0, 0.0, 9.0, 2.0, 7.0, 8.0]].concat();
        let [y, log_sum_exp] = forward(&qkv, size);
        assert_close(&y, &[5.0, 6.0, 7.0, 8.0]);
        assert_close(&log_sum_exp, &[11.0 / 2f64.sqrt(), -9.0 / 2f64.sqrt()]);
        let dqkv = backward(&[1.0, 2.0, 3.0, 4.0], &qkv, &y, &log_sum_exp, size);
        assert_close(&dqkv, &[0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 3.0, 4.0]);
    }
}
