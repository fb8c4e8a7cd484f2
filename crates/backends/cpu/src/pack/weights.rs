//! Panels of stored weights.

use std::marker::PhantomData;
use std::ops::Range;

use super::fill;
use crate::element::Element;
use crate::gemm::{MAX_PANEL_WIDTH, split_panels, split_words};
use crate::isa::{Isa, Kernel, Simd, dispatch};
use crate::region::Region;

/// How stored weights `[tap][inputs][outputs]` become panels `[panel][words of the depth][width]` of one group's B.
#[derive(Clone, Debug)]
pub(crate) struct WeightPanels {
    /// The stored tap at each packed position.
    pub order: Vec<usize>,
    /// Inputs per group, as stored.
    pub inputs: usize,
    /// Outputs of all groups.
    pub outputs: usize,
    /// Number of groups.
    pub groups: usize,
    /// Whether the depth runs over outputs and the columns over inputs, for the gradient of the input.
    pub transposed: bool,
    /// Columns of a panel.
    pub width: usize,
    /// Values of the depth in a word.
    pub per_word: usize,
    /// Whether panels are split; see [`crate::gemm::multiply_split`].
    pub split: bool,
}

/// Words of a panel's depth that are packed at a time, so few that each stored line that a transposition reads stays in
/// the first-level cache.
const PACK_WORDS: usize = 16;

impl WeightPanels {
    fn group_outputs(&self) -> usize {
        self.outputs / self.groups
    }

    /// Depth values per tap.
    pub(crate) fn depth_per_tap(&self) -> usize {
        if self.transposed { self.group_outputs() } else { self.inputs }
    }

    /// Depth values of all taps.
    fn depth(&self) -> usize {
        self.order.len() * self.depth_per_tap()
    }

    /// Words of the depth. The last may be filled up with zeros.
    pub(crate) fn words(&self) -> usize {
        self.depth().div_ceil(self.per_word)
    }

    /// Columns of a group's B.
    pub(crate) fn columns(&self) -> usize {
        if self.transposed { self.inputs } else { self.group_outputs() }
    }

    /// Words between panels.
    pub(crate) fn panel(&self) -> usize {
        self.row(self.words())
    }

    /// Where a row of a panel begins. Split panels have only rows that are multiples of [`crate::gemm::SPLIT_VALUES`].
    pub(crate) fn row(&self, word: usize) -> usize {
        if self.split { split_words(word) } else { word * self.width }
    }

    /// Panels per group.
    pub(crate) fn panels(&self) -> usize {
        self.columns().div_ceil(self.width)
    }

    /// Words of all panels of all groups.
    pub(crate) fn len(&self) -> usize {
        self.groups * self.panels() * self.panel()
    }

    /// Pieces of a panel that can be packed independently.
    fn pieces(&self) -> usize {
        self.words().div_ceil(PIECE_WORDS)
    }

    /// Words that a piece takes before it is split.
    pub(crate) fn piece_words(&self) -> usize {
        if self.split { PIECE_WORDS * self.width } else { 0 }
    }

    /// The piece of a task: group and panel in one number, and words of the depth.
    fn piece(&self, task: usize) -> (usize, Range<usize>) {
        let first = task % self.pieces() * PIECE_WORDS;
        (task / self.pieces(), first..self.words().min(first + PIECE_WORDS))
    }

    /// Pieces of all panels.
    pub(crate) fn tasks(&self) -> usize {
        self.groups * self.panels() * self.pieces()
    }

    /// Where the weights at a depth begin, for a group's first column.
    #[inline(always)]
    fn place(&self, depth: usize, group: usize) -> usize {
        let tap = self.order[depth / self.depth_per_tap()];
        let k = depth % self.depth_per_tap();
        let row = tap * self.inputs * self.outputs + group * self.group_outputs();
        if self.transposed { row + k } else { row + k * self.outputs }
    }
}

/// Words of a panel's depth in a piece.
const PIECE_WORDS: usize = 256;

/// Packs one piece of panels, and splits it where they are. `space` has [`WeightPanels::piece_words`].
///
/// # Safety
/// The level is available; weights and panels are valid, and no other task has the space.
pub(crate) unsafe fn pack_weights<P: Element>(
    isa: Isa,
    panels: &WeightPanels,
    weights: Region<f32>,
    packed: Region<f32>,
    task: usize,
    space: Region<f32>,
) {
    let (panel, words) = panels.piece(task);
    let at = panel * panels.panel() + panels.row(words.start);
    let len = words.len() * panels.width;
    let out = if panels.split { space.part(0, len) } else { packed.part(at, len) };
    // SAFETY: the caller's promise; tasks write disjoint pieces of the panels.
    unsafe {
        dispatch(isa, PackWeights { panels, weights, out, task, element: PhantomData::<P> });
        if panels.split {
            let sizes = [panels.width, words.len(), panels.width];
            split_panels(isa, out.at(0, len), sizes, packed.at(at, split_words(words.len())));
        }
    }
}

/// Packs one piece of [`WeightPanels`].
struct PackWeights<'a, P> {
    panels: &'a WeightPanels,
    weights: Region<f32>,
    /// The piece's words.
    out: Region<f32>,
    task: usize,
    element: PhantomData<P>,
}

impl<P: Element> Kernel for PackWeights<'_, P> {
    const BF16: bool = P::BF16;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let p = self.panels;
        let (panel, words) = p.piece(self.task);
        let group = panel / p.panels();
        let panel = panel % p.panels();
        let column = panel * p.width;
        let columns = (p.columns() - column).min(p.width);
        let zeros = [0.0; MAX_PANEL_WIDTH];
        // The transposed weights of some depths, `[depth][width]`.
        let mut block = [0.0f32; 2 * PACK_WORDS * MAX_PANEL_WIDTH];
        for first in words.clone().step_by(PACK_WORDS) {
            let end = words.end.min(first + PACK_WORDS);
            if p.transposed {
                // SAFETY: columns and depths of the weights.
                unsafe {
                    self.transpose(
                        first * P::PER_WORD..p.depth().min(end * P::PER_WORD),
                        group,
                        column,
                        columns,
                        &mut block,
                    )
                }
            }
            for word in first..end {
                let row = |half: usize| {
                    let depth = word * P::PER_WORD + half;
                    match () {
                        () if depth >= p.depth() => zeros.as_ptr(),
                        () if p.transposed => block[(depth - first * P::PER_WORD) * MAX_PANEL_WIDTH..].as_ptr(),
                        () => self.weights.at(p.place(depth, group) + column, columns).cast_const(),
                    }
                };
                let out = self.out.at((word - words.start) * p.width, p.width);
                // SAFETY: rows have as many values as there are columns, and the output is this task's.
                unsafe {
                    P::rounded_words::<S>([row(0), row(P::PER_WORD - 1)], columns, out);
                    fill(out, columns, p.width);
                }
            }
        }
    }
}

impl<P: Element> PackWeights<'_, P> {
    /// Copies the weights of some depths, which run along the stored lines, to rows of `MAX_PANEL_WIDTH` columns.
    #[inline(always)]
    unsafe fn transpose(&self, depths: Range<usize>, group: usize, column: usize, columns: usize, block: &mut [f32]) {
        let p = self.panels;
        for (row, depth) in block.chunks_exact_mut(MAX_PANEL_WIDTH).zip(depths) {
            let start = p.place(depth, group);
            for (j, to) in row[..columns].iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                *to = unsafe { *self.weights.at(start + (column + j) * p.outputs, 1) };
            }
        }
    }
}
