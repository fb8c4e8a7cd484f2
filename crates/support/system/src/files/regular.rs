//! Reads regular files, and nothing else, into memory that is asked for before it is taken.
//!
//! Opening a pipe waits for a writer, and some devices act when they are opened. A program that a file asks for more memory
//! than there is must not be aborted.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// Opens a regular file, or a link to one, for reading.
///
/// # Errors
/// The kernel's. Anything but a regular file is an error of kind [`ErrorKind::InvalidData`] that says what it is, such
/// as a pipe, and never a wait.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let open = |flags: OFlags| OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path);
    let file = match open(OFlags::NONBLOCK | OFlags::NOCTTY) {
        // A socket, or a file that another process has leased. The latter is opened as soon as it is given up.
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NXIO | Errno::WOULDBLOCK)) => {
            let place = open(OFlags::PATH)?;
            check_regular(&place)?;
            return File::open(format!("/proc/self/fd/{}", place.as_raw_fd()));
        }
        opened => opened?,
    };
    check_regular(&file)?;
    // Only opening must not wait: a file system that keeps files on tapes would refuse to read them.
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

fn check_regular(file: &File) -> io::Result<()> {
    let kind = file.metadata()?.file_type();
    match kind.is_file() {
        true => Ok(()),
        false => Err(io::Error::new(ErrorKind::InvalidData, format!("it is {}, not a file", name_of(kind)))),
    }
}

/// `a pipe`, for example.
pub fn name_of(kind: FileType) -> &'static str {
    match kind {
        _ if kind.is_file() => "a file",
        _ if kind.is_dir() => "a folder",
        _ if kind.is_fifo() => "a pipe",
        _ if kind.is_socket() => "a socket",
        _ if kind.is_symlink() => "a link",
        _ => "a device",
    }
}

/// The content of a regular file of at most `most` bytes.
///
/// # Errors
/// Those of [`open_regular`]. Or the file has more bytes, or cannot be read, or there is no memory for it.
pub fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    append_regular(path, most, &mut bytes)?;
    Ok(bytes)
}

/// Appends the content of a regular file of at most `most` bytes, and returns its length.
///
/// # Errors
/// Those of [`read_regular`]. Some of the content may have been appended then.
pub fn append_regular(path: &Path, most: u64, bytes: &mut Vec<u8>) -> io::Result<usize> {
    let file = open_regular(path)?;
    let length = file.metadata()?.len();
    if length > most {
        return Err(too_large(most));
    }
    // A byte more, so that the end of the file is found without more memory.
    reserve(bytes, length as usize + 1)?;
    // The file may have grown since.
    append_limited(file, most, bytes)
}

/// Appends what `source` has to the end, at most `most` bytes, and returns their number. For content that is made from a file,
/// such as a decompressed one, of unknown length.
///
/// # Errors
/// The source's own, or it has more bytes, or there is no memory for them. What came before has been appended then.
pub fn append_limited(source: impl Read, most: u64, bytes: &mut Vec<u8>) -> io::Result<usize> {
    let read = source.take(most.saturating_add(1)).read_to_end(bytes).map_err(|error| match error.kind() {
        // A full vector grows to twice its size.
        ErrorKind::OutOfMemory => no_memory(bytes.capacity().saturating_mul(2)),
        _ => error,
    })?;
    if read as u64 > most { Err(too_large(most)) } else { Ok(read) }
}

fn too_large(most: u64) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("it has more than {most} bytes"))
}

/// The content of a regular file as text.
///
/// # Errors
/// Those of [`read_regular`], or it is not text in UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    let bytes = read_regular(path, u64::MAX)?;
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not text in UTF-8"))
}

/// Reserves memory for `count` more elements, a number that comes from a file and has been compared with the file's length.
///
/// # Errors
/// One of kind [`ErrorKind::OutOfMemory`], which is the end of a sentence about the file.
pub fn reserve<T>(elements: &mut Vec<T>, count: usize) -> io::Result<()> {
    elements.try_reserve_exact(count).map_err(|_| no_memory(count.saturating_mul(size_of::<T>())))
}

/// The error of [`reserve`], for memory of `bytes` bytes that other code could not get.
pub fn no_memory(bytes: usize) -> io::Error {
    let advice = "end other programs, or raise the limit of memory";
    io::Error::new(ErrorKind::OutOfMemory, format!("there is no memory for {bytes} bytes of it; {advice}"))
}

/// Checks that there is memory for `bytes` bytes, which a library is about to take without asking.
///
/// # Errors
/// That of [`reserve`] if there is not.
pub fn require(bytes: usize) -> io::Result<()> {
    reserve(&mut Vec::<u8>::new(), bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    /// Opening a pipe waited for ever.
    #[test]
    fn only_regular_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        mkfifoat(CWD, path("pipe"), Mode::RWXU).unwrap();
        let _socket = UnixListener::bind(path("socket")).unwrap();
        std::fs::write(path("file"), b"seven").unwrap();
        for name in ["file", "pipe", "nothing"] {
            std::os::unix::fs::symlink(name, path(&format!("to-{name}"))).unwrap();
        }
        let check = |name: &str, expected: Result<&[u8], (ErrorKind, &str)>| {
            let found = read_regular(&path(name), 5).map_err(|error| (error.kind(), error.to_string()));
            let expected = expected.map(<[u8]>::to_vec).map_err(|(kind, text)| (kind, text.to_owned()));
            assert_eq!(found, expected, "{name}");
        };
        check("file", Ok(b"seven"));
        check("to-file", Ok(b"seven"));
        check("pipe", Err((ErrorKind::InvalidData, "it is a pipe, not a file")));
        check("to-pipe", Err((ErrorKind::InvalidData, "it is a pipe, not a file")));
        check("socket", Err((ErrorKind::InvalidData, "it is a socket, not a file")));
        check("", Err((ErrorKind::InvalidData, "it is a folder, not a file")));
        check("/dev/null", Err((ErrorKind::InvalidData, "it is a device, not a file")));
        check("nothing", Err((ErrorKind::NotFound, "No such file or directory (os error 2)")));
        check("to-nothing", Err((ErrorKind::NotFound, "No such file or directory (os error 2)")));
    }

    #[test]
    fn no_more_than_the_limit_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let check = |length: u64, expected: Result<usize, &str>| {
            File::create(&path).unwrap().set_len(length).unwrap();
            let mut bytes = vec![1];
            let found = append_regular(&path, 1000, &mut bytes).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned));
            assert!(bytes.capacity() <= 1002);
        };
        check(0, Ok(0));
        check(1000, Ok(1000));
        check(1001, Err("it has more than 1000 bytes"));
        check(1 << 40, Err("it has more than 1000 bytes"));
    }

    #[test]
    fn a_stream_is_read_up_to_the_limit() {
        let check = |length: u64, expected: Result<usize, &str>| {
            let mut bytes = Vec::new();
            let found = append_limited(io::repeat(7).take(length), 1000, &mut bytes).map_err(|error| error.to_string());
            assert!(bytes.len() <= 1001 && bytes.capacity() <= 4096);
            assert_eq!(found, expected.map_err(str::to_owned));
        };
        check(0, Ok(0));
        check(1000, Ok(1000));
        check(1001, Err("it has more than 1000 bytes"));
        check(1 << 40, Err("it has more than 1000 bytes"));
    }

    #[test]
    fn text_is_utf_8() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let check = |bytes: &[u8], expected: Result<&str, &str>| {
            std::fs::write(&path, bytes).unwrap();
            let found = read_text(&path).map_err(|error| error.to_string());
            assert_eq!(found, expected.map(str::to_owned).map_err(str::to_owned));
        };
        check("ä = 1".as_bytes(), Ok("ä = 1"));
        check(b"", Ok(""));
        check(b"\xff", Err("it is not text in UTF-8"));
    }

    #[test]
    fn memory_that_there_is_not() {
        let advice = "end other programs, or raise the limit of memory";
        let check = |count: usize, bytes: usize| {
            let error = reserve(&mut Vec::<u32>::new(), count).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfMemory);
            assert_eq!(error.to_string(), format!("there is no memory for {bytes} bytes of it; {advice}"));
        };
        check(1 << 60, 1 << 62);
        check(usize::MAX, usize::MAX);
        reserve(&mut Vec::<u32>::new(), 7).unwrap();
        assert_eq!(require(1 << 62).unwrap_err().kind(), ErrorKind::OutOfMemory);
        require(7).unwrap();
    }
}
