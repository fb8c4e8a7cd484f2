//! The matmul whose depth runs over pixels: the gradient of weights.
//!
//! Each task owns some rows (tap, channel) and columns (output channels) and goes through its pixels in chunks. It
//! gathers the pixels of x for its rows, and copies those of dy into panels. Both copies are small compared with the
//! matmul as long as a task has many rows and columns. If that leaves few tasks, pixels are divided into parts, each
//! with its own gradient, which are added in order. The number of parts depends only on the layer. A pair of bf16
//! values is two pixels of one channel.

use std::marker::PhantomData;
use std::ops::Range;

use super::blend::Blend;
use super::gather::row_stride;
use super::geometry::{self, ConvShape, PlacedTap};
use super::source::Source;
use crate::element::Element;
use crate::gemm::{Matmul, multiply, multiply_split, panel_width, split_panels, split_words, splits};
use crate::inlined::inlined;
use crate::isa::{Isa, Simd, dispatch};
use crate::pack::{FeatureMap, Lattice, PackPixelPanels, PackRowWords, PackRows, Run};
use crate::region::Region;
use crate::sweep::{self, Pass};
use crate::workspace::{Context, Workspace};

/// What a task works on at a time.
struct Limits {
    /// Words of pixels per chunk.
    chunk: usize,
    /// Words of x, dy and the gradient.
    cache: usize,
    /// Columns.
    columns: usize,
}

/// For caches of 32 KiB, most of which is a panel of 32 columns, and of 1 MiB.
const LIMITS: Limits = Limits { chunk: 192, cache: 222_000, columns: 384 };
/// With tile registers, which take less time between two visits to the gradient.
const TILE_LIMITS: Limits = Limits { chunk: 256, cache: 220_000, columns: 256 };
/// The same if matmuls are split: for a second-level cache of 2 MiB, as processors with tile registers have.
const SPLIT_LIMITS: Limits = Limits { chunk: 256, cache: 350_000, columns: 512 };
/// Fewest rows and columns of a task, where possible.
const MIN_SIDE: usize = 64;
/// Fewest rows for which splitting dy pays.
const MIN_SPLIT_ROWS: usize = 64;
/// Minimum number of tasks of a layer, where possible.
const TASKS: usize = 16;
/// Minimum pixels of a part.
const PART_PIXELS: usize = 1024;
/// Maximum number of values that the gradients of parts may take together.
const PART_VALUES: usize = 1 << 22;

struct Task {
    group: usize,
    /// First row of the gradient, `tap * inputs + input`.
    start: usize,
    rows: usize,
    /// Output channels within the group.
    columns: Range<usize>,
    /// Output pixels that meet the feature map through the task's taps.
    lattice: Lattice,
    runs: Vec<Run>,
    /// The task's points of the lattice, over all images.
    points: Range<usize>,
    part: usize,
}

/// How a gradient is divided into tasks.
#[derive(Debug, PartialEq)]
struct Division {
    row_tasks: usize,
    column_tasks: usize,
    /// Columns of a task, but for the last one.
    column_step: usize,
}

impl Division {
    /// Of the divisions of a gradient of so many rows and columns into enough tasks, the one that copies least. `tasks` says how many the
    /// layer has if its gradient is divided into so many.
    fn new([rows, columns]: [usize; 2], width: usize, limits: &Limits, tasks: impl Fn(usize) -> usize) -> Self {
        let most = columns.div_ceil(MIN_SIDE.next_multiple_of(width));
        // Narrow tasks come first: of those that copy as much, they are faster.
        let divisions = (columns.div_ceil(limits.columns)..=most).rev().flat_map(|column_tasks| {
            let column_step = columns.div_ceil(column_tasks).next_multiple_of(width);
            let fitting = (limits.cache - limits.chunk * column_step) / (limits.chunk + column_step);
            let least = rows.div_ceil(fitting);
            let column_tasks = columns.div_ceil(column_step);
            (least..=least.max(rows / MIN_SIDE)).map(move |row_tasks| Division { row_tasks, column_tasks, column_step })
        });
        // Each task copies its rows of x and its columns of dy.
        let copies = |of: &Division| of.row_tasks * columns + of.column_tasks * rows;
        let enough = |of: &Division| tasks(of.row_tasks * of.column_tasks).min(TASKS);
        let best = divisions.min_by_key(|of| (TASKS - enough(of), copies(of)));
        best.expect("a task has fewer columns at least than at most")
    }
}

/// A prepared gradient of weights, for activations stored as `E`.
pub(crate) struct WeightGradient<E> {
    shape: ConvShape,
    isa: Isa,
    blend: Blend,
    tasks: Vec<Task>,
    chunk: usize,
    /// Number of gradients that are added.
    parts: usize,
    /// Number of values of the gradient.
    len: usize,
    /// Division of a thread's workspace, in words: the gathered block of x, then panels of dy, the same split, then the table of rows.
    block: usize,
    panels: usize,
    /// 0 unless matmuls are split.
    split: usize,
    /// Values of a gathered row; two such rows end the workspace.
    row: usize,
    workspace: Workspace,
    element: PhantomData<E>,
}

impl<E: Element> WeightGradient<E> {
    /// `(x, dy) -> dw`.
    pub(crate) fn new(shape: &ConvShape, isa: Isa) -> Self {
        let blend = Blend::new(shape, shape.output[2] / shape.conv.groups, isa);
        let shape = &blend.shape(shape);
        let groups = shape.conv.groups;
        let (inputs, outputs) = (shape.input[2] / groups, shape.output[2] / groups);
        let [kernel_height, kernel_width] = shape.conv.window.kernel;
        let tap = |position: usize| PlacedTap {
            position,
            dy: shape.displacement(0, position / kernel_width),
            dx: shape.displacement(1, position % kernel_width),
        };
        let taps: Vec<PlacedTap> = (0..kernel_height * kernel_width).map(tap).collect();
        // On small feature maps each tap is processed separately, over the pixels that it meets; elsewhere all taps share the
        // gathered pixels.
        let bands: Vec<&[PlacedTap]> = if shape.cut_at_borders() { taps.chunks(1).collect() } else { vec![&taps[..]] };
        let width = panel_width(isa);
        let depth = bands[0].len() * inputs;
        let is_split =
            depth >= MIN_SPLIT_ROWS && splits::<E>(isa, outputs, shape.batch * shape.output[0] * shape.output[1]);
        let limits = match isa {
            _ if is_split => SPLIT_LIMITS,
            Isa::Amx => TILE_LIMITS,
            _ => LIMITS,
        };
        let len = taps.len() * inputs * shape.output[2];
        let points = |lattice: &Lattice| shape.batch * lattice.len();
        let pixels = points(&Lattice { y: 0..shape.output[0], x: 0..shape.output[1] });
        let whole = |tasks: usize| groups * bands.len() * tasks;
        let parts = |tasks| TASKS.div_ceil(whole(tasks)).min(pixels / PART_PIXELS).min(PART_VALUES / len).max(1);
        let together = |tasks| whole(tasks) * parts(tasks);
        let Division { row_tasks, column_tasks, column_step } =
            Division::new([depth, outputs], width, &limits, together);
        let parts = parts(row_tasks * column_tasks);
        let mut tasks = Vec::new();
        for (group, band, part) in
            (0..groups).flat_map(|g| bands.iter().flat_map(move |band| (0..parts).map(move |part| (g, band, part))))
        {
            let lattice = match band {
                [tap] => Lattice { y: geometry::met(shape, 0, tap.dy), x: geometry::met(shape, 1, tap.dx) },
                _ => Lattice { y: 0..shape.output[0], x: 0..shape.output[1] },
            };
            for i in 0..row_tasks {
                let rows = depth * i / row_tasks..depth * (i + 1) / row_tasks;
                for start in (0..outputs).step_by(column_step) {
                    tasks.push(Task {
                        group,
                        start: band[0].position * inputs + rows.start,
                        rows: rows.len(),
                        columns: start..(start + column_step).min(outputs),
                        points: points(&lattice) * part / parts..points(&lattice) * (part + 1) / parts,
                        lattice: lattice.clone(),
                        runs: geometry::runs(band, inputs, groups == 1, rows.clone()),
                        part,
                    });
                }
            }
        }
        let chunk = tasks.iter().map(|task| task.points.len()).max().unwrap_or(0).min(E::PER_WORD * limits.chunk);
        let rows = tasks.iter().map(|task| task.rows).max().unwrap_or(0);
        let depth = chunk.div_ceil(E::PER_WORD);
        let block = depth * row_stride(rows);
        let panels = depth * column_step.min(outputs.next_multiple_of(width));
        let words = std::mem::size_of::<usize>() / std::mem::size_of::<f32>();
        let split = if is_split { column_step / width * split_words(chunk) } else { 0 };
        let panels = panels.next_multiple_of(2);
        let shared = if parts > 1 { parts * len } else { 0 } + blend.len();
        let row = row_stride(rows);
        let workspace =
            Workspace { shared, private: block + panels + split + (rows * words).next_multiple_of(16) + 2 * row };
        let shape = *shape;
        WeightGradient {
            shape,
            isa,
            blend,
            tasks,
            chunk,
            parts,
            len,
            block,
            panels,
            split,
            row,
            workspace,
            element: PhantomData,
        }
    }

    /// Workspace for [`WeightGradient::run`].
    pub(crate) fn workspace(&self) -> Workspace {
        self.workspace
    }

    /// Computes the gradient.
    ///
    /// # Safety
    /// The regions are valid, of the shapes that the gradient was prepared for, and `dw` overlaps no other region.
    pub(crate) unsafe fn run(&self, context: &mut Context, x: impl Into<Source<E>>, dy: Region<E>, dw: Region<f32>) {
        let private = &context.private;
        let shared = context.shared;
        let x = x.into();
        let gradient = dw;
        let dw = match self.blend.len() {
            0 => gradient,
            len => shared.part(self.workspace.shared - len, len),
        };
        context.pool.run(self.tasks.len(), |task, thread| {
            let task = &self.tasks[task];
            let dw = if self.parts > 1 { shared.part(task.part * self.len, self.len) } else { dw };
            // SAFETY: tasks write disjoint pieces of the gradient, and each thread its own workspace.
            unsafe { self.task(task, private[thread], x, dy, dw) }
        });
        if self.parts > 1 {
            let pass = AddParts { values: shared, parts: self.parts, sum: dw };
            // SAFETY: the parts are complete, and the gradient belongs to this instruction.
            unsafe { sweep::flat(context, self.len, &pass) }
        }
        if self.blend.len() > 0 {
            // SAFETY: the blended gradient is complete, and the gradient belongs to this instruction.
            unsafe { self.blend.collect(&mut context.pool, dw, gradient) }
        }
    }

    unsafe fn task(&self, task: &Task, workspace: Region<f32>, x: Source<E>, dy: Region<E>, dw: Region<f32>) {
        let (groups, isa) = (self.shape.conv.groups, self.isa);
        let map = |data: Region<E>, [height, width, channels]: [usize; 3]| {
            let first = task.group * (channels / groups);
            FeatureMap { data, height, width, channels, first }
        };
        let source = map(x.data, self.shape.input);
        let gradient = map(dy, self.shape.output);
        let outputs = self.shape.output[2];
        let words: *mut usize = workspace.at(self.block + self.panels + self.split, 0).cast();
        // SAFETY: this thread's workspace ends with a table of the rows of the largest task.
        let table = unsafe { std::slice::from_raw_parts_mut(words, task.rows) };
        for (i, row) in table.iter_mut().enumerate() {
            *row = i * outputs;
        }
        let columns = task.columns.len();
        let corner = task.start * outputs + gradient.first + task.columns.start;
        let c = dw.at(corner, (task.rows - 1) * outputs + columns);
        if task.points.is_empty() {
            for &row in &*table {
                // SAFETY: a row of the gradient that this task owns.
                unsafe { std::ptr::write_bytes(c.add(row), 0, columns) };
            }
        }
        let width = panel_width(isa);
        let stride = row_stride(task.rows);
        let panels = workspace.part(self.block, self.panels);
        let split = workspace.part(self.block + self.panels, self.split);
        let rows = workspace.at(self.workspace.private - 2 * self.row, 2 * self.row);
        let rows = Region::<E>::new(rows.cast(), 2 * self.row);
        for start in task.points.clone().step_by(self.chunk.max(1)) {
            let points = start..(start + self.chunk).min(task.points.end);
            let depth = points.len().div_ceil(E::PER_WORD);
            let gathered = PackRows {
                source,
                norm: x.norm,
                lattice: &task.lattice,
                points: points.clone(),
                step: self.shape.conv.window.stride,
                runs: &task.runs,
                out: rows,
                stride: self.row,
            };
            let gathered = PackRowWords { rows: gathered, out: workspace, stride, columns: task.rows };
            let panel = self.chunk.div_ceil(E::PER_WORD) * width;
            let gradients = PackPixelPanels {
                source: gradient,
                lattice: &task.lattice,
                points: points.clone(),
                columns: task.columns.clone(),
                width,
                out: panels,
                panel,
            };
            let count = columns.div_ceil(width);
            let matmul = Matmul {
                rows: task.rows,
                columns,
                depth,
                a: workspace.at(0, depth * stride).cast_const(),
                stride,
                b: panels.at(0, count * panel),
                panel,
                c,
                c_rows: table.as_ptr(),
                init: if start == task.points.start { std::ptr::null() } else { c.cast_const() },
                init_rows: table.as_ptr(),
                far: true,
            };
            // SAFETY: operands are valid, the workspace belongs to this thread, and this task owns its piece of the gradient.
            unsafe {
                let in_place = self.rows_in_place(task, x, points.clone()).filter(|_| self.split > 0);
                if in_place.is_none() {
                    dispatch(isa, gathered);
                }
                if self.split == 0 {
                    dispatch(isa, gradients);
                    multiply::<E, f32, true>(isa, [matmul]);
                    continue;
                }
                let to = split.at(0, count * split_words(depth));
                if self.is_whole(&task.lattice) {
                    let first = points.start * outputs + gradient.first + task.columns.start;
                    let from = dy.at(first, (depth - 1) * outputs + columns).cast_const();
                    split_panels(isa, from.cast(), [outputs, depth, columns], to);
                } else {
                    dispatch(isa, gradients);
                    for index in 0..count {
                        let to = split.at(index * split_words(depth), split_words(depth));
                        split_panels(isa, panels.at(index * panel, depth * width), [width, depth, width], to);
                    }
                }
                let (a, stride) = in_place.unwrap_or((matmul.a, stride));
                multiply_split::<true>(isa, [Matmul { a, stride, b: to, panel: split_words(depth), ..matmul }]);
            }
        }
    }

    /// Whether a lattice has all output pixels, in their order.
    fn is_whole(&self, lattice: &Lattice) -> bool {
        [&lattice.y, &lattice.x] == [&(0..self.shape.output[0]), &(0..self.shape.output[1])]
    }

    /// Where a task's rows of words begin in x, and their distance, if output pixels are input pixels as they are stored, and words are values.
    fn rows_in_place(&self, task: &Task, x: Source<E>, points: Range<usize>) -> Option<(*const f32, usize)> {
        let (channels, [run]) = (self.shape.input[2], &task.runs[..]) else { return None };
        let ConvShape { input, output, conv, .. } = &self.shape;
        let is_pixel =
            (run.dy, run.dx, run.pixels) == (0, 0, 1) && conv.window.stride == [1, 1] && input[..2] == output[..2];
        (is_pixel && x.norm.is_none() && E::PER_WORD == 1 && self.is_whole(&task.lattice)).then(|| {
            let first = points.start * channels + task.group * (channels / self.shape.conv.groups) + run.skip;
            (x.data.at(first, (points.len() - 1) * channels + task.rows).cast_const().cast(), channels)
        })
    }
}

/// Adds the gradients of parts, in order.
pub(super) struct AddParts {
    /// `[part][value]`.
    pub values: Region<f32>,
    pub parts: usize,
    pub sum: Region<f32>,
}

impl Pass for AddParts {
    const BF16: bool = false;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, _: usize) {
            let len = self.sum.len();
            let mut sum = S::load(self.values.at(index, S::LANES));
            for part in 1..self.parts {
                sum = S::add(sum, S::load(self.values.at(part * len + index, S::LANES)));
            }
            S::store(self.sum.at(index, S::LANES), sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisions_have_enough_tasks_and_copy_least() {
        let division = |size, most_parts| {
            let Division { row_tasks, column_tasks, column_step } =
                Division::new(size, 32, &LIMITS, |tasks| tasks * TASKS.div_ceil(tasks).min(most_parts));
            (row_tasks, [column_tasks, column_step])
        };
        // The linear layers of ViT-S/16, whose 3,152 tokens are at most three parts.
        assert_eq!(division([384, 1536], 3), (1, [6, 256]));
        assert_eq!(division([1536, 384], 3), (6, [1, 384]));
        assert_eq!(division([384, 384], 3), (2, [3, 128]));
        // Parts alone are enough tasks.
        assert_eq!(division([96, 384], 49), (1, [1, 384]));
        // Too small for many tasks.
        assert_eq!(division([8, 10], 1), (1, [1, 32]));
        // The task's rows of x, columns of dy and piece of the gradient fit in the cache.
        for size in [[3072, 768], [768, 3072], [4608, 512]] {
            let (row_tasks, [_, columns]) = division(size, 1);
            let rows = size[0].div_ceil(row_tasks);
            assert!(LIMITS.chunk * (rows + columns) + rows * columns <= LIMITS.cache, "{size:?}: {rows} x {columns}");
        }
    }
}
