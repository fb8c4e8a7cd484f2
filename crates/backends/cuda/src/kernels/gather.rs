//! Rows that lie apart, side by side, and back: `kernels/gather.cu`. Rows are floats, equally many in each.

use super::operands::{count, float_count, floats};
use super::{blocks, kernel};
use crate::work::Argument::{Null, Read, Write};
use crate::work::{Argument, Kernel, Place, Span};

/// Rows that one kernel moves: `ROWS` in `gather.cu`.
const ROWS: usize = 16;

/// Copies the rows `from` to one place, in order.
pub(crate) fn gather_rows(from: &[Span], to: Place) -> Vec<Kernel> {
    let elements = from.first().map_or(0, |&row| float_count(row));
    let chunk = |(number, rows): (usize, &[Span])| {
        let mut arguments = pointers(rows, Read);
        arguments.push(Write(floats(to, number * ROWS * elements, rows.len() * elements)));
        arguments.push(count(elements));
        by_rows("gather_rows", rows.len(), elements, arguments)
    };
    from.chunks(ROWS).enumerate().map(chunk).collect()
}

/// Copies a pair of rows to each of the pairs `to`.
pub(crate) fn scatter_rows(from: Span, to: &[[Span; 2]]) -> Vec<Kernel> {
    let elements = float_count(from) / 2;
    let chunk = |rows: &[[Span; 2]]| {
        let rows = rows.as_flattened();
        let mut arguments = vec![Read(from)];
        arguments.extend(pointers(rows, Write));
        arguments.extend([count(2), count(elements)]);
        by_rows("scatter_rows", rows.len(), elements, arguments)
    };
    to.chunks(ROWS / 2).map(chunk).collect()
}

fn pointers(rows: &[Span], argument: fn(Span) -> Argument) -> Vec<Argument> {
    let mut arguments: Vec<Argument> = rows.iter().map(|&row| argument(row)).collect();
    arguments.resize(ROWS, Null);
    arguments
}

fn by_rows(name: &str, rows: usize, elements: usize, arguments: Vec<Argument>) -> Kernel {
    let [x, ..] = blocks(elements);
    kernel(name, [x, rows as u32, 1], arguments)
}
