//! What ends the processes that ranks have started when the launcher itself is killed.
//!
//! The kernel ends the ranks then, by their parent-death signal, but not their children. So a shell waits beside the launcher, in a
//! process group of its own, on a pipe that only the launcher holds. It is told each rank's group; when the pipe ends without a
//! farewell, it kills them.

use std::io::{self, PipeReader, PipeWriter, Write, pipe};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The first shell ends at once, so that the launcher has no children but the ranks.
const SCRIPT: &str = "trap '' HUP INT QUIT TERM
exec 3<&0
{ groups=
  while read -r line; do
    test \"$line\" = done && exit 0
    groups=\"$groups -$line\"
  done
  kill -s KILL -- $groups
} <&3 3<&- &";
/// How long a dismissed guard may take.
const FAREWELL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The launcher's ends of the pipes to and from the guard.
pub(crate) struct Guard {
    orders: PipeWriter,
    /// As long as somebody could read, the process is not ended by SIGPIPE, even if the guard is gone.
    _reader: PipeReader,
    life: PipeReader,
    shell: Option<Child>,
}

impl Guard {
    /// Calls a guard. Where there is no shell there is none: the ranks themselves end all the same.
    pub(crate) fn call() -> Option<Self> {
        let ((stdin, orders), (life, stdout)) = (pipe().ok()?, pipe().ok()?);
        let mut command = Command::new("sh");
        let reader = stdin.try_clone().ok()?;
        command.args(["-c", SCRIPT]).stdin(stdin).stdout(stdout).stderr(Stdio::null()).process_group(0);
        Some(Guard { orders, _reader: reader, life, shell: Some(command.spawn().ok()?) })
    }

    /// Where a rank writes the number of its process group, which is its own, before it becomes the program: a line. So there is no
    /// moment in which it could have started others and the guard not know of it.
    pub(crate) fn register(&self) -> io::Result<OwnedFd> {
        self.orders.try_clone().map(OwnedFd::from)
    }

    /// Waits until it stands alone.
    pub(crate) fn settle(&mut self) {
        if let Some(mut shell) = self.shell.take() {
            let _ = shell.wait();
        }
    }
}

impl Drop for Guard {
    /// Dismisses it. The groups' numbers must not have passed to others yet.
    fn drop(&mut self) {
        if self.orders.write_all(b"done\n").is_ok() {
            // The end of its output is its own.
            let _ = poll(&mut [PollFd::new(&self.life, PollFlags::IN)], Some(&FAREWELL));
        }
        self.settle();
    }
}
