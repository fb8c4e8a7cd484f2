//! Locks whose data are whole whenever nobody holds them: every change is complete, or a single assignment, even if the
//! thread that makes it panics afterwards. So a panic elsewhere is no reason not to go on.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits to be woken.
pub(crate) fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Waits to be woken, for at most `limit`.
pub(crate) fn wait_for<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
    condition.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner).0
}

/// Waits as long as the data are so, for at most `limit`.
pub(crate) fn wait_while<'a, T>(
    condition: &Condvar,
    guard: MutexGuard<'a, T>,
    limit: Duration,
    so: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    condition.wait_timeout_while(guard, limit, so).unwrap_or_else(PoisonError::into_inner).0
}
