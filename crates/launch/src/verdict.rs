//! Which rank is to blame: a pure function of how the ranks ended.
//!
//! The order in which the kernel reports deaths does not settle it. When one rank is killed, the others notice through
//! their connections, and may well be reaped first.

use enmasse_comm::Cause;
use signal_hook::consts::SIGKILL;

use crate::outcome::Status;

/// How one rank ended.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) rank: usize,
    pub(crate) status: Status,
    /// It was gone before the launcher stopped the others, so its end cannot be a reaction to that.
    pub(crate) before_stop: bool,
    /// What it reported.
    pub(crate) cause: Option<Cause>,
}

/// The rank to blame and the root cause, given the ranks in the order in which their ends were noticed; `None` when all
/// are well.
pub(crate) fn first_failure(ended: &[Ended]) -> Option<(Option<usize>, Option<Cause>)> {
    let is_failure = |end: &&Ended| end.status != Status::Code(0);
    let first = ended.iter().find(is_failure)?;
    // Nothing a program does in reaction to a failure kills it with SIGKILL: someone outside did.
    let killed = ended.iter().find(|end| end.status == Status::Signal(SIGKILL)).map(|end| end.rank);
    // Ranks that fail together agree on one cause, which names the first of them.
    let named = || ended.iter().filter(is_failure).find_map(|end| end.cause.as_ref()?.rank);
    let crashed =
        || ended.iter().find(|end| end.before_stop && matches!(end.status, Status::Signal(_))).map(|end| end.rank);
    let rank = killed.or_else(named).or_else(crashed).unwrap_or(first.rank);

    // The culprit's own word, then what others say of it, then whatever was said first.
    let causes = || ended.iter().filter(is_failure).filter_map(|end| Some((end.rank, end.cause.as_ref()?)));
    let own = || causes().find(|&(by, _)| by == rank);
    let of_it = || causes().find(|(_, cause)| cause.rank == Some(rank));
    let cause = own().or_else(of_it).or_else(|| causes().next()).map(|(_, cause)| cause.clone());
    Some((Some(rank).filter(|rank| ended.iter().any(|end| end.rank == *rank)), cause))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Status::{Code, Signal, Stopped};
    use enmasse_comm::CauseKind;

    const BEFORE: bool = true;
    const AFTER: bool = false;

    /// A rank's end: rank, status, when, and the rank it names in its report.
    type End = (usize, Status, bool, Option<usize>);

    fn check(ends: &[End], expected: Option<usize>, reporter: Option<usize>) {
        let ended: Vec<Ended> = ends
            .iter()
            .map(|&(rank, status, before_stop, names)| {
                let cause = names.map(|of| Cause::new(CauseKind::Error, format!("said by {rank}")).of_rank(of));
                Ended { rank, status, before_stop, cause }
            })
            .collect();
        let (rank, cause) = first_failure(&ended).unwrap();
        let said = cause.map(|cause| cause.message);
        assert_eq!((rank, said), (expected, reporter.map(|by| format!("said by {by}"))), "{ends:?}");
    }

    #[test]
    fn all_well() {
        let well = Ended { rank: 0, status: Code(0), before_stop: true, cause: None };
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
        // The same where ranks report nothing, or cannot tell which of them it was.
        check(&[(1, Code(1), BEFORE, None), (2, Signal(9), AFTER, None)], Some(2), None);
        check(&[(1, Code(1), BEFORE, None), (2, Signal(11), BEFORE, None)], Some(2), None);
        check(&[(1, Code(1), BEFORE, Some(1)), (2, Signal(9), AFTER, None)], Some(2), Some(1));
        // A foreign program that aborts because its peer failed is not to blame.
        check(&[(2, Code(1), BEFORE, None), (1, Signal(6), AFTER, None)], Some(2), None);
        // A rank that hangs does not end by itself: the others name it.
        check(&[(0, Code(1), BEFORE, Some(2)), (2, Stopped, AFTER, None)], Some(2), Some(0));
        // A rank left too early, with success.
        check(&[(2, Code(0), BEFORE, None), (0, Code(1), BEFORE, Some(2))], Some(2), Some(0));
        // The culprit's own words come before those about it.
        check(&[(0, Code(1), BEFORE, Some(1)), (1, Code(1), BEFORE, Some(1))], Some(1), Some(1));
        // A rank of another machine.
        check(&[(0, Code(1), BEFORE, Some(9))], None, Some(0));
    }
}
