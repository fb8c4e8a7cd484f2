//! The guard kills the processes that ranks have started if the launcher itself is killed.
//!
//! In that case the kernel ends the ranks, by their parent-death signal, but not their children. So a shell waits next
//! to the launcher, in its own process group, on a pipe whose other end only the launcher holds. It is told each rank's
//! process group. If the pipe ends without a farewell, the shell kills the groups.

use std::io::{self, PipeReader, PipeWriter, Write, pipe};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::reap::reap;

/// The first shell exits at once, so that the ranks are the launcher's only children.
const SCRIPT: &str = "trap '' HUP INT QUIT TERM
exec 3<&0
{ groups=
  while read -r line; do
    test \"$line\" = done && exit 0
    groups=\"$groups -$line\"
  done
  kill -s KILL -- $groups
} <&3 3<&- &";
/// Time limit for dismissing the guard.
const FAREWELL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Time limit for the first shell, which starts the guard and exits.
const SETTLING: Duration = Duration::from_secs(10);

/// The launcher's ends of the pipes to and from the guard.
pub(crate) struct Guard {
    orders: PipeWriter,
    /// While a reader exists, writing does not raise SIGPIPE, even if the guard is gone.
    _reader: PipeReader,
    life: PipeReader,
    shell: Option<Child>,
}

impl Guard {
    /// Starts a guard. `None` if there is no shell; the ranks themselves end in any case.
    pub(crate) fn call() -> Option<Self> {
        let ((stdin, orders), (life, stdout)) = (pipe().ok()?, pipe().ok()?);
        let mut command = Command::new("sh");
        let reader = stdin.try_clone().ok()?;
        command.args(["-c", SCRIPT]).stdin(stdin).stdout(stdout).stderr(Stdio::null()).process_group(0);
        Some(Guard { orders, _reader: reader, life, shell: Some(command.spawn().ok()?) })
    }

    /// The descriptor to which a rank writes a line with its process group's number (its own) before it becomes the
    /// program. So the guard knows the group before the rank can start other processes.
    pub(crate) fn register(&self) -> io::Result<OwnedFd> {
        self.orders.try_clone().map(OwnedFd::from)
    }

    /// Waits until the first shell has exited, unless it hangs.
    pub(crate) fn settle(&mut self) {
        if let Some(mut shell) = self.shell.take() {
            reap(&mut shell, Instant::now() + SETTLING);
        }
    }
}

impl Drop for Guard {
    /// Dismisses the guard. The groups' numbers must still belong to the groups.
    fn drop(&mut self) {
        if self.orders.write_all(b"done\n").is_ok() {
            // The guard's output ends when the guard does.
            let _ = poll(&mut [PollFd::new(&self.life, PollFlags::IN)], Some(&FAREWELL));
        }
        self.settle();
    }
}
