//! Operations that are started with memory of their own, and give it back.
//!
//! The memory cannot be touched while an operation is under way, and if the handle is forgotten, it is never freed. So these need no
//! promise of the caller.

use std::fmt;
use std::sync::Arc;

use crate::cause::Cause;
use crate::element::{Element, Reduction};
use crate::engine::Handle;
use crate::group::Group;
use crate::operation::{Kind, Operation};

/// An operation in progress, and the memory that it works on. Dropping it waits for the end, like [`Handle`].
#[must_use = "the result is in it"]
pub struct Pending<T> {
    // Before the memory, which is freed only after the operation has ended.
    handle: Handle,
    input: Vec<T>,
    output: Vec<T>,
}

impl<T> Pending<T> {
    /// Waits until the operation has ended, and returns its result; an error is the cause of the group's failure.
    ///
    /// # Errors
    /// The group's [`Cause`], as of the operation that has been started.
    pub fn wait(self) -> Result<Vec<T>, Arc<Cause>> {
        let Pending { handle, input, output } = self;
        handle.wait()?;
        drop(input);
        Ok(output)
    }

    /// Whether the operation has ended, successfully or not.
    pub fn is_done(&self) -> bool {
        self.handle.is_done()
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("handle", &self.handle).field("len", &self.output.len()).finish()
    }
}

impl Group {
    /// Starts [`Group::all_reduce_with`], and returns. The communication thread carries out operations in the order in which they were
    /// started.
    ///
    /// ```
    /// use enmasse_comm::{Group, Reduction};
    /// let ranks = Group::threads(2)?.into_iter().map(|group| {
    ///     std::thread::spawn(move || {
    ///         let gradients = vec![group.rank() as f32; 1000];
    ///         let sum = group.all_reduce_owned(gradients, Reduction::Sum);
    ///         // Here the rank computes something else.
    ///         sum.wait()
    ///     })
    /// });
    /// for rank in ranks.collect::<Vec<_>>() {
    ///     assert_eq!(rank.join().unwrap()?, [1.0; 1000]);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn all_reduce_owned<T: Element>(&self, data: Vec<T>, reduction: Reduction) -> Pending<T> {
        self.start_in(data, |data| {
            Ok(Operation { reduction, ..self.sum_of(Kind::AllReduce, data.as_mut_ptr(), data.len()) })
        })
    }

    /// Starts [`Group::reduce_to`], and returns.
    pub fn reduce_to_owned<T: Element>(&self, data: Vec<T>, reduction: Reduction, root: usize) -> Pending<T> {
        self.start_in(data, |data| {
            let operation = Operation { reduction, ..self.sum_of(Kind::Reduce, data.as_mut_ptr(), data.len()) };
            self.with_root(operation, root)
        })
    }

    /// Starts [`Group::reduce_scatter_with`], and returns.
    pub fn reduce_scatter_owned<T: Element>(&self, data: Vec<T>, reduction: Reduction) -> Pending<T> {
        self.start_in(data, |data| {
            Ok(Operation { reduction, ..self.sum_of(Kind::ReduceScatter, data.as_mut_ptr(), data.len()) })
        })
    }

    /// Starts [`Group::broadcast`], and returns.
    pub fn broadcast_owned<T: Element>(&self, data: Vec<T>, root: usize) -> Pending<T> {
        self.start_in(data, |data| {
            let pointer = data.as_mut_ptr();
            self.with_root(Operation::new(Kind::Broadcast, pointer, pointer, data.len()), root)
        })
    }

    /// Starts [`Group::all_gather`], and returns. The result has as many elements from each rank.
    pub fn all_gather_owned<T: Element>(&self, input: Vec<T>) -> Pending<T> {
        let len = input.len() * self.world_size();
        self.start_between(input, len, |input, output| {
            Ok(Operation::new(Kind::AllGather, input.as_ptr(), output.as_mut_ptr(), input.len()))
        })
    }

    /// Starts [`Group::gather`], and returns. The result is empty except on rank `root`.
    pub fn gather_owned<T: Element>(&self, input: Vec<T>, root: usize) -> Pending<T> {
        let len = if self.rank() == root { input.len() * self.world_size() } else { 0 };
        self.start_between(input, len, |input, output| self.gather_of(input, output, root))
    }

    /// Starts [`Group::scatter`] of `len` elements for each rank, and returns.
    pub fn scatter_owned<T: Element>(&self, input: Vec<T>, len: usize, root: usize) -> Pending<T> {
        self.start_between(input, len, |input, output| self.scatter_of(input, output, root))
    }

    /// Starts [`Group::all_to_all`], and returns.
    pub fn all_to_all_owned<T: Element>(&self, input: Vec<T>) -> Pending<T> {
        let len = input.len();
        self.start_between(input, len, |input, output| self.all_to_all_of(input, output))
    }

    /// Starts an operation on memory that holds its input and its result.
    fn start_in<T: Element>(
        &self,
        mut data: Vec<T>,
        operation: impl FnOnce(&mut [T]) -> Result<Operation, Arc<Cause>>,
    ) -> Pending<T> {
        // A vector's elements stay where they are while it is moved.
        let handle = self.start_if(operation(&mut data));
        Pending { handle, input: Vec::new(), output: data }
    }

    /// Starts an operation with a result of `len` elements.
    fn start_between<T: Element>(
        &self,
        input: Vec<T>,
        len: usize,
        operation: impl FnOnce(&[T], &mut [T]) -> Result<Operation, Arc<Cause>>,
    ) -> Pending<T> {
        let mut output = vec![T::default(); len];
        let handle = self.start_if(operation(&input, &mut output));
        Pending { handle, input, output }
    }
}
