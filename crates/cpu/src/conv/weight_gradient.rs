//! The product whose depth runs over pixels: the gradient of weights.
//!
//! Each task owns some rows (tap, channel) and columns (output channels) of the gradient and goes through all pixels in chunks of
//! fixed size, so that nothing is summed across threads. It gathers the pixels of x for its rows, and copies those of dy
//! into panels; both copies are small beside the product.

use std::ops::Range;

use super::gather::row_stride;
use super::geometry::{self, ConvShape, PlacedTap};
use crate::gemm::{Product, multiply, panel_width};
use crate::isa::{Isa, dispatch};
use crate::pack::{Lattice, Map, PackPixelPanels, PackRows, Run};
use crate::region::Region;
use crate::scratch::{Context, Scratch};

/// Pixels per chunk: a panel of 32 columns of it is as large as the first-level cache.
const CHUNK_PIXELS: usize = 256;
/// The most rows of a task, so that its block of x stays in the second-level cache.
const TASK_ROWS: usize = 288;
/// The fewest rows, below which copying dy for each task would show.
const FEWEST_ROWS: usize = 28;
/// The most columns of a task.
const TASK_COLUMNS: usize = 256;
/// Tasks that a layer is cut into at least, where it can be.
const TASKS: usize = 16;

struct Task {
    group: usize,
    /// First row of the gradient, `tap * inputs + input`.
    start: usize,
    rows: usize,
    /// Output channels within the group.
    columns: Range<usize>,
    /// Output pixels that meet the map through the task's taps.
    lattice: Lattice,
    runs: Vec<Run>,
}

/// A prepared gradient of weights.
pub(crate) struct WeightGradient {
    shape: ConvShape,
    isa: Isa,
    tasks: Vec<Task>,
    chunk: usize,
    /// Of a thread's scratch: the gathered block of x, then panels of dy, then the table of rows.
    block: usize,
    panels: usize,
    scratch: Scratch,
}

impl WeightGradient {
    /// `(x, dy) -> dw`.
    pub(crate) fn new(shape: &ConvShape, isa: Isa) -> Self {
        let groups = shape.conv.groups;
        let (inputs, outputs) = (shape.input[2] / groups, shape.output[2] / groups);
        let [kernel_height, kernel_width] = shape.conv.window.kernel;
        let displacements = |axis: usize| -> Vec<isize> {
            let window = &shape.conv.window;
            (0..window.kernel[axis])
                .map(|k| (k * window.dilation[axis]) as isize - window.padding[axis] as isize)
                .collect()
        };
        let (dy, dx) = (displacements(0), displacements(1));
        let taps: Vec<PlacedTap> = (0..kernel_height * kernel_width)
            .map(|tap| PlacedTap { position: tap, dy: dy[tap / kernel_width], dx: dx[tap % kernel_width] })
            .collect();
        // On small maps each tap goes alone, over the pixels it meets; elsewhere all taps share the gathered pixels.
        let bands: Vec<&[PlacedTap]> = if shape.cut_at_borders() { taps.chunks(1).collect() } else { vec![&taps[..]] };
        let width = panel_width(isa);
        let column_step = outputs.div_ceil(outputs.div_ceil(TASK_COLUMNS)).next_multiple_of(width);
        let column_tasks = outputs.div_ceil(column_step);
        let mut tasks = Vec::new();
        for group in 0..groups {
            for band in &bands {
                let lattice = match band {
                    [tap] => Lattice { y: met(shape, 0, tap.dy), x: met(shape, 1, tap.dx) },
                    _ => Lattice { y: 0..shape.output[0], x: 0..shape.output[1] },
                };
                let depth = band.len() * inputs;
                let wanted = TASKS.div_ceil(groups * bands.len() * column_tasks);
                let count = depth.div_ceil(TASK_ROWS).max(wanted).min(depth.div_ceil(FEWEST_ROWS));
                for i in 0..count {
                    let rows = depth * i / count..depth * (i + 1) / count;
                    for start in (0..outputs).step_by(column_step) {
                        tasks.push(Task {
                            group,
                            start: band[0].position * inputs + rows.start,
                            rows: rows.len(),
                            columns: start..(start + column_step).min(outputs),
                            lattice: lattice.clone(),
                            runs: geometry::runs(band, inputs, groups == 1, rows.clone()),
                        });
                    }
                }
            }
        }
        let pixels = tasks.iter().map(|task| shape.batch * task.lattice.len()).max().unwrap_or(0);
        let chunk = pixels.min(CHUNK_PIXELS);
        let rows = tasks.iter().map(|task| task.rows).max().unwrap_or(0);
        let block = chunk * row_stride(rows);
        let panels = chunk * column_step.min(outputs.next_multiple_of(width));
        let words = std::mem::size_of::<usize>() / std::mem::size_of::<f32>();
        let scratch = Scratch { shared: 0, private: block + panels.next_multiple_of(2) + rows * words };
        WeightGradient { shape: *shape, isa, tasks, chunk, block, panels: panels.next_multiple_of(2), scratch }
    }

    /// Scratch that [`WeightGradient::run`] needs.
    pub(crate) fn scratch(&self) -> Scratch {
        self.scratch
    }

    /// Computes the gradient.
    ///
    /// # Safety
    /// The regions are valid, of the shapes the gradient was prepared for, and `dw` lies over nothing else.
    pub(crate) unsafe fn run(&self, context: &mut Context, x: Region<f32>, dy: Region<f32>, dw: Region<f32>) {
        let private = &context.private;
        context.pool.run(self.tasks.len(), |task, thread| {
            // SAFETY: tasks write disjoint pieces of the gradient, and each thread its own scratch.
            unsafe { self.task(&self.tasks[task], private[thread], x, dy, dw) }
        });
    }

    unsafe fn task(&self, task: &Task, scratch: Region<f32>, x: Region<f32>, dy: Region<f32>, dw: Region<f32>) {
        let (groups, isa) = (self.shape.conv.groups, self.isa);
        let map = |data, [height, width, channels]: [usize; 3]| {
            let first = task.group * (channels / groups);
            Map { data, height, width, channels, first }
        };
        let (source, gradient) = (map(x, self.shape.input), map(dy, self.shape.output));
        let outputs = self.shape.output[2];
        let words: *mut usize = scratch.at(self.block + self.panels, 0).cast();
        // SAFETY: this thread's scratch ends with a table of the rows of the largest task.
        let table = unsafe { std::slice::from_raw_parts_mut(words, task.rows) };
        for (i, row) in table.iter_mut().enumerate() {
            *row = i * outputs;
        }
        let columns = task.columns.len();
        let corner = task.start * outputs + gradient.first + task.columns.start;
        let c = dw.at(corner, (task.rows - 1) * outputs + columns);
        let pixels = self.shape.batch * task.lattice.len();
        if pixels == 0 {
            for &row in &*table {
                // SAFETY: a row of the gradient that this task owns.
                unsafe { std::ptr::write_bytes(c.add(row), 0, columns) };
            }
        }
        let width = panel_width(isa);
        let stride = row_stride(task.rows);
        let panels = scratch.part(self.block, self.panels);
        for start in (0..pixels).step_by(self.chunk.max(1)) {
            let points = start..(start + self.chunk).min(pixels);
            let (depth, panel) = (points.len(), self.chunk * width);
            let gathered = PackRows {
                source,
                lattice: &task.lattice,
                points: points.clone(),
                step: self.shape.conv.window.stride,
                runs: &task.runs,
                out: scratch,
                stride,
            };
            let gradients = PackPixelPanels {
                source: gradient,
                lattice: &task.lattice,
                points,
                columns: task.columns.clone(),
                width,
                out: panels,
                panel,
            };
            let product = Product {
                rows: task.rows,
                columns,
                depth,
                a: scratch.at(0, depth * stride),
                stride,
                transposed: true,
                b: panels.at(0, columns.div_ceil(width) * panel),
                panel,
                c,
                c_rows: table.as_ptr(),
                init: if start == 0 { std::ptr::null() } else { c.cast_const() },
                init_rows: table.as_ptr(),
            };
            // SAFETY: operands are valid, the scratch is this thread's, and this task owns its piece of the gradient.
            unsafe {
                dispatch(isa, gathered);
                dispatch(isa, gradients);
                multiply(isa, &product);
            }
        }
    }
}

/// Output points along an axis from which a tap displaced by `displacement` meets the map.
fn met(shape: &ConvShape, axis: usize, displacement: isize) -> Range<usize> {
    let pixel = |point: usize| (point * shape.conv.window.stride[axis]) as isize + displacement;
    let inside = |point: &usize| (0..shape.input[axis] as isize).contains(&pixel(*point));
    let start = (0..shape.output[axis]).find(inside).unwrap_or(0);
    let len = (start..shape.output[axis]).take_while(|point| inside(point)).count();
    start..start + len
}
