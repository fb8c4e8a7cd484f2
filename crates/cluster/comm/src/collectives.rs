//! The collective operations of a group, blocking and started.
//!
//! Each documents its effect on the caller's memory. The transports decide how ranks agree on it and how bytes travel.

use std::ops::Range;
use std::sync::Arc;

use crate::algorithm::Algorithm;
use crate::cause::Cause;
use crate::element::{Element, Reduction};
use crate::engine::Handle;
use crate::group::Group;
use crate::memory::RegisteredMemory;
use crate::operation::{Kind, Operation};
use crate::pieces::piece;
use crate::shards::ShardMap;

/// [`Group::all_gather_bytes`] gathers at most this many bytes from all ranks together.
const GATHER_LIMIT: usize = 256 << 20;

/// How [`Group::reduce`] combines one number from each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// Their sum: for counts, such as correct predictions.
    Sum,
    /// Their mean: for values that are already means on each rank, such as a loss over batches of one size.
    Mean,
}

impl Group {
    /// Combines one number from each rank, on every rank. In a group of one the result is the number itself.
    ///
    /// # Errors
    /// The group's [`Cause`]: a rank calls another operation, has failed or left, or comes too late.
    ///
    /// ```
    /// use enmasse_comm::{Group, Reduce};
    /// assert_eq!(Group::single().reduce(0.25, Reduce::Mean)?, 0.25);
    /// # Ok::<(), std::sync::Arc<enmasse_comm::Cause>>(())
    /// ```
    pub fn reduce(&self, value: f64, by: Reduce) -> Result<f64, Arc<Cause>> {
        let mut sum = [value];
        self.all_reduce(&mut sum)?;
        Ok(match by {
            Reduce::Sum => sum[0],
            Reduce::Mean => sum[0] / self.world_size() as f64,
        })
    }

    /// Gives the group a share of the `len` bytes from `start`, on which operations will work. Then MPI receives into them
    /// without a detour, because they outlive an operation that has failed while data still come. The group does not keep them
    /// otherwise.
    ///
    /// # Safety
    /// `owner` owns these bytes: they stay valid, and where they are, for as long as it lives.
    pub unsafe fn register_memory<M: Send + Sync + 'static>(&self, owner: &Arc<M>, start: *mut u8, len: usize) {
        if let Some(engine) = &self.core.engine {
            engine.register_memory(RegisteredMemory::new(owner, start, len));
        }
    }

    /// The sum over all ranks, in the fixed tree of [`crate::tree_fold`] or the order of the group's own
    /// [`GroupOptions::all_reduce`](crate::GroupOptions::all_reduce), on every rank.
    ///
    /// # Errors
    /// The group's [`Cause`]: a rank calls another operation, has failed or left, or comes too late.
    pub fn all_reduce<T: Element>(&self, data: &mut [T]) -> Result<(), Arc<Cause>> {
        self.all_reduce_with(data, Reduction::Sum)
    }

    /// The same for any reduction.
    ///
    /// # Errors
    /// The group's [`Cause`]: a rank calls another operation, has failed or left, or comes too late.
    pub fn all_reduce_with<T: Element>(&self, data: &mut [T], reduction: Reduction) -> Result<(), Arc<Cause>> {
        let pointer = data.as_mut_ptr();
        self.run(Operation { reduction, ..self.sum_of(Kind::AllReduce, pointer, data.len()) })
    }

    /// The sum over all ranks by an algorithm, whatever the group's own is.
    ///
    /// # Errors
    /// The group's [`Cause`]: its ranks have too few connections for the algorithm, a rank calls another operation, has failed
    /// or left, or comes too late.
    pub fn all_reduce_by<T: Element>(&self, data: &mut [T], algorithm: Algorithm) -> Result<(), Arc<Cause>> {
        self.run(Operation { algorithm, ..self.sum_of(Kind::AllReduce, data.as_mut_ptr(), data.len()) })
    }

    /// Combines the ranks' `data` as by [`Group::all_reduce_with`] in the tree, with the same bits, on rank `root` alone. On the other ranks the
    /// data are undefined afterwards.
    ///
    /// # Errors
    /// The group's [`Cause`]: `root` is no rank, a rank calls another operation, has failed or left, or comes too
    /// late.
    pub fn reduce_to<T: Element>(&self, data: &mut [T], reduction: Reduction, root: usize) -> Result<(), Arc<Cause>> {
        let operation = Operation { reduction, ..self.sum_of(Kind::Reduce, data.as_mut_ptr(), data.len()) };
        self.run(self.with_root(operation, root)?)
    }

    /// Starts the sum over all ranks of `len` elements at `data`, and returns. The communication thread carries out
    /// operations in the order in which they were started.
    ///
    /// # Safety
    /// The memory stays valid, and no other code touches it, until [`Handle::wait`] has returned or the handle was
    /// dropped. The handle is not forgotten.
    pub unsafe fn all_reduce_start<T: Element>(&self, data: *mut T, len: usize) -> Handle {
        self.start(self.sum_of(Kind::AllReduce, data, len))
    }

    /// The sum over `shards` shards in the fixed tree of [`crate::tree_fold`], on every rank. The bits do not depend on
    /// how a [`ShardMap`] divides the shards among ranks, unless the group has another [`Algorithm`].
    ///
    /// A rank first adds up its own shards wherever they form whole subtrees ([`ShardMap::schedule`]). Partial sum j is
    /// the `len` elements of `data` from `j * stride`. The first `len` elements become the result; the others are
    /// undefined afterwards.
    ///
    /// # Errors
    /// The group's [`Cause`]: there are fewer shards than ranks, `data` has no room for the partial sums, a rank
    /// calls another operation, has failed or left, or comes too late.
    ///
    /// ```
    /// use enmasse_comm::Group;
    /// // Three shards on two ranks: rank 0 hosts shards 0 and 1, and has added them up.
    /// let ranks = Group::threads(2)?.into_iter().map(|group| {
    ///     std::thread::spawn(move || {
    ///         let mut values = if group.rank() == 0 { [1.0 + 2.0] } else { [4.0f32] };
    ///         group.all_reduce_shards(&mut values, 1, 1, 3).map(|()| values)
    ///     })
    /// });
    /// for rank in ranks.collect::<Vec<_>>() {
    ///     assert_eq!(rank.join().unwrap()?, [7.0]);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn all_reduce_shards<T: Element>(
        &self,
        data: &mut [T],
        len: usize,
        stride: usize,
        shards: usize,
    ) -> Result<(), Arc<Cause>> {
        let operation = self.sum_of_shards(Kind::AllReduce, data.as_mut_ptr(), len, stride, shards)?;
        let partials = operation.shards.partials(self.rank()).count();
        if (partials - 1)
            .checked_mul(stride)
            .and_then(|start| start.checked_add(len))
            .is_none_or(|end| end > data.len())
        {
            let message = format!(
                "{} elements do not hold {partials} partial sums of {len}, one every {stride} elements",
                data.len()
            );
            return Err(self.misuse(&operation, message));
        }
        self.run(operation)
    }

    /// Starts the same sum of the elements at `data`, and returns.
    ///
    /// # Safety
    /// As for [`Group::all_reduce_start`], for all partial sums of this rank: element `j * stride + i` is valid for each
    /// `i < len` and each number j of a partial sum.
    pub unsafe fn all_reduce_shards_start<T: Element>(
        &self,
        data: *mut T,
        len: usize,
        stride: usize,
        shards: usize,
    ) -> Handle {
        self.start_if(self.sum_of_shards(Kind::AllReduce, data, len, stride, shards))
    }

    /// Starts the same sum for rank `root` alone, with the same bits. On the other ranks the data are undefined afterwards. Ranks
    /// of one node send theirs to its memory only; between nodes it costs as much as a sum for all.
    ///
    /// # Safety
    /// As for [`Group::all_reduce_shards_start`].
    pub unsafe fn reduce_shards_start<T: Element>(
        &self,
        data: *mut T,
        len: usize,
        stride: usize,
        shards: usize,
        root: usize,
    ) -> Handle {
        let operation = self.sum_of_shards(Kind::Reduce, data, len, stride, shards);
        self.start_if(operation.and_then(|operation| self.with_root(operation, root)))
    }

    /// Copies `data` of rank `root` to all others.
    ///
    /// # Errors
    /// The group's [`Cause`]: `root` is no rank, a rank calls another operation, has failed or left, or comes too
    /// late.
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), Arc<Cause>> {
        let pointer = data.as_mut_ptr();
        self.run(self.with_root(Operation::new(Kind::Broadcast, pointer, pointer, data.len()), root)?)
    }

    /// Concatenates every rank's `input` into `output`, which has room for as many elements from each rank.
    ///
    /// # Errors
    /// The group's [`Cause`]: `output` has another length, a rank calls another operation, has failed or left, or
    /// comes too late.
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Arc<Cause>> {
        let operation = Operation::new(Kind::AllGather, input.as_ptr(), output.as_mut_ptr(), input.len());
        self.run(self.with_room(operation, "output", output.len())?)
    }

    /// Starts the same with `len` elements at `input` of each rank, and returns.
    ///
    /// # Safety
    /// As for [`Group::all_reduce_start`], for the input and for `len` elements per rank at `output`. The input lies
    /// outside the output, or at this rank's place in it.
    pub unsafe fn all_gather_start<T: Element>(&self, input: *const T, output: *mut T, len: usize) -> Handle {
        self.start(Operation::new(Kind::AllGather, input, output, len))
    }

    /// The part of `len` elements that `rank` owns if each rank owns one: the part that [`Group::reduce_scatter`]
    /// leaves it. The parts are in rank order and are cut at cache lines, so the last ones are shorter or empty.
    pub fn piece<T: Element>(&self, rank: usize, len: usize) -> Range<usize> {
        piece(len, size_of::<T>(), rank, self.world_size())
    }

    /// The sum over all ranks as by [`Group::all_reduce`], with the same bits, except that each rank gets only its
    /// piece ([`Group::piece`]), for half the traffic. The piece is written to its place in `data`; the rest is
    /// undefined afterwards.
    ///
    /// # Errors
    /// The group's [`Cause`]: a rank calls another operation, has failed or left, or comes too late.
    ///
    /// ```
    /// use enmasse_comm::Group;
    /// let ranks = Group::threads(2)?.into_iter().map(|group| {
    ///     std::thread::spawn(move || {
    ///         let mut gradients = [1.0f32; 100];
    ///         group.reduce_scatter(&mut gradients)?;
    ///         let piece = group.piece::<f32>(group.rank(), gradients.len());
    ///         // Each rank processes its own half; then the halves are gathered.
    ///         gradients[piece].iter_mut().for_each(|gradient| *gradient /= 2.0);
    ///         group.all_gather_pieces(&mut gradients).map(|()| gradients)
    ///     })
    /// });
    /// for rank in ranks.collect::<Vec<_>>() {
    ///     assert_eq!(rank.join().unwrap()?, [1.0; 100]);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reduce_scatter<T: Element>(&self, data: &mut [T]) -> Result<(), Arc<Cause>> {
        self.reduce_scatter_with(data, Reduction::Sum)
    }

    /// The same for any reduction.
    ///
    /// # Errors
    /// The group's [`Cause`]: a rank calls another operation, has failed or left, or comes too late.
    pub fn reduce_scatter_with<T: Element>(&self, data: &mut [T], reduction: Reduction) -> Result<(), Arc<Cause>> {
        self.run(Operation { reduction, ..self.sum_of(Kind::ReduceScatter, data.as_mut_ptr(), data.len()) })
    }

    /// Starts the same over shards, whose partial sums are laid out as for [`Group::all_reduce_shards`], and returns.
    ///
    /// # Safety
    /// As for [`Group::all_reduce_shards_start`].
    pub unsafe fn reduce_scatter_shards_start<T: Element>(
        &self,
        data: *mut T,
        len: usize,
        stride: usize,
        shards: usize,
    ) -> Handle {
        self.start_if(self.sum_of_shards(Kind::ReduceScatter, data, len, stride, shards))
    }

    /// Copies each rank's piece of `data` ([`Group::piece`]) to all others.
    ///
    /// # Errors
    /// The group's [`Cause`]: a rank calls another operation, has failed or left, or comes too late.
    pub fn all_gather_pieces<T: Element>(&self, data: &mut [T]) -> Result<(), Arc<Cause>> {
        let pointer = data.as_mut_ptr();
        self.run(Operation::new(Kind::AllGatherPieces, pointer, pointer, data.len()))
    }

    /// Starts the same with `len` elements at `data`, and returns.
    ///
    /// # Safety
    /// As for [`Group::all_reduce_start`].
    pub unsafe fn all_gather_pieces_start<T: Element>(&self, data: *mut T, len: usize) -> Handle {
        self.start(Operation::new(Kind::AllGatherPieces, data, data, len))
    }

    /// The bytes of every rank, which may differ in length: up to 256 MiB together.
    ///
    /// # Errors
    /// The group's [`Cause`]: there are more bytes, a rank calls another operation, has failed or left, or comes too
    /// late.
    pub fn all_gather_bytes(&self, input: &[u8]) -> Result<Vec<Vec<u8>>, Arc<Cause>> {
        let mut lengths = vec![0; self.world_size()];
        self.all_gather(&[input.len() as i64], &mut lengths)?;
        let mut total = 0usize;
        let mut ends = Vec::with_capacity(lengths.len());
        for &length in &lengths {
            total = total.saturating_add(length as usize);
            ends.push(total);
        }
        if total > GATHER_LIMIT {
            let message = format!("{lengths:?} bytes exceed {GATHER_LIMIT} together: gather in several calls");
            let nothing = Operation::new(Kind::AllGather, input.as_ptr(), std::ptr::null_mut(), input.len());
            return Err(self.misuse(&nothing, message));
        }
        let mut data = vec![0; total];
        let start = ends[self.rank()] - input.len();
        data[start..ends[self.rank()]].copy_from_slice(input);
        self.all_gather_parts(&mut data, &ends)?;
        let starts = [0].iter().chain(&ends);
        Ok(starts.zip(&ends).map(|(&start, &end)| data[start..end].to_vec()).collect())
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// The group's [`Cause`]: a rank calls another operation, has failed or left, or comes too late.
    pub fn barrier(&self) -> Result<(), Arc<Cause>> {
        self.run(Operation::barrier())
    }

    /// A sum over ranks that have one shard each.
    pub(crate) fn sum_of<T: Element>(&self, kind: Kind, data: *mut T, len: usize) -> Operation {
        let algorithm = match kind {
            Kind::AllReduce => self.algorithm,
            _ => Algorithm::Tree,
        };
        let shards = ShardMap::one_each(self.world_size());
        Operation { algorithm, shards, ..Operation::new(kind, data, data, len) }
    }

    /// The operation, whose input or output has its `count` elements for each rank.
    pub(crate) fn with_room(&self, operation: Operation, what: &str, found: usize) -> Result<Operation, Arc<Cause>> {
        if operation.count.checked_mul(self.world_size()) == Some(found) {
            return Ok(operation);
        }
        let each = operation.count;
        let ranks = self.world_size();
        Err(self.misuse(&operation, format!("the {what} has {found} elements: {each} for each of {ranks} ranks")))
    }

    /// The operation with a rank that sends to all, or gets from all.
    pub(crate) fn with_root(&self, operation: Operation, root: usize) -> Result<Operation, Arc<Cause>> {
        let operation = Operation { root, ..operation };
        if root >= self.world_size() {
            return Err(self.misuse(&operation, format!("there is no rank {root}: use 0 to {}", self.world_size() - 1)));
        }
        Ok(operation)
    }

    pub(crate) fn sum_of_shards<T: Element>(
        &self,
        kind: Kind,
        data: *mut T,
        len: usize,
        stride: usize,
        shards: usize,
    ) -> Result<Operation, Arc<Cause>> {
        let operation = Operation { stride, ..self.sum_of(kind, data, len) };
        let shards =
            ShardMap::new(shards, self.world_size()).map_err(|error| self.misuse(&operation, error.to_string()))?;
        if stride < len && shards.most_partials() > 1 {
            let message = format!("partial sums of {len} elements overlap where one begins every {stride} elements");
            return Err(self.misuse(&operation, message));
        }
        Ok(Operation { shards, ..operation })
    }

    /// Starts an operation unless the call was invalid.
    pub(crate) fn start_if(&self, operation: Result<Operation, Arc<Cause>>) -> Handle {
        operation.map_or_else(|cause| Handle::ended(Err(cause)), |operation| self.start(operation))
    }

    pub(crate) fn start(&self, operation: Operation) -> Handle {
        let operation = Operation { group: self.core.members.path, ..operation };
        match &self.core.engine {
            Some(engine) => engine.queue(operation, true),
            None => Handle::ended(self.run_alone(&operation)),
        }
    }

    pub(crate) fn run(&self, operation: Operation) -> Result<(), Arc<Cause>> {
        let operation = Operation { group: self.core.members.path, ..operation };
        match &self.core.engine {
            Some(engine) => engine.run(operation),
            None => self.run_alone(&operation),
        }
    }

    /// The operation in a group of one.
    fn run_alone(&self, operation: &Operation) -> Result<(), Arc<Cause>> {
        self.check()?;
        operation.carry_out_alone();
        Ok(())
    }
}
