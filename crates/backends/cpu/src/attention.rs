//! Attention in several heads, and its gradient: blocks of queries against all keys of a head, by the matmuls of convolution.
//!
//! A task has one head of one sample, so bits do not depend on the number of threads. All products are those of words, as fast as the
//! level can: in bf16 those of stored values, which are the scores and the gradient of probabilities, are exact, and the others have a
//! factor that is computed in f32 and rounded, as in PyTorch. Scores exist for a block of queries alone, in the thread's workspace, and
//! the gradient computes them again. Their scale is negative, as the exponential takes them. Four queries are computed side by side, for
//! each operation on a row of scores waits for the one before.

use std::ops::Range;

use crate::channels::Products;
use crate::curve::decay;
use crate::element::{Element, copy};
use crate::gemm::{Matmul, multiply, panel_width};
use crate::inlined::inlined;
use crate::isa::{Four, Isa, Kernel, Lanes, MAX_LANES, Simd, dispatch, four};
use crate::region::Region;
use crate::sweep::row_sums;
use crate::workspace::{Context, Workspace};

/// Fewest and most queries of a block: multiples of 16, as are all numbers between, so that most levels have whole tiles.
const BLOCK: [usize; 2] = [48, 112];
/// Scores of a block, where possible, so that the gradient's five matrices of that size stay in a second-level cache of 1 MiB.
const BLOCK_SCORES: usize = 26_000;
/// Rows of scores that are computed side by side; a divisor of any number of queries of a block.
const ROWS: usize = 4;
/// Rows of a head from one that is copied to the one that is prefetched: they are too far apart for processors to foresee.
const ROWS_AHEAD: usize = 8;

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

    /// Scores of a query: those of the keys, up to whole vectors.
    fn scores(self, isa: Isa) -> usize {
        self.tokens.next_multiple_of(panel_width(isa) / 2)
    }

    /// Queries of a block.
    fn block(self, isa: Isa) -> usize {
        (BLOCK_SCORES / self.scores(isa)).clamp(BLOCK[0], BLOCK[1]) / 16 * 16
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
        let (keys, block) = (self.head * self.keys(isa), self.block(isa));
        let scores = 3 * block * self.scores(isa) / 2;
        let private = self.head + keys + self.panels(isa, self.tokens) + block * self.head + scores;
        Workspace { shared: 0, private }
    }

    /// Workspace for [`backward`].
    pub(crate) fn backward_workspace(self, isa: Isa) -> Workspace {
        let transposed = 2 * self.head * self.keys(isa);
        let gradients = 2 * self.tokens * self.head;
        let block = self.block(isa);
        let block = 2 * (block * self.head + self.panels(isa, block) + 2 * block * self.scores(isa));
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
        let sample = task / size.heads;
        let head = task % size.heads;
        let stride = parts * size.channels();
        let start = sample * size.tokens * stride + part * size.channels() + head * size.head;
        Head { data, start, stride, head: size.head }
    }

    /// Where a row begins.
    fn row(&self, row: usize) -> *mut E {
        self.data.at(self.start + row * self.stride, self.head)
    }

    /// Prefetches the row that is used [`ROWS_AHEAD`] rows later, if there is one.
    #[inline(always)]
    fn prefetch(&self, row: usize) {
        self.data.prefetch(self.start, (row + ROWS_AHEAD) * self.stride, self.head);
    }

    inlined! {
        /// Copies rows as words, one after another.
        unsafe fn words(&self, rows: Range<usize>, to: Region<f32>) {
            let words = self.head.div_ceil(E::PER_WORD);
            for (at, row) in rows.enumerate() {
                self.prefetch(row);
                let to = to.at(at * words, words).cast::<E>();
                self.row(row).copy_to_nonoverlapping(to, self.head);
                (self.head..words * E::PER_WORD).for_each(|i| *to.add(i) = E::ZERO);
            }
        }

        /// Copies words along the rows as panels of columns, `panel` values apart.
        unsafe fn panels<S: Simd>(&self, rows: Range<usize>, panel: usize, to: Region<f32>) {
            let width = 2 * S::LANES;
            let zeros = [E::ZERO; 2 * MAX_LANES];
            for (at, first) in rows.clone().step_by(E::PER_WORD).enumerate() {
                (first..first + E::PER_WORD).for_each(|row| self.prefetch(row));
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
            let width = 2 * S::LANES;
            let words = self.head.div_ceil(E::PER_WORD);
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

/// Rows of values of a block that are rounded to elements: the values themselves, or copies.
fn rounded<E: Element>(values: Region<f32>, copies: Region<f32>) -> Region<E> {
    if E::PER_WORD == 1 { values.cast() } else { copies.cast() }
}

inlined! {
    /// Rows of elements as words along the columns, as many to a row as there are elements: the rows themselves, or copies. There is
    /// space for an even number of rows.
    unsafe fn words_of_columns<S: Simd, E: Element>(
        elements: Region<E>,
        [rows, stride]: [usize; 2],
        to: Region<f32>,
    ) -> Region<f32> {
        if E::PER_WORD == 1 {
            return elements.cast();
        }
        elements.slice_mut(rows * stride, rows % E::PER_WORD * stride).fill(E::ZERO);
        for (at, row) in (0..rows).step_by(E::PER_WORD).enumerate() {
            let pair = [row, row + 1].map(|row| elements.at(row * stride, stride).cast_const());
            E::words::<S>(pair, stride, to.at(at * stride, stride));
        }
        to
    }
}

/// Where the rows of a block begin that are `stride` values apart.
fn starts(stride: usize) -> [usize; BLOCK[1]] {
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
    c_rows: &[usize; BLOCK[1]],
) -> Matmul<C> {
    let (a, b) = (a.at(0, 0).cast_const(), b.at(0, 0).cast_const());
    let c_rows = c_rows.as_ptr();
    let nothing = std::ptr::null();
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
            let (width, stride, block) = (panel_width(isa), size.scores(isa), size.block(isa));
            let words = size.words::<E>();
            let mut parts = Parts(workspace);
            let keys = parts.take(words * size.keys(isa));
            let values = parts.take(size.panels(isa, tokens));
            let queries = parts.take(block * words);
            let scores = parts.take(block * stride);
            let copies = parts.take(block * stride / 2);
            let row = parts.take(words);
            let [query, key, value] = [0, 1, 2].map(|part| Head::new(qkv, size, task, part, 3));
            let result = Head::new(y, size, task, 0, 1);
            key.transposed::<S>(tokens, row, keys);
            let depth = tokens.div_ceil(E::PER_WORD);
            value.panels::<S>(0..tokens, depth * width, values);
            let score_rows = starts(stride);
            let result_rows = starts(result.stride);
            let probabilities = rounded::<E>(scores, copies);
            for first in (0..tokens).step_by(block) {
                let rows = block.min(tokens - first);
                query.words(first..first + rows, queries);
                let to = scores.at(0, rows * stride);
                let matmul = product([rows, stride, words], queries, words, keys, words * width, to, &score_rows);
                multiply::<E, f32, false>(isa, [matmul]);
                for row in (0..rows).step_by(ROWS) {
                    let log_sums = FourRows { first: row, stride }.softmax::<S, E>(scores, size, probabilities);
                    let count = ROWS.min(rows - row);
                    let to = log_sum_exp.slice_mut(task * tokens + first + row, count);
                    to.copy_from_slice(&log_sums[..count]);
                }
                let size = [rows, head, depth];
                let to = result.row(first);
                let probabilities = probabilities.cast();
                let distance = stride / E::PER_WORD;
                let matmul = product(size, probabilities, distance, values, depth * width, to, &result_rows);
                multiply::<E, E, false>(isa, [Matmul { far: true, ..matmul }]);
            }
        }
    }
}

/// Rows of a block's scores, `stride` values apart, from the first one. Of the last ones some may be beyond the block: what is computed
/// of these is not used.
#[derive(Clone, Copy)]
struct FourRows {
    first: usize,
    stride: usize,
}

impl FourRows {
    inlined! {
        /// A vector of each row.
        unsafe fn load<S: Simd>(self, from: Region<f32>, at: usize) -> [S::V; ROWS] {
            four!(I => S::load(from.at((self.first + I) * self.stride + at, S::LANES)))
        }

        unsafe fn store<S: Simd, E: Element>(self, to: Region<E>, at: usize, values: [S::V; ROWS]) {
            four!(I => E::store::<S>(to.at((self.first + I) * self.stride + at, S::LANES), values[I]));
        }

        /// Sets the scores after those of `tokens` keys so that their probability is 0, or so small that their sums do not change.
        unsafe fn close(self, scores: Region<f32>, tokens: usize) {
            for row in self.first..self.first + ROWS {
                scores.slice_mut(row * self.stride + tokens, self.stride - tokens).fill(-f32::MAX)
            }
        }

        /// Turns scores into probabilities, and returns the logarithms of the sums of their exponentials.
        unsafe fn softmax<S: Simd, E: Element>(self, scores: Region<f32>, size: Size, to: Region<E>) -> [f32; ROWS] {
            self.close(scores, size.tokens);
            let scale = Four::<S>::splat(size.scale());
            let mut least = Four::<S>::splat(f32::MAX);
            for at in (0..self.stride).step_by(S::LANES) {
                least = Four::<S>::at_most(Four::<S>::mul(self.load::<S>(scores, at), scale), least);
            }
            let least = across::<S>(least, f32::min);
            let shift = four!(I => S::splat(least[I]));
            let mut sums = Four::<S>::splat(0.0);
            for at in (0..self.stride).step_by(S::LANES) {
                let exponentials = decay::<Four<S>>(Four::<S>::mul_sub(self.load::<S>(scores, at), scale, shift));
                sums = Four::<S>::add(sums, exponentials);
                self.store::<S, f32>(scores, at, exponentials);
            }
            let sums = across::<S>(sums, |a, b| a + b);
            let factors = four!(I => S::splat(sums[I].recip()));
            for at in (0..self.stride).step_by(S::LANES) {
                self.store::<S, E>(to, at, Four::<S>::mul(self.load::<S>(scores, at), factors));
            }
            std::array::from_fn(|row| sums[row].ln() - least[row])
        }
    }
}

/// Combines the lanes of each vector by halves.
#[inline(always)]
unsafe fn across<S: Simd>(vectors: [S::V; ROWS], combine: impl Fn(f32, f32) -> f32) -> [f32; ROWS] {
    let mut rows = [[0.0; MAX_LANES]; ROWS];
    // SAFETY: the caller's promise; a row holds a vector.
    unsafe { four!(I => S::store(rows[I].as_mut_ptr(), vectors[I])) };
    let mut count = S::LANES;
    while count > 1 {
        count /= 2;
        for lanes in &mut rows {
            (0..count).for_each(|lane| lanes[lane] = combine(lanes[lane], lanes[lane + count]));
        }
    }
    rows.map(|lanes| lanes[0])
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
            let (width, stride, block) = (panel_width(isa), size.scores(isa), size.block(isa));
            let words = size.words::<E>();
            let mut parts = Parts(workspace);
            let [keys, values] = [(); 2].map(|()| parts.take(words * size.keys(isa)));
            let row = parts.take(words);
            let key_panels = parts.take(size.panels(isa, tokens));
            // Sums over the blocks, of keys and of values.
            let sums = [(); 2].map(|()| parts.take(tokens * head));
            let [queries, gradients] = [(); 2].map(|()| parts.take(block * words));
            // The same as panels.
            let panels = [(); 2].map(|()| parts.take(size.panels(isa, block)));
            let [scores, products] = [(); 2].map(|()| parts.take(block * stride));
            let [of_probabilities, of_products] = [(); 2].map(|()| parts.take(block * stride / 2));
            let columns = [(); 2].map(|()| parts.take(block * stride / 2));
            let probabilities = rounded::<E>(scores, of_probabilities);
            let score_gradients = rounded::<E>(products, of_products);
            let [query, key, value] = [0, 1, 2].map(|part| Head::new(qkv, size, task, part, 3));
            let [gradient, result] = [dy, y].map(|values| Head::new(values, size, task, 0, 1));
            let [to_query, to_key, to_value] = [0, 1, 2].map(|part| Head::new(dqkv, size, task, part, 3));
            key.transposed::<S>(tokens, row, keys);
            value.transposed::<S>(tokens, row, values);
            let depth = tokens.div_ceil(E::PER_WORD);
            key.panels::<S>(0..tokens, depth * width, key_panels);
            let [score_rows, query_rows, sum_rows] = [stride, to_query.stride, head].map(starts);
            for first in (0..tokens).step_by(block) {
                let rows = block.min(tokens - first);
                let of_block = first..first + rows;
                query.words(of_block.clone(), queries);
                gradient.words(of_block.clone(), gradients);
                query.panels::<S>(of_block.clone(), block * width, panels[0]);
                gradient.panels::<S>(of_block, block * width, panels[1]);
                let between = |rows_of, columns_of, to: Region<f32>| {
                    let to = to.at(0, rows * stride);
                    product([rows, stride, words], rows_of, words, columns_of, words * width, to, &score_rows)
                };
                multiply::<E, f32, false>(isa, [between(queries, keys, scores), between(gradients, values, products)]);
                for row in (0..rows).step_by(ROWS) {
                    let (mut means, mut log_sums) = ([0.0; ROWS], [0.0; ROWS]);
                    for i in 0..ROWS.min(rows - row) {
                        let token = first + row + i;
                        result.prefetch(token);
                        let of_result = ((task / heads) * tokens + token) * heads + task % heads;
                        [means[i]] = row_sums::<1, S, _>(&Products { dy, a: y }, of_result, head);
                        log_sums[i] = *log_sum_exp.at(task * tokens + token, 1);
                    }
                    let four = FourRows { first: row, stride };
                    let scale = Four::<S>::splat(size.scale());
                    four.close(scores, tokens);
                    let means = four!(I => S::splat(means[I]));
                    let log_sums = four!(I => S::splat(log_sums[I]));
                    for at in (0..stride).step_by(S::LANES) {
                        let exponents = Four::<S>::mul_add(four.load::<S>(scores, at), scale, log_sums);
                        let probability = decay::<Four<S>>(exponents);
                        let product = Four::<S>::sub(means, four.load::<S>(products, at));
                        four.store::<S, E>(probabilities, at, probability);
                        let scaled = Four::<S>::mul(Four::<S>::mul(probability, product), scale);
                        four.store::<S, E>(score_gradients, at, scaled);
                    }
                }
                let of_rows = score_gradients.cast();
                let distance = stride / E::PER_WORD;
                let to = to_query.row(first);
                let panel = depth * width;
                let matmul = product([rows, head, depth], of_rows, distance, key_panels, panel, to, &query_rows);
                multiply::<E, E, false>(isa, [Matmul { far: true, ..matmul }]);
                let of_columns = [words_of_columns::<S, E>(score_gradients, [rows, stride], columns[0]),
                    words_of_columns::<S, E>(probabilities, [rows, stride], columns[1])];
                let of_keys = |token: usize, which: usize| {
                    let depth = rows.div_ceil(E::PER_WORD);
                    let size = [block.min(tokens - token), head, depth];
                    let from = of_columns[which];
                    let to = sums[which].at(token * head, size[0] * head);
                    let from = from.part(token, from.len() - token);
                    let matmul = product(size, from, stride, panels[which], block * width, to, &sum_rows);
                    Matmul { init: if first == 0 { std::ptr::null() } else { to }, ..matmul }
                };
                let tokens = (0..tokens).step_by(block);
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
#[path = "attention_tests.rs"]
mod tests;
