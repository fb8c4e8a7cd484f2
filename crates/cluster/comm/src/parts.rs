//! Reduce-scatter and all-gather in parts of any length: who divides data by what it is, such as whole tensors, need not divide it into
//! equal pieces.
//!
//! `ends` says where the part of each rank ends; it begins where the part before it ends. All ranks give the same.

use std::sync::Arc;

use crate::cause::Cause;
use crate::element::Element;
use crate::engine::Handle;
use crate::group::Group;
use crate::operation::{Kind, Operation};

impl Group {
    /// Starts the sum over shards of [`Group::all_reduce_shards`], with the same bits, of which each rank gets its part, for half the
    /// traffic if the parts are equal. A part is written to its place in `data`; the rest is undefined afterwards.
    ///
    /// # Safety
    /// As for [`Group::all_reduce_shards_start`]; `ends` stays valid as long as the memory.
    pub unsafe fn reduce_scatter_parts_start<T: Element>(
        &self,
        data: *mut T,
        len: usize,
        stride: usize,
        shards: usize,
        ends: &[usize],
    ) -> Handle {
        let operation = self.sum_of_shards(Kind::ReduceScatter, data, len, stride, shards);
        self.start_if(operation.and_then(|operation| self.with_parts(operation, ends)))
    }

    /// Copies each rank's part of `data` to all others.
    ///
    /// # Errors
    /// The group's [`Cause`]: `ends` are not those of a part for each rank of all `data`, a rank calls another operation, or with other
    /// parts, has failed or left, or comes too late.
    ///
    /// ```
    /// use enmasse_comm::Group;
    /// let ranks = Group::threads(2)?.into_iter().map(|group| {
    ///     std::thread::spawn(move || {
    ///         let mut data = [group.rank(); 5].map(|rank| rank as f32);
    ///         group.all_gather_parts(&mut data, &[4, 5]).map(|()| data)
    ///     })
    /// });
    /// for rank in ranks.collect::<Vec<_>>() {
    ///     assert_eq!(rank.join().unwrap()?, [0.0, 0.0, 0.0, 0.0, 1.0]);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn all_gather_parts<T: Element>(&self, data: &mut [T], ends: &[usize]) -> Result<(), Arc<Cause>> {
        let pointer = data.as_mut_ptr();
        self.run(self.with_parts(Operation::new(Kind::AllGatherPieces, pointer, pointer, data.len()), ends)?)
    }

    /// The operation with a part for each rank.
    fn with_parts(&self, operation: Operation, ends: &[usize]) -> Result<Operation, Arc<Cause>> {
        let ranks = self.world_size();
        let len = operation.count;
        if ends.len() != ranks || !ends.is_sorted() || ends.last() != Some(&len) {
            let message = format!("{ends:?} are not the ends of {ranks} parts of {len} elements");
            return Err(self.misuse(&operation, message));
        }
        Ok(Operation { ends: ends.as_ptr(), lengths: lengths(ends), ..operation })
    }
}

/// A number for the lengths of parts, which two ranks with others do not share but by a chance of 2^-64. Not 0.
fn lengths(ends: &[usize]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for end in ends {
        hasher.update(&(*end as u64).to_le_bytes());
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(first) | 1
}
