//! Ranks as threads of one process, for tests and debuggers.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use enmasse_comm::{Cause, CauseKind, Group};

/// Runs `body` on one thread for each rank of a group ([`Group::threads`]), and returns what they returned, in rank
/// order, or the group's cause.
///
/// An error or a panic of one rank ends the group, so that the others fail in their next operation or check. All
/// threads have ended when this returns.
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

/// The thread of one rank. `group` outlives what `body` makes of it, so that what is said first is the panic's own
/// message and not that this member left.
fn run_rank<T>(group: &Group, body: impl Fn(Group) -> Result<T, Arc<Cause>>) -> Result<T, Arc<Cause>> {
    // Nothing that `body` touched is looked at after a panic.
    match catch_unwind(AssertUnwindSafe(|| body(group.clone()))) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(cause)) => {
            group.abort((*cause).clone());
            Err(group.cause().unwrap_or(cause))
        }
        Err(panic) => Err(fail(group, panic_message(&*panic))),
    }
}

/// Ends the group because this rank failed; the cause that the group settles on.
fn fail(group: &Group, message: String) -> Arc<Cause> {
    let cause = group.own_cause(CauseKind::Error, message);
    group.abort(cause.clone());
    group.cause().unwrap_or_else(|| Arc::new(cause))
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
    fn a_failure_reaches_all() {
        let check = |ranks: usize, fails: fn(&Group) -> Arc<Cause>, expected: &str| {
            let failing = ranks - 1;
            let result = run_threads(Group::threads(ranks).unwrap(), |group| {
                if group.rank() == failing {
                    return Err(fails(&group));
                }
                // Waits for the failing rank, for ever if nobody told.
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
