//! Decides which rank is to blame: a pure function of how the ranks ended.
//!
//! The order in which the kernel reports deaths does not settle it. When one rank is killed, the others notice through
//! their connections, and may well be reaped first.

use enmasse_comm::{Cause, CauseKind};
use signal_hook::consts::SIGKILL;

use crate::error_file::ErrorRecord;
use crate::outcome::Status;

/// How one rank ended.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) rank: usize,
    pub(crate) status: Status,
    /// Whether it ended before the launcher stopped the others, so that its end cannot be a reaction to that.
    pub(crate) before_stop: bool,
    /// The cause that it reported.
    pub(crate) cause: Option<Cause>,
    /// The error file that it wrote, if its program supports torchrun's.
    pub(crate) record: Option<ErrorRecord>,
}

/// The rank to blame and the root cause, given the ranks in the order in which their ends were noticed; `None` if all
/// succeeded.
pub(crate) fn first_failure(ended: &[Ended]) -> Option<(Option<usize>, Option<Cause>)> {
    let is_failure = |end: &&Ended| end.status != Status::Code(0);
    let first = ended.iter().find(is_failure)?;
    // No program reacts to a failure by sending itself SIGKILL: it was killed from outside.
    let killed = ended.iter().find(|end| end.status == Status::Signal(SIGKILL)).map(|end| end.rank);
    // Ranks that fail together agree on one cause, which names the first of them.
    let named = || ended.iter().filter(is_failure).find_map(|end| end.cause.as_ref()?.rank);
    let crashed =
        || ended.iter().find(|end| end.before_stop && matches!(end.status, Status::Signal(_))).map(|end| end.rank);
    // With PyTorch every failing rank names itself, whether it failed first or only lost the first one. The earliest
    // record is the first failure.
    let records = || ended.iter().filter(is_failure).filter_map(|end| Some((end.record.as_ref()?, end.rank)));
    let recorded = || records().min_by_key(|(record, _)| record.time).map(|(_, rank)| rank);
    let rank = killed.or_else(named).or_else(crashed).or_else(recorded).unwrap_or(first.rank);

    // The blamed rank's own report, then other ranks' reports about it, then any report. One that stood still while the others gave it
    // up finds later that they are gone.
    let causes = || ended.iter().filter(is_failure).filter_map(|end| Some((end.rank, end.cause.as_ref()?)));
    let of_it = || causes().filter(|(_, cause)| cause.rank == Some(rank));
    let of_itself = || of_it().find(|&(by, _)| by == rank);
    let own = || causes().find(|&(by, _)| by == rank);
    let cause =
        of_itself().or_else(|| of_it().next()).or_else(own).or_else(|| causes().next()).map(|(_, cause)| cause.clone());
    let written = || {
        let (record, _) = records().find(|(_, by)| *by == rank)?;
        let cause = Cause::new(CauseKind::Error, record.message.clone()).of_rank_here(rank);
        Some(Cause { time: record.time, ..cause })
    };
    let cause = cause.or_else(written);
    Some((Some(rank).filter(|rank| ended.iter().any(|end| end.rank == *rank)), cause))
}

/// Whether ranks that were asked to stop failed, such as in saving: one of them reported a cause, and the rank that it names
/// ended by itself. A rank that ends as it was asked to may be missed by others, which is no failure.
pub(crate) fn have_failed_while_stopping(ended: &[Ended]) -> bool {
    let causes = ended.iter().filter_map(|end| end.cause.as_ref()).filter(|cause| cause.kind != CauseKind::Interrupted);
    // Codes from 128 on are those of signals.
    let by_itself = |end: &Ended| matches!(end.status, Status::Code(1..128) | Status::Signal(_));
    causes.filter_map(|cause| cause.rank).any(|rank| ended.iter().any(|end| end.rank == rank && by_itself(end)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Status::{Code, Signal, Stopped};

    const BEFORE: bool = true;
    const AFTER: bool = false;

    /// A rank's end: rank, status, whether it ended before the stop, and the rank named in its report.
    type End = (usize, Status, bool, Option<usize>);

    fn check(ends: &[End], expected: Option<usize>, reporter: Option<usize>) {
        let ended: Vec<Ended> = ends
            .iter()
            .map(|&(rank, status, before_stop, names)| {
                let cause = names.map(|of| Cause::new(CauseKind::Error, format!("said by {rank}")).of_rank(of));
                Ended { rank, status, before_stop, cause, record: None }
            })
            .collect();
        let (rank, cause) = first_failure(&ended).unwrap();
        let said = cause.map(|cause| cause.message);
        assert_eq!((rank, said), (expected, reporter.map(|by| format!("said by {by}"))), "{ends:?}");
    }

    #[test]
    fn all_well() {
        let well = Ended { rank: 0, status: Code(0), before_stop: true, cause: None, record: None };
        assert!(first_failure(&[]).is_none());
        assert!(first_failure(&[well]).is_none());
    }

    #[test]
    fn culprits() {
        // One fails, the others are stopped.
        check(&[(3, Code(1), BEFORE, None), (0, Stopped, AFTER, None)], Some(3), None);
        check(&[(0, Code(0), BEFORE, None), (2, Signal(11), BEFORE, None)], Some(2), None);
        // A rank's own report is believed over a crash that follows it.
        check(&[(1, Code(1), BEFORE, Some(1)), (0, Signal(6), AFTER, None)], Some(1), Some(1));
        // Rank 1 notices that rank 2 is gone, and is reaped first.
        check(&[(1, Code(1), BEFORE, Some(2)), (2, Signal(9), BEFORE, None)], Some(2), Some(1));
        check(&[(1, Code(1), BEFORE, Some(2)), (2, Signal(9), AFTER, None)], Some(2), Some(1));
        check(&[(1, Code(1), BEFORE, Some(2)), (2, Signal(11), AFTER, None)], Some(2), Some(1));
        // The same if ranks report nothing, or cannot tell which of them it was.
        check(&[(1, Code(1), BEFORE, None), (2, Signal(9), AFTER, None)], Some(2), None);
        check(&[(1, Code(1), BEFORE, None), (2, Signal(11), BEFORE, None)], Some(2), None);
        check(&[(1, Code(1), BEFORE, Some(1)), (2, Signal(9), AFTER, None)], Some(2), Some(1));
        // A foreign program that aborts because its peer failed is not to blame.
        check(&[(2, Code(1), BEFORE, None), (1, Signal(6), AFTER, None)], Some(2), None);
        // A rank that hangs does not end by itself; the others name it.
        check(&[(0, Code(1), BEFORE, Some(2)), (2, Stopped, AFTER, None)], Some(2), Some(0));
        // A rank exited too early, with success.
        check(&[(2, Code(0), BEFORE, None), (0, Code(1), BEFORE, Some(2))], Some(2), Some(0));
        // The blamed rank's own report takes precedence over reports about it.
        check(&[(0, Code(1), BEFORE, Some(1)), (1, Code(1), BEFORE, Some(1))], Some(1), Some(1));
        // Rank 2 stood still until it was asked to stop, and then missed rank 1.
        check(&[(1, Code(1), BEFORE, Some(2)), (2, Code(1), AFTER, Some(1))], Some(2), Some(1));
        // A rank of another machine.
        check(&[(0, Code(1), BEFORE, Some(9))], None, Some(0));
    }

    #[test]
    fn ranks_that_are_asked_to_stop_may_fail() {
        let check = |kind: CauseKind, ends: &[End], expected: bool| {
            let end = |&(rank, status, before_stop, names): &End| {
                let cause = names.map(|of| Cause::new(kind, "").of_rank(of));
                Ended { rank, status, before_stop, cause, record: None }
            };
            let ended: Vec<Ended> = ends.iter().map(end).collect();
            assert_eq!(have_failed_while_stopping(&ended), expected, "{kind:?} {ends:?}");
        };
        use CauseKind::{Error, Exited, Interrupted};
        // The disk is full, and every rank says so.
        check(Error, &[(0, Code(1), AFTER, Some(0)), (1, Code(1), AFTER, Some(0))], true);
        check(Exited, &[(0, Signal(9), AFTER, None), (1, Code(1), AFTER, Some(0))], true);
        // Rank 0 stopped before rank 1 did.
        check(Exited, &[(0, Stopped, AFTER, None), (1, Code(1), AFTER, Some(0))], false);
        check(Exited, &[(0, Code(0), AFTER, None), (1, Code(1), AFTER, Some(0))], false);
        check(Exited, &[(0, Code(130), AFTER, None), (1, Code(1), AFTER, Some(0))], false);
        check(Interrupted, &[(0, Code(1), AFTER, Some(0))], false);
        // Programs that report no causes end with any code.
        check(Error, &[(0, Code(1), AFTER, None), (1, Signal(6), AFTER, None)], false);
        // A rank of another machine, whose launcher tells it.
        check(Error, &[(0, Code(1), AFTER, Some(9))], false);
    }

    /// PyTorch programs write files with times: rank, status, whether it ended before the stop, and the time.
    #[test]
    fn culprits_by_their_error_files() {
        let check = |ends: &[(usize, Status, bool, Option<u64>)], expected: usize, said: Option<&str>| {
            let record = |rank, time| ErrorRecord { message: format!("said by {rank}"), lines: Vec::new(), time };
            let ended = ends.iter().map(|&(rank, status, before_stop, time)| Ended {
                rank,
                status,
                before_stop,
                cause: None,
                record: time.map(|time| record(rank, time)),
            });
            let (rank, cause) = first_failure(&ended.collect::<Vec<_>>()).unwrap();
            let message = cause.as_ref().map(|cause| cause.message.as_str());
            assert_eq!((rank, message), (Some(expected), said), "{ends:?}");
        };
        // Rank 1 failed first, but took longer to end.
        check(&[(0, Code(1), BEFORE, Some(20)), (1, Code(1), AFTER, Some(10))], 1, Some("said by 1"));
        check(&[(0, Code(1), BEFORE, Some(20)), (1, Stopped, AFTER, None)], 0, Some("said by 0"));
        // A rank that was killed or crashed writes nothing; the others complain.
        check(&[(0, Code(1), BEFORE, Some(20)), (1, Signal(9), BEFORE, None)], 1, None);
        check(&[(0, Code(1), BEFORE, Some(20)), (1, Signal(11), BEFORE, None)], 1, None);
        // An old file of a rank that succeeded.
        check(&[(0, Code(0), BEFORE, Some(5)), (1, Code(3), BEFORE, None)], 1, None);
    }
}
