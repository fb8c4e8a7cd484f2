//! Groups split from another by colour and key, like MPI_Comm_split.
//!
//! A sub-group has its own transport, communication thread and operation numbers, so that neither
//! it nor its parent waits for the other. A group whose ranks are all on one node only shares
//! memory. Groups share the failure state: the failure of any rank ends all groups of the job with
//! one cause. Messages name a group by its path, such as `group 2.1`, and ranks by their numbers in
//! the job.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::cause::{Cause, CauseKind};
use crate::error::JoinError;
use crate::group::{Core, Group, GroupState};
use crate::options::deadline_after;
use crate::rendezvous::form::{Board, Formed, Seat};
use crate::topology::Topology;
use crate::transport::Members;

impl Group {
    /// Splits the group. Ranks with the same colour form a new group, ordered by `key`; ranks with the same key keep
    /// their order. A rank without a colour is in no group. All ranks call it, like any operation.
    ///
    /// Causes name a sub-group's operations with their group, numbered in the order of colours and splits (`group 1`; a
    /// group split from that is `group 1.1`), and name every rank by its number in the whole job. The failure of any
    /// rank ends all groups. The parent may be dropped before the sub-groups.
    ///
    /// # Errors
    /// The group's [`Cause`]: it is split too often or too deep, a rank calls another operation, has failed or left,
    /// or comes too late.
    ///
    /// ```
    /// use enmasse_comm::Group;
    /// let ranks = Group::threads(4)?.into_iter().map(|group| {
    ///     std::thread::spawn(move || {
    ///         // Even ranks and odd ranks, backwards.
    ///         let part = group.split(Some(group.rank() as u32 % 2), -(group.rank() as i64))?;
    ///         let mut sum = [group.rank() as i32];
    ///         let part = part.expect("this rank has a colour");
    ///         part.all_reduce(&mut sum).map(|()| (part.rank(), sum))
    ///     })
    /// });
    /// let results: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
    /// assert_eq!(results, [Ok((1, [2])), Ok((1, [4])), Ok((0, [2])), Ok((0, [4]))]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn split(&self, colour: Option<u32>, key: i64) -> Result<Option<Group>, Arc<Cause>> {
        let mut all = vec![0; 2 * self.world_size()];
        self.all_gather(&[colour.map_or(-1, i64::from), key], &mut all)?;
        let division = divide(all.as_chunks().0, self.rank());
        let first = self.core.children.fetch_add(division.groups, Ordering::Relaxed);
        let board = ParentBoard { parent: self, members: &division.members };
        let group = match division.own {
            Some(own) => self.form_child(first + own, &board).map(Some),
            None => Ok(None),
        };
        let group = group.map_err(|error| board.abort(&error))?;
        board.wait_for_all()?;
        Ok(group)
    }

    /// The sub-group with number `index`, formed with the ranks at the board.
    fn form_child(&self, index: u64, board: &ParentBoard) -> Result<Group, JoinError> {
        let Core { members, group_state, .. } = &*self.core;
        let Some(path) = members.path.child(index) else {
            return Err(board.nonsense("it has 65535 sub-groups, or is split four levels deep: split less often"));
        };
        let rank = board.members.iter().position(|&member| member == members.rank).unwrap_or(0);
        let job_ranks: Vec<_> = board.members.iter().map(|&member| members.job_ranks[member]).collect();
        if let [_] = job_ranks[..] {
            let identity = members.identity;
            let place = (Members { rank, job_ranks, identity, path }, Topology::apart(1));
            return Group::new(place, None, vec![], group_state.clone());
        }
        let GroupState { connectivity, options, .. } = group_state;
        let identity = members.identity;
        let address = "their group";
        let deadline = deadline_after(options.timeout);
        let seat = Seat { rank, job_ranks, path, identity, connectivity, address, deadline };
        let Formed { members, topology, ways, transport, refused, .. } = seat.form(board)?;
        if let Some(refused) = refused {
            group_state.failure.refused(members.job_ranks[members.rank], refused);
        }
        Group::new((members, topology), Some(transport), ways, group_state.clone())
    }
}

/// The result of dividing ranks into groups, from one rank's point of view.
#[derive(Debug, PartialEq, Eq)]
struct Division {
    /// The number of groups.
    groups: u64,
    /// This rank's group, in the order of colours.
    own: Option<u64>,
    /// The ranks of this rank's group, in their new order.
    members: Vec<usize>,
}

/// `given` holds each rank's colour, negative for none, and its key.
fn divide(given: &[[i64; 2]], rank: usize) -> Division {
    let mut colours: Vec<_> = given.iter().map(|[colour, _]| *colour).filter(|colour| *colour >= 0).collect();
    colours.sort_unstable();
    colours.dedup();
    let own = given.get(rank).and_then(|[colour, _]| colours.binary_search(colour).ok());
    let is_member = |member: &usize| own.is_some_and(|own| given[*member][0] == colours[own]);
    let mut members: Vec<_> = (0..given.len()).filter(is_member).collect();
    // Stable: ranks with the same key keep their order.
    members.sort_by_key(|&member| given[member][1]);
    Division { groups: colours.len() as u64, own: own.map(|own| own as u64), members }
}

/// Exchanges between the ranks of a sub-group, carried by rounds of gathering in its parent. The sub-groups of one
/// split may need different numbers of rounds, so all ranks of the parent take part in every round until no rank has
/// anything more to send.
struct ParentBoard<'a> {
    parent: &'a Group,
    members: &'a [usize],
}

impl ParentBoard<'_> {
    /// Ends the job because of this rank's error, and returns its first cause.
    fn abort(&self, error: &JoinError) -> Arc<Cause> {
        self.parent.fail(self.parent.own_cause(CauseKind::Error, error.to_string()).during("a group split", 0))
    }

    /// Takes part in the other ranks' rounds.
    fn wait_for_all(&self) -> Result<(), Arc<Cause>> {
        loop {
            if self.parent.all_gather_bytes(&[])?.iter().all(Vec::is_empty) {
                return Ok(());
            }
        }
    }
}

impl Board for ParentBoard<'_> {
    fn exchange(&self, subject: &str, value: &str) -> Result<Vec<String>, JoinError> {
        let told = self.parent.all_gather_bytes(format!("{subject}\n{value}").as_bytes()).map_err(JoinError::Cause)?;
        let value_of = |&member: &usize| {
            let text = std::str::from_utf8(told.get(member)?).ok()?;
            text.strip_prefix(subject)?.strip_prefix('\n').map(str::to_owned)
        };
        let values = self.members.iter().map(value_of).collect::<Option<_>>();
        values.ok_or_else(|| self.nonsense("ranks of one sub-group exchange different subjects"))
    }

    fn go_on_waiting(&self) -> Result<(), JoinError> {
        self.parent.check().map_err(JoinError::Cause)
    }

    fn nonsense(&self, why: &str) -> JoinError {
        JoinError::Split(why.to_owned())
    }

    fn fail(&self, error: JoinError) -> JoinError {
        JoinError::Cause(self.abort(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_divide_and_keys_order() {
        let check = |given: &[[i64; 2]], rank: usize, groups: u64, own: Option<u64>, members: &[usize]| {
            let expected = Division { groups, own, members: members.to_vec() };
            assert_eq!(divide(given, rank), expected, "{given:?}, rank {rank}");
        };
        check(&[[0, 0]], 0, 1, Some(0), &[0]);
        check(&[[-1, 0], [-1, 0]], 1, 0, None, &[]);
        check(&[[7, 0], [7, 0], [7, 0]], 1, 1, Some(0), &[0, 1, 2]);
        check(&[[7, 2], [3, 9], [7, -1], [-1, 0]], 0, 2, Some(1), &[2, 0]);
        check(&[[7, 2], [3, 9], [7, -1], [-1, 0]], 1, 2, Some(0), &[1]);
        check(&[[7, 2], [3, 9], [7, -1], [-1, 0]], 3, 2, None, &[]);
        check(&[[0, i64::MAX], [0, i64::MIN], [0, i64::MAX]], 2, 1, Some(0), &[1, 0, 2]);
    }
}
