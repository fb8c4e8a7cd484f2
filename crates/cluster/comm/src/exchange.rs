//! Gather, scatter and all-to-all: operations in which ranks get different data.
//!
//! Between ranks that share memory only what a rank gets is copied. Between nodes it travels to all ranks, as in an all-gather, because
//! the ranks of a node share connections.

use std::sync::Arc;

use crate::cause::Cause;
use crate::element::Element;
use crate::group::Group;
use crate::operation::{Kind, Operation};

impl Group {
    /// Concatenates every rank's `input` into the `output` of rank `root`, which has room for as many elements from each rank. The
    /// other ranks' output is not used, and may be empty.
    ///
    /// # Errors
    /// The group's [`Cause`]: `root` is no rank, its `output` has another length, a rank calls another operation, has
    /// failed or left, or comes too late.
    ///
    /// ```
    /// use enmasse_comm::Group;
    /// let ranks = Group::threads(3)?.into_iter().map(|group| {
    ///     std::thread::spawn(move || {
    ///         let mut all = if group.rank() == 1 { vec![0; 3] } else { vec![] };
    ///         group.gather(&[group.rank() as u8], &mut all, 1).map(|()| all)
    ///     })
    /// });
    /// let results: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
    /// assert_eq!(results, [Ok(vec![]), Ok(vec![0, 1, 2]), Ok(vec![])]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn gather<T: Element>(&self, input: &[T], output: &mut [T], root: usize) -> Result<(), Arc<Cause>> {
        self.run(self.gather_of(input, output, root)?)
    }

    /// Divides the `input` of rank `root` among the ranks, in their order: each gets as many elements as its `output` has. The other
    /// ranks' input is not used, and may be empty.
    ///
    /// # Errors
    /// The group's [`Cause`]: `root` is no rank, its `input` has another length, a rank calls another operation, has
    /// failed or left, or comes too late.
    pub fn scatter<T: Element>(&self, input: &[T], output: &mut [T], root: usize) -> Result<(), Arc<Cause>> {
        self.run(self.scatter_of(input, output, root)?)
    }

    /// Divides every rank's `input` among the ranks, in their order. Each rank's `output`, which is as long, concatenates what it gets
    /// from each.
    ///
    /// # Errors
    /// The group's [`Cause`]: `input` cannot be divided, or `output` has another length, a rank calls another
    /// operation, has failed or left, or comes too late.
    ///
    /// ```
    /// use enmasse_comm::Group;
    /// let ranks = Group::threads(2)?.into_iter().map(|group| {
    ///     std::thread::spawn(move || {
    ///         let mut output = [0; 4];
    ///         let input = if group.rank() == 0 { [1, 2, 3, 4] } else { [5, 6, 7, 8] };
    ///         group.all_to_all(&input, &mut output).map(|()| output)
    ///     })
    /// });
    /// let results: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
    /// assert_eq!(results, [Ok([1, 2, 5, 6]), Ok([3, 4, 7, 8])]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Arc<Cause>> {
        self.run(self.all_to_all_of(input, output)?)
    }

    pub(crate) fn gather_of<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        root: usize,
    ) -> Result<Operation, Arc<Cause>> {
        let operation = Operation::new(Kind::Gather, input.as_ptr(), output.as_mut_ptr(), input.len());
        let operation = self.with_root(operation, root)?;
        if self.rank() == root { self.with_room(operation, "output", output.len()) } else { Ok(operation) }
    }

    pub(crate) fn scatter_of<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        root: usize,
    ) -> Result<Operation, Arc<Cause>> {
        let operation = Operation::new(Kind::Scatter, input.as_ptr(), output.as_mut_ptr(), output.len());
        let operation = self.with_root(operation, root)?;
        if self.rank() == root { self.with_room(operation, "input", input.len()) } else { Ok(operation) }
    }

    pub(crate) fn all_to_all_of<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<Operation, Arc<Cause>> {
        let count = input.len() / self.world_size();
        let operation = Operation::new(Kind::AllToAll, input.as_ptr(), output.as_mut_ptr(), count);
        self.with_room(operation, "input", input.len())?;
        self.with_room(operation, "output", output.len())
    }
}
