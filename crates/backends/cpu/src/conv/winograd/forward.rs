//! The convolution, and the gradient of its input.

use std::marker::PhantomData;
use std::ops::Range;

use super::tiles::{Layout, Patches, Planes, TransformPatches, TransformResult};
use super::tiling::Tiling;
use super::weights::{DEPTHS, Filters, TransformWeights, WeightLayout};
use super::{PLANES, even_pieces, odd_lines, row_values};
use crate::conv::{ConvShape, Epilogue, Source, Start};
use crate::element::Element;
use crate::gemm::{Matmul, multiply, panel_width, tile_rows};
use crate::isa::{Isa, dispatch};
use crate::region::Region;
use crate::workspace::{Context, Workspace};

/// Maximum number of channels for which threads take blocks. With more, the transformed weights outgrow
/// the third-level cache.
const BLOCK_CHANNELS: usize = 256;
/// Maximum number of channels for which they do so however few tiles there are.
const ALWAYS_BLOCKS: usize = 128;
/// Number of tiles that counts as few, since they would make too few blocks.
const FEW_TILES: usize = 84;
/// Words of transformed patches and matmuls that a thread processes at a time: most of a second-level cache of 1 MiB.
const BLOCK_WORDS: usize = 130_000;
/// Words of the patches that threads share: half of a third-level cache of 32 MiB.
const SHARED_WORDS: usize = 1 << 22;
/// Tiles and columns of a piece. A piece transforms its own weights, which takes as long as the matmuls
/// of two or three tiles.
const PIECE: [usize; 2] = [84, 32];
/// Number of depths that a piece multiplies at a time.
const PIECE_DEPTHS: usize = 256;
/// Minimum number of tasks of a layer, where possible.
const TASKS: usize = 16;
/// Tiles per task if patches are shared.
const PATCH_TILES: usize = 4;

/// Tiles whose patches are transformed before they are multiplied.
struct Block {
    tiles: Range<usize>,
    pieces: Vec<Piece>,
}

/// What is multiplied together.
struct Piece {
    /// The number of the tiles among all pieces of the same columns.
    place: usize,
    /// Tiles, counted from the block's first.
    tiles: Range<usize>,
    columns: Range<usize>,
}

/// How threads share the work.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    /// Each thread takes blocks of tiles, from patches to results; all weights are transformed before.
    Blocks,
    /// All threads transform patches, then take pieces of the results. A piece transforms its own weights, so that the
    /// transformed weights never exist as a whole.
    Pieces,
}

/// A prepared convolution of activations stored as `E`, whose transforms are rounded to `E` and multiplied as such.
pub(crate) struct Winograd<E> {
    isa: Isa,
    source: [usize; 3],
    result: [usize; 3],
    offset: [isize; 2],
    tiling: Tiling,
    filters: Filters,
    work: Work,
    /// Transformed weights: all, or those of the piece in progress.
    weights: WeightLayout,
    blocks: Vec<Block>,
    places: usize,
    /// Transformed patches of a block.
    patches: Layout,
    /// Matmuls of a piece.
    matmuls: Layout,
    /// Where the rows of the matmuls begin.
    rows: Vec<usize>,
    element: PhantomData<E>,
}

impl<E: Element> Winograd<E> {
    /// `(x, w) -> y`, or `(dy, w) -> dx`.
    pub(crate) fn new(shape: &ConvShape, isa: Isa, backward: bool) -> Self {
        let [source, result] = shape.source_and_result(backward);
        let offset = shape.conv.window.padding.map(|[before, _]| match backward {
            false => -(before as isize),
            true => before as isize - 2,
        });
        let tiling = Tiling::new(shape.batch, result);
        let (inputs, outputs) = (shape.input[2], shape.output[2]);
        let filters = Filters { inputs, outputs, flipped: backward };
        let columns = filters.columns();
        let width = panel_width(isa);
        // In words.
        let depth = filters.depth().div_ceil(E::PER_WORD);
        let piece_depth = PIECE_DEPTHS / E::PER_WORD;
        let channels = filters.depth().max(columns);
        let most = if tiling.count() > FEW_TILES { BLOCK_CHANNELS } else { ALWAYS_BLOCKS };
        let work = if channels > most { Work::Pieces } else { Work::Blocks };
        let (weights, most) = match work {
            Work::Blocks => {
                let most = BLOCK_WORDS / (PLANES * (row_values(depth) + row_values(columns)));
                let height = tile_rows::<E>(isa);
                // Few tiles: smaller blocks, so that more threads have work.
                let most = (most.min(tiling.count().div_ceil(TASKS)) / height).max(1) * height;
                (WeightLayout::new(depth, columns, width), most)
            }
            Work::Pieces => {
                let weights = WeightLayout::new(piece_depth.min(depth), PIECE[1].min(columns), width);
                (weights, SHARED_WORDS / (PLANES * row_values(depth)))
            }
        };
        // A block that one thread processes is of one class, so that its matmuls have equally many rows.
        let whole = 0..tiling.count();
        let runs: Vec<Range<usize>> = if work == Work::Blocks { tiling.classes().collect() } else { vec![whole] };
        let mut places = 0;
        let blocks: Vec<Block> = runs
            .into_iter()
            .flat_map(|run| {
                even_pieces(run.len(), most).map(move |piece| run.start + piece.start..run.start + piece.end)
            })
            .map(|tiles| {
                let pieces = pieces(work, places, tiles.len(), columns, width);
                places = pieces.last().map_or(places, |piece| piece.place + 1);
                Block { pieces, tiles }
            })
            .collect();
        let block_tiles = blocks.iter().map(|block| block.tiles.len()).max().unwrap_or(0);
        let all = || blocks.iter().flat_map(|block| &block.pieces);
        let piece_tiles = all().map(|piece| piece.tiles.len()).max().unwrap_or(0);
        let piece_columns = all().map(|piece| piece.columns.len()).max().unwrap_or(0);
        let patches = Layout::rows(block_tiles, depth);
        let matmuls = Layout::rows(piece_tiles, piece_columns);
        let rows = (0..piece_tiles).map(|tile| tile * matmuls.row).collect();
        let element = PhantomData;
        Winograd {
            isa,
            source,
            result,
            offset,
            tiling,
            filters,
            work,
            weights,
            blocks,
            places,
            patches,
            matmuls,
            rows,
            element,
        }
    }

    /// Number of places that [`Winograd::run`] gives an epilogue.
    pub(crate) fn places(&self) -> usize {
        self.places
    }

    /// Words of the zeros at the start of the workspace.
    fn zeros(&self) -> usize {
        odd_lines(self.filters.depth())
    }

    /// Workspace for [`Winograd::run`].
    pub(crate) fn workspace(&self) -> Workspace {
        let (patches, matmuls) = (self.patches.len(), self.matmuls.len());
        let zeros = self.zeros();
        let weights = self.weights.len();
        match self.work {
            Work::Blocks => Workspace { shared: zeros + weights, private: patches + matmuls },
            Work::Pieces => Workspace { shared: zeros + patches, private: matmuls + weights },
        }
    }

    /// Computes the convolution, and does something with each tile of the result as soon as it is complete.
    ///
    /// # Safety
    /// The regions are valid, of the shapes that the convolution was prepared for, and not written by other code; `result`
    /// overlaps no operand except the base. The epilogue is valid for each element of the result.
    pub(crate) unsafe fn run(
        &self,
        context: &mut Context,
        source: impl Into<Source<E>>,
        weights: Region<f32>,
        result: Region<E>,
        start: Start<E>,
        epilogue: Option<&dyn Epilogue>,
    ) {
        let zeros = context.shared.part(0, self.zeros());
        // SAFETY: the workspace is this instruction's.
        unsafe { zeros.slice_mut(0, zeros.len()) }.fill(0.0);
        let alone = self.work == Work::Blocks;
        let transformed = context.shared.part(zeros.len(), if alone { self.weights.len() } else { 0 });
        let private = &context.private;
        let epilogue = epilogue.map(|epilogue| (epilogue, self.isa));
        let source = source.into();
        let job = Job { conv: self, source, weights, transformed, zeros: zeros.cast(), result, start, epilogue };
        if alone {
            let panels = self.filters.columns().div_ceil(self.weights.width);
            context.pool.run(panels * self.filters.depth().div_ceil(DEPTHS), |task, _| {
                let panel = task % panels;
                let first = task / panels * DEPTHS;
                let depths = first..self.filters.depth().min(first + DEPTHS);
                let place = panel * self.weights.panel + first / E::PER_WORD * self.weights.width;
                let out = transformed.part(place, transformed.len() - place);
                // SAFETY: tasks write disjoint pieces of the workspace.
                unsafe { job.transform_weights(depths, panel * self.weights.width, out) }
            });
            context.pool.run(self.blocks.len(), |task, thread| {
                let block = &self.blocks[task];
                let patches = Planes { data: private[thread].part(0, self.patches.len()), layout: self.patches };
                // SAFETY: tasks write disjoint tiles of the result, and each thread its own workspace.
                unsafe {
                    job.transform(block.tiles.clone(), patches);
                    let rest = private[thread].part(patches.data.len(), self.matmuls.len());
                    block.pieces.iter().for_each(|piece| job.multiply(block, piece, patches, rest));
                }
            });
            return;
        }
        let data = context.shared.part(zeros.len(), self.patches.len());
        let patches = Planes { data, layout: self.patches };
        for block in &self.blocks {
            let tiles = block.tiles.len();
            context.pool.run(tiles.div_ceil(PATCH_TILES), |task, _| {
                let first = task * PATCH_TILES;
                let end = tiles.min((task + 1) * PATCH_TILES);
                // SAFETY: tasks write disjoint rows of the patches.
                unsafe { job.transform(block.tiles.start + first..block.tiles.start + end, patches.starting_at(first)) }
            });
            context.pool.run(block.pieces.len(), |task, thread| {
                // SAFETY: tasks write disjoint pieces of the result, and each thread its own workspace.
                unsafe { job.multiply(block, &block.pieces[task], patches, private[thread]) }
            });
        }
    }
}

/// Divides a block of tiles into pieces, whose places begin at `first`.
fn pieces(work: Work, first: usize, tiles: usize, columns: usize, width: usize) -> Vec<Piece> {
    if work == Work::Blocks {
        return vec![Piece { place: first, tiles: 0..tiles, columns: 0..columns }];
    }
    let step = PIECE[1].next_multiple_of(width);
    (first..)
        .zip(even_pieces(tiles, PIECE[0]))
        .flat_map(|(place, tiles)| {
            let of = move |start: usize| start..(start + step).min(columns);
            (0..columns).step_by(step).map(move |start| Piece { place, tiles: tiles.clone(), columns: of(start) })
        })
        .collect()
}

/// One run.
struct Job<'a, E> {
    conv: &'a Winograd<E>,
    source: Source<E>,
    weights: Region<f32>,
    /// All transformed weights, if threads take blocks.
    transformed: Region<f32>,
    zeros: Region<E>,
    result: Region<E>,
    start: Start<E>,
    epilogue: Option<(&'a dyn Epilogue, Isa)>,
}

impl<E: Element> Job<'_, E> {
    unsafe fn transform(&self, tiles: Range<usize>, out: Planes) {
        let Winograd { isa, source: size, offset, ref tiling, .. } = *self.conv;
        let patches = Patches::<E, 6> { source: self.source, size, tiling, offset, zeros: self.zeros };
        // SAFETY: the caller's promise.
        unsafe { dispatch(isa, TransformPatches { patches, tiles, out }) }
    }

    unsafe fn transform_weights(&self, depths: Range<usize>, column: usize, out: Region<f32>) {
        let Winograd { isa, filters, weights: layout, .. } = *self.conv;
        let weights = self.weights;
        let element = PhantomData::<E>;
        // SAFETY: the caller's promise.
        unsafe { dispatch(isa, TransformWeights { filters, weights, depths, column, out, layout, element }) }
    }

    /// The transformed weights of some depths and columns, computed in the workspace if they do not exist yet.
    unsafe fn weights(&self, depths: &Range<usize>, columns: &Range<usize>, workspace: Region<f32>) -> Region<f32> {
        let WeightLayout { width, panel, .. } = self.conv.weights;
        if self.conv.work == Work::Blocks {
            let first = columns.start / width * panel + depths.start / E::PER_WORD * width;
            return self.transformed.part(first, self.transformed.len() - first);
        }
        for (index, column) in columns.clone().step_by(width).enumerate() {
            for first in depths.clone().step_by(DEPTHS) {
                let place = index * panel + (first - depths.start) / E::PER_WORD * width;
                let out = workspace.part(place, self.conv.weights.len() - place);
                // SAFETY: the caller's promise; the workspace belongs to this thread.
                unsafe { self.transform_weights(first..depths.end.min(first + DEPTHS), column, out) }
            }
        }
        workspace
    }

    /// Matmuls of a piece, and their transform. The workspace holds the matmuls, then the weights.
    unsafe fn multiply(
        &self,
        block: &Block,
        Piece { place, tiles, columns }: &Piece,
        patches: Planes,
        workspace: Region<f32>,
    ) {
        let Winograd { isa, ref tiling, ref filters, work, ref weights, matmuls: to, ref rows, .. } = *self.conv;
        let own = block.tiles.start + tiles.start..block.tiles.start + tiles.end;
        let matmuls = Planes { data: workspace.part(0, to.len()), layout: to };
        let workspace = workspace.part(to.len(), workspace.len() - to.len());
        let from = patches.layout;
        let depth = filters.depth();
        let step = if work == Work::Pieces { PIECE_DEPTHS } else { depth };
        for first in (0..depth).step_by(step) {
            let depths = first..depth.min(first + step);
            // SAFETY: the caller's promise.
            let b = unsafe { self.weights(&depths, columns, workspace) };
            let words = depths.len().div_ceil(E::PER_WORD);
            let matmul = |plane| {
                let needing = tiling.needing(plane, &own);
                let last = needing.len().checked_sub(1)?;
                let place = plane * from.plane + (tiles.start + needing.start) * from.row + first / E::PER_WORD;
                let c = matmuls.data.at(plane * to.plane + needing.start * to.row, last * to.row + columns.len());
                Some(Matmul {
                    rows: needing.len(),
                    columns: columns.len(),
                    depth: words,
                    a: patches.data.at(place, last * from.row + words),
                    stride: from.row,
                    b: b.at(plane * weights.plane, (columns.len().div_ceil(weights.width) - 1) * weights.panel),
                    panel: weights.panel,
                    c,
                    c_rows: rows.as_ptr(),
                    init: if first == 0 { std::ptr::null() } else { c.cast_const() },
                    init_rows: rows.as_ptr(),
                    far: false,
                })
            };
            // SAFETY: addresses as computed above; the matmuls belong to this thread.
            unsafe { multiply::<E, f32, false>(isa, (0..PLANES).filter_map(matmul)) };
        }
        let transform = TransformResult {
            matmuls,
            tiling,
            tiles: own,
            result: self.result,
            size: self.conv.result,
            channels: columns.clone(),
            start: self.start,
            place: *place,
            epilogue: self.epilogue,
        };
        // SAFETY: this task owns its tiles and channels of the result.
        unsafe { dispatch(isa, transform) }
    }
}
