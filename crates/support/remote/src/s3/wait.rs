//! Waits for a future on the thread that needs its value.
//!
//! Our transport blocks, and nothing sleeps or waits for events besides, so a future is ready as soon as it is polled. It is not
//! only while another thread fetches credentials for both, which ends with that thread's request. So this takes no runtime.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

/// The longest time between two polls, should nobody wake the thread.
const POLL: Duration = Duration::from_millis(100);

struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The value of a future.
pub(super) fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Parked(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park_timeout(POLL),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task;

    use super::*;

    #[test]
    fn a_future_that_another_thread_wakes() {
        let mut polls = 0;
        let woken = std::future::poll_fn(|context: &mut task::Context| {
            polls += 1;
            let waker = context.waker().clone();
            match polls {
                1 => {
                    thread::spawn(move || waker.wake());
                    Poll::Pending
                }
                _ => Poll::Ready(7),
            }
        });
        assert_eq!(wait(woken), 7);
    }
}
