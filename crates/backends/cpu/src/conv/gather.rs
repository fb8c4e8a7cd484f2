//! The matmul whose rows are pixels of the result: convolution, the gradient of its input, and linear layers.
//!
//! The result is divided into parts, which are lattices of pixels that meet the same taps. For each part the depth
//! (tap, channel) is divided into chunks. A task gathers a block of pixels for a chunk, which stays in the second-level
//! cache, and multiplies it with every panel of packed weights that the task is responsible for.

use std::marker::PhantomData;
use std::ops::Range;

use super::blend::Blend;
use super::epilogue::Epilogue;
use super::geometry::{self, ConvShape, PlacedTap, TapRun};
use super::source::Source;
use super::strips::Packed;
use crate::element::{Element, copy};
use crate::gemm::{Matmul, SPLIT_VALUES, multiply, multiply_split, panel_width, splits, tile_rows};
use crate::isa::{Isa, Kernel, Simd, dispatch};
use crate::pack::{FeatureMap, Lattice, PackRows, Run, WeightPanels, pack_weights};
use crate::region::Region;
use crate::workspace::{Context, Workspace};

/// Maximum depth of a chunk in words: at this depth 14 rows and a panel of 32 columns stream through the first-level cache.
const CHUNK_WORDS: usize = 576;
/// Words of a gathered block and of the sums: most of a second-level cache of 1 MiB, less the space for panels and results.
const BLOCK_WORDS: usize = 100_000;
/// Maximum rows of a block if the depth is small; if there are enough groups for all threads, long blocks are as good.
const BLOCK_ROWS: usize = 336;
/// Maximum columns of a task, so that its piece of the result stays in cache from chunk to chunk.
const TASK_COLUMNS: usize = 256;
/// Minimum number of tasks of a layer, where possible: enough for that many threads.
const TASKS: usize = 16;

/// The initial value that a matmul is added to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start<E> {
    /// Nothing.
    Zero,
    /// One value per channel.
    Bias(Region<f32>),
    /// A tensor of the result's shape; may be the result itself.
    Base(Region<E>),
}

/// Pixels of the result that meet the same taps.
struct Part {
    lattice: Lattice,
    /// Lattice to pixel of the result.
    step: [usize; 2],
    offset: [usize; 2],
    /// Lattice to pixel of the source.
    source_step: [usize; 2],
    chunks: Vec<Chunk>,
}

/// A piece of the depth.
struct Chunk {
    /// First row of B, in words.
    start: usize,
    /// Depth in words.
    depth: usize,
    runs: Vec<Run>,
    /// If rows are evenly spaced in the source: the channel from which they are read in place, without gathering.
    in_place: Option<usize>,
}

struct Task {
    part: usize,
    /// The number of the block of pixels.
    place: usize,
    points: Range<usize>,
    group: usize,
    columns: Range<usize>,
}

/// What the tasks of a run share.
struct Operands<'a, E> {
    source: Source<E>,
    packed: Region<f32>,
    result: Region<E>,
    start: Start<E>,
    epilogue: Option<&'a dyn Epilogue>,
}

/// A prepared matmul of activations that are stored as `E` and multiplied as `P`.
pub(crate) struct Gather<E, P> {
    source: [usize; 3],
    result: [usize; 3],
    isa: Isa,
    blend: Blend,
    weights: WeightPanels,
    parts: Vec<Part>,
    tasks: Vec<Task>,
    places: usize,
    workspace: Workspace,
    /// Division of a thread's workspace, in f32 values: three tables of row offsets, then the sums.
    tables: usize,
    sums: usize,
    elements: PhantomData<(E, P)>,
}

/// Whether values along the depth form whole pairs in every part: if the number of channels is even, or if there is one
/// part, whose depth continues from tap to tap.
pub(crate) fn pairs(shape: &ConvShape, backward: bool) -> bool {
    let channels = if backward { shape.output[2] } else { shape.input[2] } / shape.conv.groups;
    channels.is_multiple_of(2) || (!backward && shape.conv.groups == 1 && !shape.cut_at_borders())
}

/// Whether pieces of the forward's result begin at whole vectors of channels. Otherwise a pass over a piece would round some channels
/// by vectors that a pass over all of the result rounds one by one.
pub(crate) fn has_whole_pieces(shape: &ConvShape, isa: Isa) -> bool {
    let columns = shape.output[2] / shape.conv.groups;
    let groups = Blend::new(shape, columns, isa).shape(shape).conv.groups;
    groups == 1 || (shape.output[2] / groups).is_multiple_of(panel_width(isa) / 2)
}

impl<E: Element, P: Element> Gather<E, P> {
    /// `(x, w) -> y`, or `(dy, w) -> dx`.
    pub(crate) fn new(shape: &ConvShape, isa: Isa, backward: bool) -> Self {
        let columns = if backward { shape.input[2] } else { shape.output[2] } / shape.conv.groups;
        let blend = Blend::new(shape, columns, isa);
        let shape = &blend.shape(shape);
        let cut = shape.cut_at_borders();
        let [rows, columns] = [0, 1].map(|axis| geometry::tap_runs(shape, axis, cut, backward));
        let groups = shape.conv.groups;
        let [source, result] = shape.source_and_result(backward);
        let mut weights = WeightPanels {
            order: Vec::new(),
            inputs: shape.input[2] / groups,
            outputs: shape.output[2],
            groups,
            transposed: backward,
            width: panel_width(isa),
            per_word: P::PER_WORD,
            split: false,
        };
        let pairs: Vec<_> = rows.iter().flat_map(|y| columns.iter().map(move |x| (y, x))).collect();
        for (y, x) in &pairs {
            for tap in taps(y, x, shape.conv.window.kernel[1]) {
                if !weights.order.contains(&tap.0) {
                    weights.order.push(tap.0);
                }
            }
        }
        weights.split = E::PER_WORD == 1 && splits::<P>(isa, weights.columns(), weights.words());
        let mut gather = Gather {
            source,
            result,
            isa,
            blend,
            weights,
            parts: Vec::new(),
            tasks: Vec::new(),
            places: 0,
            workspace: Workspace::default(),
            tables: 0,
            sums: 0,
            elements: PhantomData,
        };
        gather.parts = pairs.into_iter().map(|(y, x)| gather.part(y, x, shape)).collect();
        // Taps of a part may begin in the middle of a row of a split panel.
        let mut starts = gather.parts.iter().flat_map(|part| &part.chunks).map(|chunk| chunk.start);
        gather.weights.split &= starts.all(|start| start.is_multiple_of(SPLIT_VALUES));
        gather.cut_tasks(shape.batch);
        gather
    }

    fn part(&self, y: &TapRun, x: &TapRun, shape: &ConvShape) -> Part {
        let position = |tap| self.weights.order.iter().position(|&t| t == tap).unwrap_or(0);
        let mut taps: Vec<PlacedTap> = taps(y, x, shape.conv.window.kernel[1])
            .map(|(tap, dy, dx)| PlacedTap { position: position(tap), dy, dx })
            .collect();
        taps.sort_by_key(|tap| tap.position);
        let channels = self.weights.depth_per_tap();
        let source_step = [y.source_step, x.source_step];
        let lattice = Lattice { y: y.points.clone(), x: x.points.clone() };
        let even = source_step == [1; 2]
            && (lattice.y.clone(), lattice.x.clone()) == (0..self.source[0], 0..self.source[1])
            && matches!(taps[..], [PlacedTap { dy: 0, dx: 0, .. }])
            && E::DTYPE == P::DTYPE
            && !shape.normalized
            && self.source[2].is_multiple_of(P::PER_WORD)
            // Rows 4 KiB apart map to the same set of the first-level cache, so gathering them is faster.
            && !self.source[2].is_multiple_of(1024 * P::PER_WORD);
        let mut chunks = Vec::new();
        // Taps at consecutive positions are consecutive rows of B.
        for taps in taps.chunk_by(|a, b| a.position + 1 == b.position) {
            let depth = taps.len() * channels;
            let count = depth.div_ceil(P::PER_WORD * CHUNK_WORDS);
            let even_words = if self.weights.split { SPLIT_VALUES } else { 16 };
            let size = depth.div_ceil(count).next_multiple_of(even_words * P::PER_WORD);
            for start in (0..depth).step_by(size) {
                let columns = start..(start + size).min(depth);
                chunks.push(Chunk {
                    start: (taps[0].position * channels + start) / P::PER_WORD,
                    depth: columns.len().div_ceil(P::PER_WORD),
                    in_place: even.then_some(start),
                    runs: geometry::runs(taps, channels, self.weights.groups == 1, columns),
                });
            }
        }
        Part { lattice, step: [y.step, x.step], offset: [y.offset, x.offset], source_step, chunks }
    }

    fn cut_tasks(&mut self, batch: usize) {
        let columns = self.weights.columns();
        let widest = if self.weights.split { 2 * TASK_COLUMNS } else { TASK_COLUMNS };
        let mut groups = columns.div_ceil(widest);
        let total: usize = self.parts.iter().map(|part| batch * part.lattice.len()).sum();
        let tile = tile_rows::<P>(self.isa);
        let block = |part: &Part| {
            let depth = part.chunks.iter().map(|chunk| chunk.depth).max().unwrap_or(1);
            let most = if self.weights.groups < TASKS { BLOCK_ROWS } else { BLOCK_WORDS };
            (BLOCK_WORDS / row_stride(depth)).clamp(tile, most) / tile * tile
        };
        let blocks: usize = self.parts.iter().map(|part| (batch * part.lattice.len()).div_ceil(block(part))).sum();
        let width = self.weights.width;
        while self.weights.groups * groups * blocks < TASKS && columns.div_ceil(groups) > 4 * width {
            groups += 1;
        }
        let column_step = columns.div_ceil(groups).next_multiple_of(width);
        // Few blocks although columns are divided: use smaller blocks.
        let few = self.weights.groups * groups * blocks < TASKS;
        let most = if few { total.div_ceil(TASKS.div_ceil(groups)).next_multiple_of(tile) } else { total };
        let mut tasks = Vec::new();
        let (mut private, mut tables, mut sums) = (0, 0, 0);
        for group in 0..self.weights.groups {
            for start in (0..columns).step_by(column_step) {
                let mut place = 0;
                for (index, part) in self.parts.iter().enumerate() {
                    let rows = batch * part.lattice.len();
                    let step = block(part).min(most);
                    let count = rows.div_ceil(step);
                    for i in 0..count {
                        let points = rows * i / count..rows * (i + 1) / count;
                        tables = tables.max(points.len());
                        if E::PER_WORD > 1 {
                            sums = sums.max(points.len() * row_stride(column_step.min(columns)));
                        }
                        for chunk in part.chunks.iter().filter(|chunk| chunk.in_place.is_none()) {
                            private = private.max(points.len() * row_stride(chunk.depth));
                        }
                        let columns = start..(start + column_step).min(columns);
                        tasks.push(Task { part: index, place, points, group, columns });
                        place += 1;
                    }
                }
                self.places = place;
            }
        }
        let words = std::mem::size_of::<usize>() / std::mem::size_of::<f32>();
        (self.tables, self.sums) = (tables * words, sums);
        let private = (3 * self.tables + sums + private).max(self.weights.piece_words());
        self.workspace = Workspace { shared: self.weights.len() + self.blend.len(), private };
        self.tasks = tasks;
    }

    /// Workspace that [`Gather::run`] needs.
    pub(crate) fn workspace(&self) -> Workspace {
        self.workspace
    }

    /// Number of places that [`Gather::run`] gives an epilogue.
    pub(crate) fn places(&self) -> usize {
        self.places
    }

    /// Computes the matmul, and does something with each piece of the result as soon as it is complete.
    ///
    /// # Safety
    /// The regions are valid, of the shapes that the matmul was prepared for, and not written by other code; `result`
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
        let packed = context.shared;
        // SAFETY: the weights are valid, and the workspace is this instruction's.
        unsafe { self.pack(context, weights, packed) };
        let private = &context.private;
        let operands = Operands { source: source.into(), packed, result, start, epilogue };
        context.pool.run(self.tasks.len(), |task, thread| {
            // SAFETY: tasks write disjoint pieces of the result, and each thread its own workspace.
            unsafe { self.task(&self.tasks[task], private[thread], &operands) }
        });
    }

    /// Packs the weights, blended or as they are, into `packed`.
    ///
    /// # Safety
    /// The regions are valid, and no other code uses `packed`.
    unsafe fn pack(&self, context: &mut Context, weights: Region<f32>, packed: Region<f32>) {
        let blended = packed.part(self.weights.len(), self.blend.len());
        // SAFETY: the caller's promise.
        let weights = unsafe { self.blend.spread(&mut context.pool, weights, blended) };
        let isa = self.isa;
        let private = &context.private;
        context.pool.run(self.weights.tasks(), |task, thread| {
            let space = private[thread].part(0, self.weights.piece_words());
            // SAFETY: tasks write disjoint pieces of the workspace.
            unsafe { pack_weights::<P>(isa, &self.weights, weights, packed, task, space) }
        });
    }

    unsafe fn task(&self, task: &Task, workspace: Region<f32>, operands: &Operands<E>) {
        let Operands { source: Source { data: source, norm }, packed, result, start, epilogue } = *operands;
        let part = &self.parts[task.part];
        let rows = task.points.len();
        let table = |index: usize| {
            let words: *mut usize = workspace.at(index * self.tables, self.tables).cast();
            // SAFETY: this thread's workspace begins with three tables of `tables` words; they do not overlap.
            unsafe { std::slice::from_raw_parts_mut(words, rows) }
        };
        let (targets, starts, sum_rows) = (table(0), table(1), table(2));
        part.lattice.locate(task.points.clone(), part.step, part.offset, self.result, targets);
        let column = task.group * self.weights.columns() + task.columns.start;
        let columns = task.columns.len();
        let end = targets.iter().max().copied().unwrap_or(0) + column + columns;
        let c = result.at(column, end - column);
        // Sums of chunks are kept in the result itself if it is f32.
        let sums = workspace.part(3 * self.tables, self.sums);
        let sums: (*mut f32, *const usize) = if E::PER_WORD == 1 {
            (c.cast(), targets.as_ptr())
        } else {
            let stride = row_stride(columns);
            sum_rows.iter_mut().enumerate().for_each(|(i, row)| *row = i * stride);
            (sums.at(0, sums.len()), sum_rows.as_ptr())
        };
        let (init, init_rows) = match start {
            Start::Zero => (std::ptr::null(), targets.as_ptr()),
            Start::Base(base) => {
                let base = base.at(column, end - column).cast_const();
                if E::PER_WORD == 1 {
                    (base.cast(), targets.as_ptr())
                } else {
                    // SAFETY: rows of the base and of the sums.
                    unsafe { dispatch(self.isa, Widen { columns, from: base, from_rows: targets, to: sums }) };
                    (sums.0.cast_const(), sums.1)
                }
            }
            Start::Bias(bias) => {
                starts.fill(0);
                (bias.at(column, columns).cast_const(), starts.as_ptr())
            }
        };
        if part.chunks.is_empty() {
            // SAFETY: rows of the result, which this task owns, and of the initial values.
            unsafe { fill(columns, c, targets, init, init_rows) };
        }
        let blocks = workspace.part(3 * self.tables + self.sums, workspace.len() - 3 * self.tables - self.sums);
        let channels = self.weights.depth_per_tap();
        let [height, width, all_channels] = self.source;
        let map = FeatureMap { data: source, height, width, channels: all_channels, first: task.group * channels };
        let panels =
            (task.group * self.weights.panels() + task.columns.start / self.weights.width) * self.weights.panel();
        for (index, chunk) in part.chunks.iter().enumerate() {
            let (a, stride) = match chunk.in_place {
                Some(channel) => {
                    let at = task.points.start * all_channels + map.first + channel;
                    let values = chunk.depth * P::PER_WORD;
                    let a = source.at(at, (rows - 1) * all_channels + values);
                    (a.cast_const().cast(), all_channels / P::PER_WORD)
                }
                None => {
                    let stride = row_stride(chunk.depth);
                    // SAFETY: the source is valid, and the block belongs to this thread.
                    unsafe {
                        dispatch(
                            self.isa,
                            PackRows {
                                source: map,
                                norm,
                                lattice: &part.lattice,
                                points: task.points.clone(),
                                step: part.source_step,
                                runs: &chunk.runs,
                                out: Region::<P>::new(blocks.at(0, rows * stride).cast(), rows * stride * P::PER_WORD),
                                stride: stride * P::PER_WORD,
                            },
                        );
                    }
                    (blocks.at(0, rows * stride).cast_const(), stride)
                }
            };
            let (init, init_rows) = if index == 0 { (init, init_rows) } else { (sums.0.cast_const(), sums.1) };
            let b = packed.at(panels + self.weights.row(chunk.start), 0);
            let depth = chunk.depth;
            let panel = self.weights.panel();
            let far = true;
            // SAFETY: addresses as computed above; this task owns its rows and columns of the result.
            unsafe {
                if self.weights.split {
                    let (c, c_rows) = sums;
                    let matmul = Matmul { rows, columns, depth, a, stride, b, panel, c, c_rows, init, init_rows, far };
                    multiply_split::<false>(self.isa, [matmul]);
                } else if index + 1 == part.chunks.len() {
                    let c_rows = targets.as_ptr();
                    let matmul = Matmul { rows, columns, depth, a, stride, b, panel, c, c_rows, init, init_rows, far };
                    multiply::<P, E, false>(self.isa, [matmul]);
                } else {
                    let (c, c_rows) = sums;
                    let matmul = Matmul { rows, columns, depth, a, stride, b, panel, c, c_rows, init, init_rows, far };
                    multiply::<P, f32, false>(self.isa, [matmul]);
                }
            }
        }
        if let Some(epilogue) = epilogue {
            // SAFETY: this task's piece of the result is complete.
            unsafe { epilogue.run(self.isa, task.place, targets, column..column + columns) };
        }
    }
}

impl<E: Element, P: Element> Packed<E> for Gather<E, P> {
    fn workspace(&self) -> Workspace {
        self.workspace
    }

    unsafe fn pack(&self, context: &mut Context, weights: Region<f32>, shared: Region<f32>) {
        // SAFETY: the caller's promise.
        unsafe { Gather::pack(self, context, weights, shared) }
    }

    unsafe fn run_packed(
        &self,
        private: Region<f32>,
        source: Region<E>,
        packed: Region<f32>,
        result: Region<E>,
        epilogue: &dyn Epilogue,
    ) {
        let operands = Operands { source: source.into(), packed, result, start: Start::Zero, epilogue: Some(epilogue) };
        // SAFETY: the caller's promise.
        self.tasks.iter().for_each(|task| unsafe { self.task(task, private, &operands) });
    }
}

/// Copies rows to f32, with a table of offsets on each side.
struct Widen<'a, E> {
    columns: usize,
    from: *const E,
    from_rows: &'a [usize],
    to: (*mut f32, *const usize),
}

impl<E: Element> Kernel for Widen<'_, E> {
    const BF16: bool = E::BF16;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (i, &row) in self.from_rows.iter().enumerate() {
            // SAFETY: the caller's promise: offsets lead to valid rows of `columns` values.
            unsafe { copy::<S, E, f32>(self.from.add(row), self.to.0.add(*self.to.1.add(i)), self.columns) };
        }
    }
}

/// Taps of a part in packing order: `(stored tap, dy, dx)`.
fn taps<'a>(y: &'a TapRun, x: &'a TapRun, kernel: usize) -> impl Iterator<Item = (usize, isize, isize)> + 'a {
    y.taps.iter().flat_map(move |&(ky, dy)| x.taps.iter().map(move |&(kx, dx)| (ky * kernel + kx, dy, dx)))
}

/// Words between gathered rows: an odd number of cache lines, so that the rows of a tile spread over the sets of the cache.
pub(super) fn row_stride(depth: usize) -> usize {
    (depth.div_ceil(16) | 1) * 16
}

/// Sets the rows of the result that meet no tap to their initial values.
///
/// # Safety
/// Row offsets lead to valid rows of `columns` values; the result may coincide with the initial values.
unsafe fn fill<E: Element>(columns: usize, c: *mut E, c_rows: &[usize], init: *const f32, init_rows: *const usize) {
    for (i, &row) in c_rows.iter().enumerate() {
        // SAFETY: the caller's promise; a value is read before it is written, so both rows may be the same.
        unsafe {
            for column in 0..columns {
                let value = if init.is_null() { 0.0 } else { *init.add(*init_rows.add(i) + column) };
                *c.add(row + column) = E::of(value);
            }
        }
    }
}
