//! The gradient of the weights.
//!
//! Here tiles are the depth of the matmuls. With few channels, tiles are divided into parts, each with its own
//! gradient, and these are added in order; each part is processed by one thread. With many channels, all threads work
//! on the same tiles, and tasks own pieces of the gradient. In both cases a piece of the 36 matrices is transformed
//! back while it is in the second-level cache, so that the matrices never exist as a whole.

use std::marker::PhantomData;
use std::ops::Range;

use super::tiles::{Layout, Patches, Planes, TransformTiles};
use super::tiling::Tiling;
use super::weights::{TAPS, TransformGradient};
use super::{PLANES, even_pieces, odd_lines, row_values};
use crate::conv::weight_gradient::AddParts;
use crate::conv::{ConvShape, Source};
use crate::element::Element;
use crate::gemm::{Matmul, multiply, panel_width, tile_rows};
use crate::isa::{Isa, dispatch};
use crate::region::Region;
use crate::sweep;
use crate::workspace::{Context, Workspace};

/// Maximum number of channels for which each thread has its own tiles.
const ALONE_CHANNELS: usize = 128;
/// Tiles processed at a time by a thread with its own tiles: enough that the matmuls' depth outweighs their transform.
const BLOCK_TILES: usize = 56;
/// Maximum number of parts that tiles are divided into.
const PARTS: usize = 16;
/// Maximum number of values that the gradients of parts may take together.
const PART_VALUES: usize = 1 << 22;
/// Minimum tiles of a part.
const PART_TILES: usize = 16;
/// Words of transformed patches and gradients that all threads share: most of a third-level cache of 32 MiB.
const SHARED_WORDS: usize = 5 << 20;
/// Inputs and outputs of a piece, at most.
const PIECE: [usize; 2] = [28, 128];
/// Tiles per task if patches are shared.
const PATCH_TILES: usize = 4;

/// A prepared gradient of weights for activations stored as `E`, whose transforms are rounded to `E` and multiplied as such.
pub(crate) struct WinogradGradient<E> {
    shape: ConvShape,
    isa: Isa,
    tiling: Tiling,
    /// Whether all threads work on one block.
    shared: bool,
    /// Blocks of tiles of each part.
    parts: Vec<Vec<Range<usize>>>,
    /// Transformed patches and gradients of a block.
    operands: [Layout; 2],
    /// Inputs and outputs of each piece.
    pieces: Vec<[Range<usize>; 2]>,
    /// Matmuls of a piece. Their rows are inputs.
    matmuls: Layout,
    /// Where these rows begin.
    rows: Vec<usize>,
    element: PhantomData<E>,
}

impl<E: Element> WinogradGradient<E> {
    /// `(x, dy) -> dw`.
    pub(crate) fn new(shape: &ConvShape, isa: Isa) -> Self {
        let tiling = Tiling::new(shape.batch, shape.output);
        let inputs = shape.input[2];
        let outputs = shape.output[2];
        let width = panel_width(isa);
        let shared = inputs.max(outputs) > ALONE_CHANNELS;
        let per_tile = PLANES * (row_values(inputs) + outputs.next_multiple_of(width));
        let (parts, most) = match shared {
            true => (1, E::PER_WORD * SHARED_WORDS / per_tile),
            false => (PARTS.min(PART_VALUES / (TAPS * inputs * outputs)), E::PER_WORD * BLOCK_TILES),
        };
        let parts: Vec<Vec<_>> = even_pieces(tiling.count(), tiling.count().div_ceil(parts.max(1)).max(PART_TILES))
            .map(|part| even_pieces(part.len(), most).map(|b| part.start + b.start..part.start + b.end).collect())
            .collect();
        let step = PIECE[1].min(outputs).next_multiple_of(width);
        // At least as many inputs as the tallest register tile has rows.
        let pieces: Vec<_> = even_pieces(inputs, PIECE[0].max(tile_rows::<E>(isa)))
            .flat_map(|rows| {
                (0..outputs).step_by(step).map(move |start| [rows.clone(), start..(start + step).min(outputs)])
            })
            .collect();
        let block_tiles = parts.iter().flatten().map(|block| block.len()).max().unwrap_or(0);
        let piece_inputs = pieces.iter().map(|[inputs, _]| inputs.len()).max().unwrap_or(0);
        let matmuls = Layout::rows(piece_inputs, step.min(outputs));
        let rows = (0..piece_inputs).map(|input| input * matmuls.row).collect();
        let words = block_tiles.div_ceil(E::PER_WORD);
        let operands = [Layout::rows(words, inputs), Layout::panels(words, outputs, width)];
        let shape = *shape;
        WinogradGradient { shape, isa, tiling, shared, parts, operands, pieces, matmuls, rows, element: PhantomData }
    }

    /// Number of values of the gradient.
    fn len(&self) -> usize {
        TAPS * self.shape.input[2] * self.shape.output[2]
    }

    /// Number of zeros at the start of the workspace.
    fn zeros(&self) -> usize {
        odd_lines(self.shape.input[2].max(self.shape.output[2]))
    }

    /// The operands, one after the other from `first`.
    fn operands(&self, workspace: Region<f32>, first: usize) -> [Planes; 2] {
        let [patches, gradients] = self.operands;
        [
            Planes { data: workspace.part(first, patches.len()), layout: patches },
            Planes { data: workspace.part(first + patches.len(), gradients.len()), layout: gradients },
        ]
    }

    /// Workspace for [`WinogradGradient::run`].
    pub(crate) fn workspace(&self) -> Workspace {
        let operands = self.operands.iter().map(Layout::len).sum::<usize>();
        let matmuls = self.matmuls.len();
        let gradients = if self.parts.len() > 1 { self.parts.len() * self.len() } else { 0 };
        match self.shared {
            true => Workspace { shared: self.zeros() + operands, private: matmuls },
            false => Workspace { shared: self.zeros() + gradients, private: matmuls + operands },
        }
    }

    /// Computes the gradient.
    ///
    /// # Safety
    /// The regions are valid, of the shapes that the gradient was prepared for, and `dw` overlaps no other region.
    pub(crate) unsafe fn run(&self, context: &mut Context, x: impl Into<Source<E>>, dy: Region<E>, dw: Region<f32>) {
        let zeros = context.shared.part(0, self.zeros());
        let rest = context.shared.part(zeros.len(), context.shared.len() - zeros.len());
        // SAFETY: the workspace is this instruction's.
        unsafe { zeros.slice_mut(0, zeros.len()) }.fill(0.0);
        let private = &context.private;
        let matmuls =
            |thread: usize| Planes { data: private[thread].part(0, self.matmuls.len()), layout: self.matmuls };
        let job = Job { of: self, x: x.into(), dy, zeros: zeros.cast() };
        if self.shared {
            let operands = self.operands(rest, 0);
            for (number, block) in self.parts.iter().flatten().enumerate() {
                let tiles = block.len();
                context.pool.run(tiles.div_ceil(PATCH_TILES), |task, _| {
                    let first = task * PATCH_TILES;
                    let end = tiles.min((task + 1) * PATCH_TILES);
                    let operands = operands.map(|planes| planes.starting_at(first / E::PER_WORD));
                    // SAFETY: tasks write disjoint rows of the operands.
                    unsafe { job.transform(block.start + first..block.start + end, operands) }
                });
                context.pool.run(self.pieces.len(), |task, thread| {
                    let piece = &self.pieces[task];
                    let matmuls = matmuls(thread);
                    // SAFETY: tasks write disjoint pieces of the gradient, and each thread its own workspace.
                    unsafe { job.multiply(piece, block, operands, matmuls, dw, number > 0) }
                });
            }
            return;
        }
        context.pool.run(self.parts.len(), |part, thread| {
            let dw = if self.parts.len() > 1 { rest.part(part * self.len(), self.len()) } else { dw };
            let operands = self.operands(private[thread], self.matmuls.len());
            for (number, block) in self.parts[part].iter().enumerate() {
                // SAFETY: each part has its own gradient, and each thread its own workspace.
                unsafe {
                    job.transform(block.clone(), operands);
                    for piece in &self.pieces {
                        job.multiply(piece, block, operands, matmuls(thread), dw, number > 0);
                    }
                }
            }
        });
        if self.parts.len() > 1 {
            let pass = AddParts { values: rest, parts: self.parts.len(), sum: dw };
            // SAFETY: the parts are complete, and the gradient belongs to this instruction.
            unsafe { sweep::flat(context, self.len(), &pass) }
        }
    }
}

/// One run.
struct Job<'a, E> {
    of: &'a WinogradGradient<E>,
    x: Source<E>,
    dy: Region<E>,
    zeros: Region<E>,
}

impl<E: Element> Job<'_, E> {
    unsafe fn transform(&self, tiles: Range<usize>, [patches, gradients]: [Planes; 2]) {
        let WinogradGradient { isa, ref shape, ref tiling, .. } = *self.of;
        let zeros = self.zeros;
        let offset = shape.conv.window.padding.map(|[before, _]| -(before as isize));
        let x = Patches::<E, 6> { source: self.x, size: shape.input, tiling, offset, zeros };
        let dy = Patches::<E, 4> { source: self.dy.into(), size: shape.output, tiling, offset: [0; 2], zeros };
        let x = TransformTiles { patches: x, tiles: tiles.clone(), out: patches };
        let dy = TransformTiles { patches: dy, tiles, out: gradients };
        // SAFETY: the caller's promise.
        unsafe {
            dispatch(isa, x);
            dispatch(isa, dy);
        }
    }

    /// Computes one piece of the gradient, from a block of tiles.
    unsafe fn multiply(
        &self,
        [inputs, outputs]: &[Range<usize>; 2],
        tiles: &Range<usize>,
        [patches, gradients]: [Planes; 2],
        matmuls: Planes,
        dw: Region<f32>,
        add: bool,
    ) {
        let WinogradGradient { isa, ref shape, ref tiling, ref rows, .. } = *self.of;
        let width = panel_width(isa);
        let panels = outputs.len().div_ceil(width);
        let (a, b, c) = (patches.layout, gradients.layout, matmuls.layout);
        let matmul = |plane| {
            // Words of tiles that need the plane. Other tiles would add zeros: those that share a word with a tile that
            // needs the plane, and the one word that is used if no tile needs it.
            let needing = tiling.needing(plane, tiles);
            let words = match needing.is_empty() {
                true => 0..1,
                false => needing.start / E::PER_WORD..needing.end.div_ceil(E::PER_WORD),
            };
            let depth = words.len();
            let place = outputs.start / width * b.panel + words.start * width;
            Matmul {
                rows: inputs.len(),
                columns: outputs.len(),
                depth,
                a: patches
                    .data
                    .at(plane * a.plane + words.start * a.row + inputs.start, (depth - 1) * a.row + inputs.len()),
                stride: a.row,
                b: gradients.data.at(plane * b.plane + place, (panels - 1) * b.panel + depth * width),
                panel: b.panel,
                c: matmuls.data.at(plane * c.plane, (inputs.len() - 1) * c.row + outputs.len()),
                c_rows: rows.as_ptr(),
                init: std::ptr::null(),
                init_rows: rows.as_ptr(),
                far: false,
            }
        };
        // SAFETY: addresses as computed above; the matmuls belong to this thread.
        unsafe { multiply::<E, f32, true>(isa, (0..PLANES).map(matmul)) };
        let transform = TransformGradient {
            matmuls,
            gradient: dw,
            size: [shape.input[2], shape.output[2]],
            inputs: inputs.clone(),
            outputs: outputs.clone(),
            add,
        };
        // SAFETY: this task owns its piece of the gradient.
        unsafe { dispatch(isa, transform) }
    }
}
