//! The end of a process that was killed, awaited for a limited time.

use std::process::Child;
use std::time::{Duration, Instant};

/// Pause between two looks at such a process.
const PAUSE: Duration = Duration::from_millis(2);

/// Waits for a killed process until the deadline: one that hangs in the kernel, as in a read from a file server that
/// is gone, cannot be waited for. Returns whether it has ended.
pub(crate) fn reap(child: &mut Child, deadline: Instant) -> bool {
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < deadline => std::thread::sleep(PAUSE),
            Ok(None) => return false,
            // An error means that it was waited for before.
            Ok(Some(_)) | Err(_) => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Dropping the workers waited for ever for one that hangs in the kernel.
    #[test]
    fn a_process_that_does_not_end_is_not_waited_for() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        assert!(!reap(&mut child, Instant::now() + Duration::from_millis(10)));
        child.kill().unwrap();
        assert!(reap(&mut child, Instant::now() + Duration::from_secs(60)));
        assert!(reap(&mut child, Instant::now()));
    }
}
