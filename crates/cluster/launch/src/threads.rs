//! Ranks as threads of one process.

use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use enmasse_comm::{Cause, CauseKind, Group};

/// Runs `body` as `n` ranks, each a thread of this process, and returns their results in rank order. It serves the
/// purpose of `torch.multiprocessing.spawn(join=True)` without a port, start-up time, or pickled arguments.
///
/// All ranks have ended when this returns.
///
/// # Errors
/// The error of the first rank that failed, as the group's [`Cause`], which names the rank. The others fail in their
/// next operation. Or the kernel gives no memory or no thread.
///
/// ```
/// let sums = enmasse_launch::spawn(3, |group| {
///     let mut rank = [group.rank() as f32];
///     group.all_reduce(&mut rank).map(|()| rank[0])
/// })?;
/// assert_eq!(sums, [3.0, 3.0, 3.0]);
///
/// let failed = enmasse_launch::spawn(2, |group| match group.rank() {
///     1 => Err("disk full".to_owned()),
///     _ => group.barrier().map_err(|cause| cause.to_string()),
/// });
/// assert_eq!(failed.unwrap_err().rank, Some(1));
/// # Ok::<(), std::sync::Arc<enmasse_comm::Cause>>(())
/// ```
pub fn spawn<T: Send, E: Display>(n: usize, body: impl Fn(Group) -> Result<T, E> + Sync) -> Result<Vec<T>, Arc<Cause>> {
    let groups = Group::threads(n).map_err(|error| Arc::new(Cause::new(CauseKind::Error, error.to_string())))?;
    run_threads(groups, |group| cause_of_error(group, &body))
}

/// Runs `body`, whose error becomes a cause. A rank that was only told of a failure does not claim it: the group's cause
/// came first.
pub(crate) fn cause_of_error<T, E: Display>(
    group: Group,
    body: impl FnOnce(Group) -> Result<T, E>,
) -> Result<T, Arc<Cause>> {
    let own = group.clone();
    let claimed = |error: E| own.own_cause(CauseKind::Error, error.to_string()).into();
    body(group).map_err(|error| own.cause().unwrap_or_else(|| claimed(error)))
}

/// Runs `body` on one thread for each rank of a group ([`Group::threads`]), and returns the results in rank order.
///
/// All threads have ended when this returns.
///
/// # Errors
/// The group's cause. An error or a panic of one rank ends the group, so that the others fail in their next operation
/// or check.
///
/// ```
/// use enmasse_comm::Group;
/// let sums = enmasse_launch::run_threads(Group::threads(3)?, |group| {
///     let mut rank = [group.rank() as f32];
///     group.all_reduce(&mut rank).map(|()| rank[0])
/// })?;
/// assert_eq!(sums, [3.0, 3.0, 3.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run_threads<T: Send>(
    groups: Vec<Group>,
    body: impl Fn(Group) -> Result<T, Arc<Cause>> + Sync,
) -> Result<Vec<T>, Arc<Cause>> {
    let body = &body;
    let results: Vec<Result<T, Arc<Cause>>> = thread::scope(|scope| {
        let start = |group: &Group| {
            let own = group.clone();
            let name = format!("rank {}", group.rank());
            let thread = thread::Builder::new().name(name).spawn_scoped(scope, move || run_rank(&own, body));
            thread.map_err(|error| fail(group, format!("cannot start a thread: {error}")))
        };
        let threads: Vec<_> = groups.iter().map(start).collect();
        let join = |(group, thread): (&Group, Result<thread::ScopedJoinHandle<'_, _>, _>)| {
            thread?.join().unwrap_or_else(|panic| Err(fail(group, panic_message(&*panic))))
        };
        groups.iter().zip(threads).map(join).collect()
    });
    results.into_iter().collect()
}

/// Runs one rank, in its thread or process. `group` outlives the clone passed to `body`, so that a panic is reported
/// with its own message, and not as a member that left.
pub(crate) fn run_rank<T>(group: &Group, body: impl FnOnce(Group) -> Result<T, Arc<Cause>>) -> Result<T, Arc<Cause>> {
    // After a panic, nothing that `body` touched is used.
    match catch_unwind(AssertUnwindSafe(|| body(group.clone()))) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(cause)) => Err(group.fail((*cause).clone())),
        Err(panic) => Err(fail(group, panic_message(&*panic))),
    }
}

/// Ends the group because this rank failed, and returns the cause that the group settles on.
fn fail(group: &Group, message: String) -> Arc<Cause> {
    group.fail(group.own_cause(CauseKind::Error, message))
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("(no message)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::panic_any;

    #[test]
    fn spawned_ranks_return_in_order_and_fail_as_one() {
        for n in [0, 1, 2, 5] {
            let ranks = spawn(n, |group| Ok::<_, String>((group.rank(), group.world_size()))).unwrap();
            assert_eq!(ranks, (0..n).map(|rank| (rank, n)).collect::<Vec<_>>());
        }
        let check = |n: usize, failing: usize| {
            let result = spawn(n, |group| match group.rank() == failing {
                true => Err("no more disk".to_owned()),
                false => group.barrier().map_err(|cause| cause.to_string()),
            });
            let cause = result.unwrap_err();
            assert_eq!((cause.rank, cause.message.as_str()), (Some(failing), "no more disk"));
        };
        check(1, 0);
        check(3, 0);
        check(3, 2);
    }

    #[test]
    fn a_failure_reaches_all() {
        let check = |ranks: usize, fails: fn(&Group) -> Arc<Cause>, expected: &str| {
            let failing = ranks - 1;
            let result = run_threads(Group::threads(ranks).unwrap(), |group| {
                if group.rank() == failing {
                    return Err(fails(&group));
                }
                // Without the report this would wait for the failing rank for ever.
                group.barrier()
            });
            let cause = result.unwrap_err();
            assert_eq!((cause.rank, cause.message.as_str()), (Some(failing), expected));
        };
        for ranks in [1, 2, 3] {
            check(ranks, |group| Arc::new(group.own_cause(CauseKind::Error, "own words")), "own words");
            check(ranks, |_| panic!("at {}", 7), "panicked: at 7");
            check(ranks, |_| panic_any(7), "panicked: (no message)");
        }
    }
}
