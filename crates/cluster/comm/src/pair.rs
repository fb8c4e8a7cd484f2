//! Two ranks that send to each other.
//!
//! Sending is an operation of a group of two, so it is numbered, timed, recorded and compared like any other: if both ranks send, or
//! one sends another length, that is an error that names both.

use std::sync::Arc;

use crate::cause::Cause;
use crate::element::Element;
use crate::engine::Handle;
use crate::group::Group;
use crate::operation::{Kind, Operation};

/// One of two ranks that send to each other, made by [`Group::pair`]. What one sends the other receives, in the same order.
#[derive(Clone, Debug)]
pub struct Pair {
    group: Group,
}

impl Group {
    /// Connects two ranks, so that they send to each other and no other rank waits for them. All ranks of the group call it, like any
    /// operation; those that are neither of the two get nothing.
    ///
    /// # Errors
    /// The group's [`Cause`]: the two are the same or no ranks, a rank calls another operation, has failed or left,
    /// or comes too late.
    ///
    /// ```
    /// use enmasse_comm::Group;
    /// let ranks = Group::threads(3)?.into_iter().map(|group| {
    ///     std::thread::spawn(move || {
    ///         let mut token = [group.rank() as i64 * 10];
    ///         // From rank 2 to rank 0.
    ///         match group.pair(0, 2)? {
    ///             Some(pair) if group.rank() == 2 => pair.send(&token)?,
    ///             Some(pair) => pair.receive(&mut token)?,
    ///             None => {}
    ///         }
    ///         Ok::<_, std::sync::Arc<enmasse_comm::Cause>>(token)
    ///     })
    /// });
    /// let results: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
    /// assert_eq!(results, [Ok([20]), Ok([10]), Ok([20])]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pair(&self, first: usize, second: usize) -> Result<Option<Pair>, Arc<Cause>> {
        if first == second || first.max(second) >= self.world_size() {
            let message = format!("ranks {first} and {second} are no pair of {} ranks", self.world_size());
            return Err(self.misuse(&Operation::barrier(), message));
        }
        // The first of the two is rank 0 of their group.
        let key = i64::from(self.rank() == second);
        let is_member = [first, second].contains(&self.rank());
        let group = self.split(is_member.then_some(0), key)?;
        Ok(group.map(|group| Pair { group }))
    }
}

impl Pair {
    /// Sends `data` to the other rank, and returns when nothing reads it any more.
    ///
    /// # Errors
    /// The [`Cause`] of the group: the other rank sends too, or expects another length or type, has failed or left,
    /// or comes too late.
    pub fn send<T: Element>(&self, data: &[T]) -> Result<(), Arc<Cause>> {
        // Of a sender only the input is read.
        self.transfer(data.as_ptr().cast_mut(), data.len(), self.group.rank())
    }

    /// Starts to send `len` elements at `data`, and returns. The communication thread sends in the order in which it was started.
    ///
    /// # Safety
    /// As for [`Group::all_reduce_start`]; the memory is only read.
    pub unsafe fn send_start<T: Element>(&self, data: *const T, len: usize) -> Handle {
        self.group.start(self.transfer_of(data.cast_mut(), len, self.group.rank()))
    }

    /// Receives what the other rank sends, which has as many elements.
    ///
    /// # Errors
    /// The [`Cause`] of the group: the other rank receives too, or sends another length or type, has failed or left,
    /// or comes too late.
    pub fn receive<T: Element>(&self, data: &mut [T]) -> Result<(), Arc<Cause>> {
        self.transfer(data.as_mut_ptr(), data.len(), 1 - self.group.rank())
    }

    /// The group of the two ranks.
    pub fn group(&self) -> &Group {
        &self.group
    }

    fn transfer<T: Element>(&self, data: *mut T, len: usize, sender: usize) -> Result<(), Arc<Cause>> {
        self.group.run(self.transfer_of(data, len, sender))
    }

    fn transfer_of<T: Element>(&self, data: *mut T, len: usize, sender: usize) -> Operation {
        Operation { root: sender, ..Operation::new(Kind::Transfer, data.cast_const(), data, len) }
    }
}
