//! The system calls of a program, held by the kernel until this process answers them: seccomp's user notifications
//! (Linux 5.5, `seccomp_unotify(2)`). They see every call of every thread and child, however it is made. A preloaded
//! library sees only the calls that go through libc, and rustix makes its calls without it.

use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::mpsc;
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use rustix::thread::set_no_new_privs;

/// Where a call names the file that it changes.
#[derive(Clone, Copy)]
enum Operand {
    /// The argument that is an open file.
    Descriptor(usize),
    /// The argument that is a path, and the one that is the folder to which it is relative. Of two paths, the new one.
    Path(Option<usize>, usize),
    /// It has no name yet.
    New,
}

/// The calls that are held: all that make or change files, or send data, by their numbers on x86-64.
const HELD: &[(i32, &str, Operand)] = &[
    (1, "write", Operand::Descriptor(0)),
    (2, "open", Operand::Path(None, 0)),
    (18, "pwrite64", Operand::Descriptor(0)),
    (20, "writev", Operand::Descriptor(0)),
    (40, "sendfile", Operand::Descriptor(0)),
    (44, "sendto", Operand::Descriptor(0)),
    (46, "sendmsg", Operand::Descriptor(0)),
    (73, "flock", Operand::Descriptor(0)),
    (74, "fsync", Operand::Descriptor(0)),
    (75, "fdatasync", Operand::Descriptor(0)),
    (76, "truncate", Operand::Path(None, 0)),
    (77, "ftruncate", Operand::Descriptor(0)),
    (82, "rename", Operand::Path(None, 1)),
    (83, "mkdir", Operand::Path(None, 0)),
    (84, "rmdir", Operand::Path(None, 0)),
    (85, "creat", Operand::Path(None, 0)),
    (86, "link", Operand::Path(None, 1)),
    (87, "unlink", Operand::Path(None, 0)),
    (257, "openat", Operand::Path(Some(0), 1)),
    (258, "mkdirat", Operand::Path(Some(0), 1)),
    (263, "unlinkat", Operand::Path(Some(0), 1)),
    (264, "renameat", Operand::Path(Some(2), 3)),
    (265, "linkat", Operand::Path(Some(2), 3)),
    (285, "fallocate", Operand::Descriptor(0)),
    (296, "pwritev", Operand::Descriptor(0)),
    (316, "renameat2", Operand::Path(Some(2), 3)),
    (319, "memfd_create", Operand::New),
    (326, "copy_file_range", Operand::Descriptor(2)),
];

/// Length limit of a path, in bytes.
const PATH_LIMIT: usize = 4096;

/// A held call.
#[derive(Clone, Copy)]
pub struct Call {
    thread: i32,
    pub name: &'static str,
    operand: Operand,
    arguments: [u64; 6],
}

/// What becomes of a held call.
pub enum Answer {
    /// The kernel executes it.
    Continue,
    /// It is not executed, and fails.
    Fail(Errno),
    /// It is not executed, and returns this number.
    Return(usize),
    /// Nothing: its process was killed before the call.
    Nothing,
}

impl Call {
    /// The process that makes it.
    pub fn process(&self) -> Option<i32> {
        status(self.thread, "Tgid")
    }

    /// The file that it changes: its path, or what the kernel calls it, such as `socket:[5]`.
    pub fn object(&self) -> Option<PathBuf> {
        let link = |name: String| std::fs::read_link(format!("/proc/{}/{name}", self.thread)).ok();
        match self.operand {
            Operand::Descriptor(argument) => link(format!("fd/{}", self.arguments[argument] as i32)),
            Operand::New => None,
            Operand::Path(folder, argument) => {
                let mut bytes = self.memory(self.arguments[argument], PATH_LIMIT)?;
                bytes.truncate(bytes.iter().position(|&byte| byte == 0)?);
                let path = PathBuf::from(String::from_utf8(bytes).ok()?);
                if path.is_absolute() {
                    return Some(path);
                }
                let folder = folder.map(|argument| self.arguments[argument] as i32).filter(|&folder| folder >= 0);
                Some(link(folder.map_or("cwd".to_owned(), |folder| format!("fd/{folder}")))?.join(path))
            }
        }
    }

    /// The open file that it changes, as a descriptor of this process.
    pub fn descriptor(&self) -> Option<OwnedFd> {
        let Operand::Descriptor(argument) = self.operand else { return None };
        let process = pidfd_open(Pid::from_raw(self.process()?)?, PidfdFlags::empty()).ok()?;
        pidfd_getfd(&process, self.arguments[argument] as i32, PidfdGetfdFlags::empty()).ok()
    }

    /// The bytes that it writes or sends; `None` for calls that do neither.
    pub fn data(&self) -> Option<Vec<u8>> {
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).ok();
        match self.name {
            "write" | "sendto" => self.memory(self.arguments[1], self.arguments[2] as usize),
            "writev" => {
                let list = self.memory(self.arguments[1], self.arguments[2] as usize * 16)?;
                let parts = list.chunks(16).map(|part| self.memory(number(&part[..8])?, number(&part[8..])? as usize));
                Some(parts.collect::<Option<Vec<_>>>()?.concat())
            }
            _ => None,
        }
    }

    /// Bytes of the caller's memory, fewer where it ends.
    fn memory(&self, address: u64, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        let read = File::open(format!("/proc/{}/mem", self.thread)).ok()?.read_at(&mut bytes, address).ok()?;
        bytes.truncate(read);
        Some(bytes)
    }
}

/// A number from a thread's or a process's status.
pub fn status(process: i32, key: &str) -> Option<i32> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.trim().parse().ok()
}

/// Starts a command whose calls are held. A thread of its own answers them by `answer`, which may change `state`. It ends
/// with the last process, and returns the state. An error means that the kernel does not hold calls here.
pub fn start<S: Send + 'static>(
    command: &mut Command,
    mut state: S,
    answer: fn(&mut S, &Call) -> Answer,
) -> Result<(Child, thread::JoinHandle<S>), Errno> {
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        // A filter holds for a thread and what it starts, and stays for ever.
        let starter = scope.spawn(move || {
            let listener = install().map(|listener| sender.send(listener));
            listener.map(|_| command.spawn().expect("starts"))
        });
        let answering = receiver.recv().ok().map(|listener| {
            thread::spawn(move || {
                answer_all(&listener, |call| answer(&mut state, call));
                state
            })
        });
        let child = starter.join().expect("no panic")?;
        Ok((child, answering.expect("a listener")))
    })
}

fn answer_all(listener: &OwnedFd, mut answer: impl FnMut(&Call) -> Answer) {
    loop {
        let mut ready = [PollFd::new(listener, PollFlags::IN)];
        match poll(&mut ready, None) {
            Err(Errno::INTR) => continue,
            polled => polled.expect("polls"),
        };
        if !ready[0].revents().contains(PollFlags::IN) {
            return;
        }
        let mut notice = Notice::default();
        // SAFETY: the opcode belongs to this type.
        let received = unsafe { ioctl(listener, Updater::<RECEIVE, Notice>::new(&mut notice)) };
        if received.is_err() {
            // The caller was killed in the meantime.
            continue;
        }
        let &(_, name, operand) = HELD.iter().find(|(number, ..)| *number == notice.number).expect("a held call");
        let call = Call { thread: notice.thread as i32, name, operand, arguments: notice.arguments };
        let (value, error, flags) = match answer(&call) {
            Answer::Continue => (0, 0, CONTINUE),
            Answer::Fail(error) => (0, -error.raw_os_error(), 0),
            Answer::Return(value) => (value as i64, 0, 0),
            Answer::Nothing => continue,
        };
        let mut response = Response { id: notice.id, value, error, flags };
        // SAFETY: the opcode belongs to this type. The caller may be gone, which is an error of no consequence.
        let _ = unsafe { ioctl(listener, Updater::<SEND, Response>::new(&mut response)) };
    }
}

/// `struct seccomp_notif` with its `struct seccomp_data`.
#[repr(C)]
#[derive(Default)]
struct Notice {
    id: u64,
    thread: u32,
    flags: u32,
    number: i32,
    architecture: u32,
    instruction: u64,
    arguments: [u64; 6],
}

/// `struct seccomp_notif_resp`.
#[repr(C)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

const RECEIVE: Opcode = opcode::read_write::<Notice>(b'!', 0);
const SEND: Opcode = opcode::read_write::<Response>(b'!', 1);
/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE`.
const CONTINUE: u32 = 1;

/// `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    value: u32,
}

/// `struct sock_fprog`.
#[repr(C)]
struct Filter {
    length: u16,
    instructions: *const Instruction,
}

unsafe extern "C" {
    fn syscall(number: i64, ...) -> i64;
}

/// Installs the filter in the calling thread, and returns its listener.
fn install() -> Result<OwnedFd, Errno> {
    const LOAD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const ALLOW: u32 = 0x7fff_0000;
    const NOTIFY: u32 = 0x7fc0_0000;
    const SECCOMP: i64 = 317;
    const SET_FILTER: i64 = 1;
    const NEW_LISTENER: i64 = 8;

    let step = |code, if_false, value| Instruction { code, if_true: 0, if_false, value };
    // The call's number is the first word.
    let mut steps = vec![step(LOAD, 0, 0)];
    for &(number, ..) in HELD {
        steps.extend([step(JUMP_IF_EQUAL, 1, number as u32), step(RETURN, 0, NOTIFY)]);
    }
    steps.push(step(RETURN, 0, ALLOW));
    let filter = Filter { length: steps.len() as u16, instructions: steps.as_ptr() };
    // Without this only root may install a filter.
    set_no_new_privs(true)?;
    // SAFETY: the filter's instructions live until the kernel has copied them.
    let listener = unsafe { syscall(SECCOMP, SET_FILTER, NEW_LISTENER, &raw const filter) };
    if listener < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::NOSYS));
    }
    // SAFETY: the kernel has just opened it for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(listener as i32) })
}
