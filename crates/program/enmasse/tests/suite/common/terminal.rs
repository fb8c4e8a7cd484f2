//! A pseudo-terminal: what a command writes to it, and what a person does to it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::process::{ioctl_tiocsctty, setsid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Action, LocalModes, OptionalActions, Winsize, tcflow, tcgetattr, tcsetattr, tcsetwinsize};

/// The person's side.
pub struct Terminal {
    master: File,
    /// Keeps the terminal, and all that was written to it, while no command has it open.
    slave: OwnedFd,
}

impl Terminal {
    /// A terminal of this width.
    pub fn open(width: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        tcsetwinsize(&master, Winsize { ws_row: 50, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        Terminal { master: File::from(master), slave }
    }

    /// Starts a command with its streams here.
    pub fn start(&self, command: &mut Command) -> std::process::Child {
        let slave = || self.slave.try_clone().unwrap();
        let child = command.env("TERM", "xterm").stdin(slave()).stdout(slave()).stderr(slave()).spawn().unwrap();
        // The command holds further copies of the terminal, and reading would never end.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        child
    }

    /// The same, in the foreground of a session of its own, as from a shell: keys and `stty tostop` have their effects.
    pub fn start_session(&self, command: &mut Command) -> std::process::Child {
        let control = || {
            setsid()?;
            Ok(ioctl_tiocsctty(rustix::stdio::stdin())?)
        };
        // SAFETY: the hook runs between fork and exec, and makes two system calls.
        unsafe { command.pre_exec(control) };
        self.start(command)
    }

    /// Ctrl-S: from now on writes wait.
    pub fn freeze(&self) {
        tcflow(&self.slave, Action::OOff).unwrap();
    }

    /// Ctrl-Q.
    pub fn thaw(&self) {
        tcflow(&self.slave, Action::OOn).unwrap();
    }

    /// `stty tostop`.
    pub fn stop_background_output(&self) {
        let mut modes = tcgetattr(&self.slave).unwrap();
        modes.local_modes |= LocalModes::TOSTOP;
        tcsetattr(&self.slave, OptionalActions::Now, &modes).unwrap();
    }

    /// Presses a key.
    pub fn press(&mut self, key: u8) {
        self.master.write_all(&[key]).unwrap();
    }

    /// What is written until nobody has the terminal open any more.
    pub fn read(self) -> String {
        let Terminal { mut master, slave } = self;
        drop(slave);
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        // The end is an error.
        while let Ok(count @ 1..) = master.read(&mut buffer) {
            bytes.extend_from_slice(&buffer[..count]);
        }
        String::from_utf8(bytes).unwrap()
    }
}
