//! Attention in several heads, and its gradient: blocks of queries against all keys of a head, by the matmuls of convolution.
//!
//! A task has one head of one sample, so bits do not depend on the number of threads. All products are those of words, as fast as the
//! level can: in bf16 those of stored values, which are the scores and the gradient of probabilities, are exact, and the others have a
//! factor that is computed in f32 and rounded, as in PyTorch. Scores exist for a block of queries alone, in the thread's workspace, and
//! the gradient computes them again. Their scale is negative, as the exponential takes them.

use std::ops::Range;

use crate::channels::Products;
use crate::curve::exp_negative;
use crate::element::{Element, copy};
use crate::gemm::{Matmul, multiply, panel_width};
use crate::inlined::{each_four, inlined};
use crate::isa::{Isa, Kernel, Lanes, MAX_LANES, Simd, dispatch};
use crate::region::Region;
use crate::sweep::row_sums;
use crate::workspace::{Context, Workspace};

/// Queries of a block: few enough for the second-level cache, and whole tiles of most levels.
const BLOCK: usize = 48;

/// The sizes of an attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub batch: usize,
    pub tokens: usize,
    pub heads: usize,
    /// Channels of a head.
    pub head: usize,
}

impl Size {
    /// Distance between tokens of the result; a third of that in `qkv`.
    fn channels(self) -> usize {
        self.heads * self.head
    }

    /// Keys, and places up to whole panels.
    fn keys(self, isa: Isa) -> usize {
        self.tokens.next_multiple_of(panel_width(isa))
    }

    /// Values of `rows` rows of a head, in whole panels.
    fn panels(self, isa: Isa, rows: usize) -> usize {
        rows * self.head.next_multiple_of(panel_width(isa))
    }

    /// Words of a row of a head.
    fn words<E: Element>(self) -> usize {
        self.head.div_ceil(E::PER_WORD)
    }

    /// `-1 / sqrt(D)`.
    fn scale(self) -> f32 {
        -1.0 / (self.head as f32).sqrt()
    }

    /// Workspace for [`forward`].
    pub(crate) fn workspace(self, isa: Isa) -> Workspace {
        let (keys, scores) = (self.head * self.keys(isa), BLOCK * self.keys(isa));
        let private = self.head + keys + self.panels(isa, self.tokens) + BLOCK * self.head + 2 * scores;
        Workspace { shared: 0, private }
    }

    /// Workspace for [`backward`].
    pub(crate) fn backward_workspace(self, isa: Isa) -> Workspace {
        let transposed = 2 * self.head * self.keys(isa);
        let gradients = 2 * self.tokens * self.head;
        let block = 2 * (BLOCK * self.head + self.panels(isa, BLOCK) + 2 * BLOCK * self.keys(isa));
        Workspace { shared: 0, private: self.head + transposed + self.panels(isa, self.tokens) + gradients + block }
    }
}

/// Parts of a workspace, one after another.
struct Parts(Region<f32>);

impl Parts {
    fn take(&mut self, count: usize) -> Region<f32> {
        let part = self.0.part(0, count);
        self.0 = self.0.part(count, self.0.len() - count);
        part
    }
}

/// The rows of a head: `head` values each, `stride` apart.
#[derive(Clone, Copy)]
struct Head<E> {
    data: Region<E>,
    start: usize,
    stride: usize,
    head: usize,
}

impl<E: Element> Head<E> {
    /// The head of a task in `parts` parts of each token.
    fn new(data: Region<E>, size: Size, task: usize, part: usize, parts: usize) -> Self {
        let (sample, head) = (task / size.heads, task % size.heads);
        let stride = parts * size.channels();
        let start = sample * size.tokens * stride + part * size.channels() + head * size.head;
        Head { data, start, stride, head: size.head }
    }

    /// Where a row begins.
    fn row(&self, row: usize) -> *mut E {
        self.data.at(self.start + row * self.stride, self.head)
    }

    inlined! {
        /// Copies rows as words, one after another.
        unsafe fn words(&self, rows: Range<usize>, to: Region<f32>) {
            let words = self.head.div_ceil(E::PER_WORD);
            for (at, row) in rows.enumerate() {
                let to = to.at(at * words, words).cast::<E>();
                self.row(row).copy_to_nonoverlapping(to, self.head);
                (self.head..words * E::PER_WORD).for_each(|i| *to.add(i) = E::ZERO);
            }
        }

        /// Copies words along the rows as panels of columns, `panel` values apart.
        unsafe fn panels<S: Simd>(&self, rows: Range<usize>, panel: usize, to: Region<f32>) {
            let (width, zeros) = (2 * S::LANES, [E::ZERO; 2 * MAX_LANES]);
            for (at, first) in rows.clone().step_by(E::PER_WORD).enumerate() {
                for (number, column) in (0..self.head).step_by(width).enumerate() {
                    let count = width.min(self.head - column);
                    let values = |row: usize| match row < rows.end {
                        true => self.row(row).add(column).cast_const(),
                        false => zeros.as_ptr(),
                    };
                    let to = to.at(number * panel + at * width, width);
                    E::words::<S>([values(first), values(first + E::PER_WORD - 1)], count, to);
                    (count..width).for_each(|i| *to.add(i) = 0.0);
                }
            }
        }

        /// Copies the words of `count` rows as the columns of panels, with zeros after the last. `row` is workspace.
        unsafe fn transposed<S: Simd>(&self, count: usize, row: Region<f32>, to: Region<f32>) {
            let (width, words) = (2 * S::LANES, self.head.div_ceil(E::PER_WORD));
            for column in 0..count.next_multiple_of(width) {
                match column < count {
                    true => self.words(column..column + 1, row),
                    false => row.slice_mut(0, words).fill(0.0),
                }
                let to = to.at(column / width * words * width + column % width, (words - 1) * width + 1);
                row.slice(0, words).iter().enumerate().for_each(|(i, word)| *to.add(i * width) = *word);
            }
        }
    }
}

inlined! {
    /// Rows of values as words along the rows, and the distance between them: the values themselves, or copies.
    unsafe fn words_of_rows<S: Simd, E: Element>(
        values: Region<f32>,
        [rows, stride]: [usize; 2],
        to: Region<f32>,
    ) -> (Region<f32>, usize) {
        let words = stride / E::PER_WORD;
        if E::PER_WORD == 1 {
            return (values, words);
        }
        for row in 0..rows {
            copy::<S, f32, E>(values.at(row * stride, stride), to.at(row * words, words).cast(), stride);
        }
        (to, words)
    }

    /// The same as words along the columns: rows of words are as far apart as those of values. There is space for an even number of rows.
    unsafe fn words_of_columns<S: Simd, E: Element>(
        values: Region<f32>,
        [rows, stride]: [usize; 2],
        to: Region<f32>,
    ) -> Region<f32> {
        if E::PER_WORD == 1 {
            return values;
        }
        values.slice_mut(rows * stride, rows % E::PER_WORD * stride).fill(0.0);
        for (at, row) in (0..rows).step_by(E::PER_WORD).enumerate() {
            let pair = [row, row + 1].map(|row| values.at(row * stride, stride).cast_const());
            E::rounded_words::<S>(pair, stride, to.at(at * stride, stride));
        }
        to
    }
}

/// Where the rows of a block begin that are `stride` values apart.
fn starts(stride: usize) -> [usize; BLOCK] {
    std::array::from_fn(|row| row * stride)
}

/// `C = A B`, with contiguous rows of A and panels of B that are `panel` values apart.
fn product<C>(
    [rows, columns, depth]: [usize; 3],
    a: Region<f32>,
    stride: usize,
    b: Region<f32>,
    panel: usize,
    c: *mut C,
    c_rows: &[usize; BLOCK],
) -> Matmul<C> {
    let (a, b) = (a.at(0, 0).cast_const(), b.at(0, 0).cast_const());
    let (c_rows, nothing) = (c_rows.as_ptr(), std::ptr::null());
    Matmul { rows, columns, depth, a, stride, b, panel, c, c_rows, init: nothing, init_rows: c_rows, far: false }
}

/// The operands and results of an attention.
#[derive(Clone, Copy)]
pub(crate) struct Forward<E> {
    pub size: Size,
    pub qkv: Region<E>,
    pub y: Region<E>,
    pub log_sum_exp: Region<f32>,
}

struct ForwardTask<'a, E> {
    forward: &'a Forward<E>,
    isa: Isa,
    workspace: Region<f32>,
    task: usize,
}

impl<E: Element> Kernel for ForwardTask<'_, E> {
    const BF16: bool = E::BF16;

    inlined! {
        unsafe fn run<S: Simd>(self) {
            let ForwardTask { forward: &Forward { size, qkv, y, log_sum_exp }, isa, workspace, task } = self;
            let Size { tokens, head, .. } = size;
            let (width, stride) = (panel_width(isa), size.keys(isa));
            let words = size.words::<E>();
            let mut parts = Parts(workspace);
            let keys = parts.take(words * stride);
            let values = parts.take(size.panels(isa, tokens));
            let queries = parts.take(BLOCK * words);
            let [scores, rounded] = [(); 2].map(|()| parts.take(BLOCK * stride));
            let row = parts.take(words);
            let [query, key, value] = [0, 1, 2].map(|part| Head::new(qkv, size, task, part, 3));
            let result = Head::new(y, size, task, 0, 1);
            key.transposed::<S>(tokens, row, keys);
            let depth = tokens.div_ceil(E::PER_WORD);
            value.panels::<S>(0..tokens, depth * width, values);
            let (score_rows, result_rows) = (starts(stride), starts(result.stride));
            for first in (0..tokens).step_by(BLOCK) {
                let rows = BLOCK.min(tokens - first);
                query.words(first..first + rows, queries);
                let to = scores.at(0, rows * stride);
                let matmul = product([rows, stride, words], queries, words, keys, words * width, to, &score_rows);
                multiply::<E, f32, false>(isa, [matmul]);
                for row in 0..rows {
                    let scores = scores.part(row * stride, stride);
                    *log_sum_exp.at(task * tokens + first + row, 1) = softmax::<S>(scores, tokens, size.scale());
                }
                let (probabilities, distance) = words_of_rows::<S, E>(scores, [rows, stride], rounded);
                let (size, to) = ([rows, head, depth], result.row(first));
                let matmul = product(size, probabilities, distance, values, depth * width, to, &result_rows);
                multiply::<E, E, false>(isa, [matmul]);
            }
        }
    }
}

/// Scores that become exponentials in place.
struct Exponentials {
    scores: Region<f32>,
    scale: f32,
    /// Added to what the scale makes of a score.
    shift: f32,
}

impl Exponentials {
    inlined! {
        unsafe fn at<L: Lanes>(&self, index: usize) {
            let scores = self.scores.at(index, L::LANES);
            let scaled = L::mul(L::load(scores), L::splat(self.scale));
            L::store(scores, exp_negative::<L>(L::add(scaled, L::splat(self.shift))))
        }
    }
}

inlined! {
    /// Sets the scores after those of `tokens` keys so that their probability is 0.
    unsafe fn close(scores: Region<f32>, tokens: usize) {
        scores.slice_mut(tokens, scores.len() - tokens).fill(-f32::MAX)
    }

    /// Turns scores of whole vectors, of which those of `tokens` keys count, into probabilities, and returns the logarithm of the
    /// sum of their exponentials. `scale` is negative.
    unsafe fn softmax<S: Simd>(scores: Region<f32>, tokens: usize, scale: f32) -> f32 {
        close(scores, tokens);
        let mut least = S::splat(f32::MAX);
        for at in (0..scores.len()).step_by(S::LANES) {
            least = S::at_most(S::mul(S::load(scores.at(at, S::LANES)), S::splat(scale)), least);
        }
        let mut lanes = [f32::MAX; MAX_LANES];
        S::store(lanes.as_mut_ptr(), least);
        let least = lanes.into_iter().fold(f32::MAX, f32::min);
        let mut sums = S::splat(0.0);
        let exponentials = Exponentials { scores, scale, shift: -least };
        each_four!(S, at in 0..scores.len() => exponentials, at(at));
        for at in (0..scores.len()).step_by(S::LANES) {
            sums = S::add(sums, S::load(scores.at(at, S::LANES)));
        }
        let mut lanes = [0.0; MAX_LANES];
        S::store(lanes.as_mut_ptr(), sums);
        let sum: f32 = lanes.iter().sum();
        let factor = S::splat(sum.recip());
        for at in (0..scores.len()).step_by(S::LANES) {
            S::store(scores.at(at, S::LANES), S::mul(S::load(scores.at(at, S::LANES)), factor));
        }
        sum.ln() - least
    }
}

/// The result, and the logarithm of the softmax's denominator for every sample, head and query.
///
/// # Safety
/// Regions are valid, of `size`; `y` and `log_sum_exp` are written. The context's private workspace holds [`Size::workspace`].
pub(crate) unsafe fn forward<E: Element>(context: &mut Context, forward: &Forward<E>) {
    let (isa, private) = (context.isa, &context.private);
    context.pool.run(forward.size.batch * forward.size.heads, |task, thread| {
        // SAFETY: the caller's promise; a task writes its own head of the result, and the workspace is its thread's.
        unsafe { dispatch(isa, ForwardTask { forward, isa, workspace: private[thread], task }) }
    });
}

/// The operands and the result of an attention's gradient.
#[derive(Clone, Copy)]
pub(crate) struct Backward<E> {
    pub size: Size,
    pub dy: Region<E>,
    pub qkv: Region<E>,
    pub y: Region<E>,
    pub log_sum_exp: Region<f32>,
    pub dqkv: Region<E>,
}

struct BackwardTask<'a, E> {
    backward: &'a Backward<E>,
    isa: Isa,
    workspace: Region<f32>,
    task: usize,
}

impl<E: Element> Kernel for BackwardTask<'_, E> {
    const BF16: bool = E::BF16;

    inlined! {
        unsafe fn run<S: Simd>(self) {
            let BackwardTask { backward: &Backward { size, dy, qkv, y, log_sum_exp, dqkv }, isa, workspace, task } = self;
            let Size { tokens, heads, head, .. } = size;
            let (width, stride) = (panel_width(isa), size.keys(isa));
            let words = size.words::<E>();
            let mut parts = Parts(workspace);
            let [keys, values] = [(); 2].map(|()| parts.take(words * stride));
            let row = parts.take(words);
            let key_panels = parts.take(size.panels(isa, tokens));
            // Sums over the blocks, of keys and of values.
            let sums = [(); 2].map(|()| parts.take(tokens * head));
            let [queries, gradients] = [(); 2].map(|()| parts.take(BLOCK * words));
            // The same as panels.
            let panels = [(); 2].map(|()| parts.take(size.panels(isa, BLOCK)));
            let [probabilities, products] = [(); 2].map(|()| parts.take(BLOCK * stride));
            let rounded = [(); 2].map(|()| parts.take(BLOCK * stride));
            let [query, key, value] = [0, 1, 2].map(|part| Head::new(qkv, size, task, part, 3));
            let gradient = Head::new(dy, size, task, 0, 1);
            let [to_query, to_key, to_value] = [0, 1, 2].map(|part| Head::new(dqkv, size, task, part, 3));
            key.transposed::<S>(tokens, row, keys);
            value.transposed::<S>(tokens, row, values);
            let depth = tokens.div_ceil(E::PER_WORD);
            key.panels::<S>(0..tokens, depth * width, key_panels);
            let [score_rows, query_rows, sum_rows] = [stride, to_query.stride, head].map(starts);
            for first in (0..tokens).step_by(BLOCK) {
                let rows = BLOCK.min(tokens - first);
                let block = first..first + rows;
                query.words(block.clone(), queries);
                gradient.words(block.clone(), gradients);
                query.panels::<S>(block.clone(), BLOCK * width, panels[0]);
                gradient.panels::<S>(block.clone(), BLOCK * width, panels[1]);
                let scores = |rows_of, columns_of, to: Region<f32>| {
                    let to = to.at(0, rows * stride);
                    product([rows, stride, words], rows_of, words, columns_of, words * width, to, &score_rows)
                };
                let both = [scores(queries, keys, probabilities), scores(gradients, values, products)];
                multiply::<E, f32, false>(isa, both);
                for (row, token) in block.enumerate() {
                    let of_result = ((task / heads) * tokens + token) * heads + task % heads;
                    let [mean] = row_sums::<1, S, _>(&Products { dy, a: y }, of_result, head);
                    let log_sum_exp = *log_sum_exp.at(task * tokens + token, 1);
                    let [probabilities, products] =
                        [probabilities, products].map(|scores| scores.part(row * stride, stride));
                    close(probabilities, tokens);
                    let exponentials = Exponentials { scores: probabilities, scale: size.scale(), shift: log_sum_exp };
                    each_four!(S, at in 0..stride => exponentials, at(at));
                    for at in (0..stride).step_by(S::LANES) {
                        let probability = S::load(probabilities.at(at, S::LANES));
                        let product = S::sub(S::splat(mean), S::load(products.at(at, S::LANES)));
                        let scaled = S::mul(S::mul(probability, product), S::splat(size.scale()));
                        S::store(products.at(at, S::LANES), scaled);
                    }
                }
                let (of_rows, distance) = words_of_rows::<S, E>(products, [rows, stride], rounded[0]);
                let (to, panel) = (to_query.row(first), depth * width);
                let matmul = product([rows, head, depth], of_rows, distance, key_panels, panel, to, &query_rows);
                multiply::<E, E, false>(isa, [matmul]);
                let of_columns = [words_of_columns::<S, E>(products, [rows, stride], rounded[0]),
                    words_of_columns::<S, E>(probabilities, [rows, stride], rounded[1])];
                let of_keys = |token: usize, which: usize| {
                    let depth = rows.div_ceil(E::PER_WORD);
                    let (size, from) = ([BLOCK.min(tokens - token), head, depth], of_columns[which]);
                    let to = sums[which].at(token * head, size[0] * head);
                    let from = from.part(token, from.len() - token);
                    let matmul = product(size, from, stride, panels[which], BLOCK * width, to, &sum_rows);
                    Matmul { init: if first == 0 { std::ptr::null() } else { to }, ..matmul }
                };
                let tokens = (0..tokens).step_by(BLOCK);
                multiply::<E, f32, true>(isa, tokens.flat_map(|token| [0, 1].map(|which| of_keys(token, which))));
            }
            for token in 0..tokens {
                for (sums, to) in sums.iter().zip([to_key, to_value]) {
                    copy::<S, f32, E>(sums.at(token * head, head), to.row(token), head);
                }
            }
        }
    }
}

/// The gradient of queries, keys and values.
///
/// # Safety
/// Regions are valid, of the gradient's size; `dqkv` is written. The context's private workspace holds
/// [`Size::backward_workspace`].
pub(crate) unsafe fn backward<E: Element>(context: &mut Context, backward: &Backward<E>) {
    let (isa, private) = (context.isa, &context.private);
    context.pool.run(backward.size.batch * backward.size.heads, |task, thread| {
        // SAFETY: the caller's promise; a task writes its own head of the gradient, and the workspace is its thread's.
        unsafe { dispatch(isa, BackwardTask { backward, isa, workspace: private[thread], task }) }
    });
}

#[cfg(test)]
mod tests {
    use enmasse_reference::ops::attention as reference;
    use enmasse_tensor::Bf16;
    use proptest::prelude::*;

    use super::*;
    use crate::guard::{Edge, Guarded, GuardedContext};
    use crate::test_support::{assert_near, available, noise};

    fn wide<E: Element>(values: &[E]) -> Vec<f64> {
        values.iter().map(|value| value.get().into()).collect()
    }

    /// The results and gradients, and what the reference gives from the same values.
    fn check<E: Element + Default>(size: Size, isa: Isa, threads: usize) -> Vec<f32> {
        let Size { batch, tokens, heads, head } = size;
        let edge = Edge::BOTH[threads % 2];
        let context =
            &mut GuardedContext::new(edge, threads, isa, size.workspace(isa).max(size.backward_workspace(isa)));
        let rows = batch * tokens * heads * head;
        let values = |key, n, scale: f32| -> Vec<E> { noise(key, n).iter().map(|&v| E::of(scale * v)).collect() };
        let (qkv, dy) = (Guarded::new(edge, &values(1, 3 * rows, 3.0)), Guarded::new(edge, &values(2, rows, 1.0)));
        let (mut y, mut dqkv) =
            (Guarded::filled(edge, E::of(f32::NAN), rows), Guarded::filled(edge, E::of(f32::NAN), 3 * rows));
        let mut log_sum_exp = Guarded::filled(edge, f32::NAN, batch * heads * tokens);
        // SAFETY: every region is a live buffer of the right size.
        unsafe {
            let (qkv, y, log_sum_exp) = (Region::of(&qkv), Region::of_mut(&mut y), Region::of_mut(&mut log_sum_exp));
            forward(context, &Forward { size, qkv, y, log_sum_exp });
            let dqkv = Region::of_mut(&mut dqkv);
            backward(context, &Backward { size, dy: Region::of(&dy), qkv, y, log_sum_exp, dqkv });
        }
        let of_reference = reference::Size { batch, tokens, heads, head };
        let [expected, sums] = reference::forward(&wide(&qkv), of_reference);
        let what = format!("{isa} {size:?} {}", E::DTYPE.name());
        // Of the result, and of probabilities and their gradients before they are multiplied.
        let rounding = if E::BF16 { 8e-3 } else { 0.0 };
        let found = |values: &[E]| -> Vec<f32> { values.iter().map(|value| value.get()).collect() };
        assert_near(&format!("y {what}"), &found(&y), &expected, 1e-5 + rounding);
        assert_near(&format!("log_sum_exp {what}"), &log_sum_exp, &sums, 1e-5);
        let expected = reference::backward(&wide(&dy), &wide(&qkv), &wide(&y), &sums, of_reference);
        assert_near(&format!("dqkv {what}"), &found(&dqkv), &expected, 1e-4 + rounding);
        [found(&y), found(&dqkv), log_sum_exp.to_vec()].concat()
    }

    fn check_all(size: Size) {
        for isa in available() {
            let (single, half) = (check::<f32>(size, isa, 1), check::<Bf16>(size, isa, 1));
            assert_eq!(check::<f32>(size, isa, 3), single, "{isa} {size:?}");
            assert_eq!(check::<Bf16>(size, isa, 3), half, "{isa} {size:?}");
        }
    }

    #[test]
    fn usual_sizes_equal_the_reference_with_any_number_of_threads() {
        for [batch, tokens, heads, head] in
            [[1, 197, 3, 64], [2, 50, 2, 80], [1, 1, 1, 16], [3, 48, 1, 32], [1, 49, 2, 24]]
        {
            check_all(Size { batch, tokens, heads, head });
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn any_size_equals_the_reference(batch in 1usize..3, tokens in 1usize..110, heads in 1usize..4, head in 1usize..81) {
            check_all(Size { batch, tokens, heads, head });
        }
    }

    /// What diverged stays visible.
    #[test]
    fn nan_reaches_the_result() {
        let size = Size { batch: 1, tokens: 5, heads: 1, head: 3 };
        for isa in available() {
            let context = &mut Context::new(1, isa, size.workspace(isa)).unwrap();
            let (mut qkv, mut y, mut log_sum_exp) = (noise(1, 45), [0.0; 15], [0.0; 5]);
            // The key of the second token.
            qkv[9 + 3] = f32::NAN;
            let (qkv, y_of, log_sum_exp) = (Region::of(&qkv), Region::of_mut(&mut y), Region::of_mut(&mut log_sum_exp));
            // SAFETY: live buffers.
            unsafe { forward(context, &Forward { size, qkv, y: y_of, log_sum_exp }) };
            assert!(y.iter().all(|y| y.is_nan()), "{isa}: {y:?}");
        }
    }
}
