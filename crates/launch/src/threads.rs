//! Ranks as threads of one process, for tests and debuggers.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::thread;

use enmasse_comm::{Cause, CauseKind};

/// Runs `body(rank)` on `world_size` threads and returns what they returned, in rank order, or the first failure.
///
/// A panic in one rank is its failure. `on_failure` is called with the first one as soon as it happens, on the thread of
/// that rank: it is where the others are told to stop (they check between instructions). All threads end before this
/// returns.
///
/// ```
/// let squares = enmasse_launch::run_threads(3, |_| {}, |rank| Ok(rank * rank));
/// assert_eq!(squares, Ok(vec![0, 1, 4]));
/// ```
pub fn run_threads<T: Send>(
    world_size: usize,
    on_failure: impl Fn(&Cause) + Sync,
    body: impl Fn(usize) -> Result<T, Cause> + Sync,
) -> Result<Vec<T>, Cause> {
    let first: Mutex<Option<Cause>> = Mutex::new(None);
    let fail = |cause: Cause| {
        let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_none() {
            on_failure(&cause);
            *first = Some(cause);
        }
    };
    let run = |rank: usize| {
        // Nothing of `body` is looked at after a panic: the group is over.
        match catch_unwind(AssertUnwindSafe(|| body(rank))) {
            Ok(Ok(value)) => return Some(value),
            Ok(Err(cause)) => fail(cause),
            Err(panic) => fail(Cause::new(CauseKind::Error, panic_message(&*panic)).of_rank(rank)),
        }
        None
    };
    let run = &run;
    let results: Vec<Option<T>> = thread::scope(|scope| {
        let mut threads = Vec::new();
        for rank in 0..world_size {
            match thread::Builder::new().name(format!("rank {rank}")).spawn_scoped(scope, move || run(rank)) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    fail(Cause::new(CauseKind::Error, format!("cannot start a thread: {error}")).of_rank(rank));
                    break;
                }
            }
        }
        threads.into_iter().map(|thread| thread.join().ok().flatten()).collect()
    });
    match first.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(cause) => Err(cause),
        None => Ok(results.into_iter().flatten().collect()),
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("(no message)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_failure_reaches_all() {
        let check = |kind: &str, expected: &str| {
            let stop = AtomicBool::new(false);
            let running = Barrier::new(3);
            let result = run_threads(
                3,
                |_| stop.store(true, Ordering::Release),
                |rank| {
                    running.wait();
                    match (rank, kind) {
                        (1, "panic") => panic!("of {rank}"),
                        (1, _) => return Err(Cause::new(CauseKind::Error, "own words").of_rank(1)),
                        _ => {}
                    }
                    while !stop.load(Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                    Err::<(), _>(Cause::new(CauseKind::Exited, "as told").of_rank(1))
                },
            );
            let cause = result.unwrap_err();
            assert_eq!((cause.rank, cause.message.as_str()), (Some(1), expected));
        };
        check("panic", "panicked: of 1");
        check("error", "own words");
    }

    #[test]
    fn a_panic_without_a_text() {
        let result = run_threads(1, |_| {}, |_| -> Result<(), Cause> { std::panic::panic_any(7) });
        assert_eq!(result.unwrap_err().message, "panicked: (no message)");
    }
}
