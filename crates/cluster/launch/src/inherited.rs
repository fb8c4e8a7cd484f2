//! Descriptors that the launcher passes to its ranks: the store's listener, the job's token, and the pipe for a cause.
//!
//! Their numbers are passed in variables. They are close-on-exec in the launcher, and opened up only in the forked
//! child that they are meant for. So no other rank or program started in the meantime holds them.

use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Read, Seek, Write};
use std::os::fd::OwnedFd;

use crate::error_file::write_error_file;
use enmasse_comm::{Cause, Token};
use rustix::fs::{FileType, MemfdFlags, OFlags, memfd_create};

/// The descriptor of the listening socket of rank 0's store.
pub const STORE_FD: &str = "ENMASSE_STORE_FD";
/// The descriptor of a file that holds the job's token.
pub const TOKEN_FD: &str = "ENMASSE_TOKEN_FD";
/// The descriptor on which a rank reports the cause of its failure.
pub const CAUSE_FD: &str = "ENMASSE_CAUSE_FD";

/// The capacity of a pipe without a reader, far above the size of an encoded cause.
const REPORT_LIMIT: usize = 64 << 10;

/// A descriptor of a memory file that holds the job's token.
///
/// It is a file rather than a pipe, since a worker may be a script that starts several programs in turn. Each rank has
/// its own, since ranks that share a descriptor would share its position.
pub(crate) fn token_file(token: &Token) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("enmasse token", MemfdFlags::CLOEXEC)?);
    file.write_all(token.as_bytes())?;
    file.rewind()?;
    Ok(file.into())
}

/// The launcher's and the rank's end of the pipe for reports.
pub(crate) fn report_pipe() -> io::Result<(PipeReader, PipeWriter)> {
    let (reader, writer) = io::pipe()?;
    // A process that the rank left behind may hold the other end open; reading must not wait for it.
    rustix::fs::fcntl_setfl(&reader, OFlags::NONBLOCK)?;
    Ok((reader, writer))
}

/// The first report so far, if it is complete.
pub(crate) fn read_report(reader: &mut PipeReader) -> Option<Cause> {
    let mut bytes = Vec::new();
    // The end of the available data ends reading like the end of the pipe: `bytes` keeps what has arrived.
    let _ = reader.take(REPORT_LIMIT as u64).read_to_end(&mut bytes);
    let (length, rest) = bytes.split_first_chunk()?;
    Cause::from_bytes(rest.get(..u32::from_le_bytes(*length) as usize)?)
}

/// Tells the launcher why this rank fails. To be called once, before exiting with an error. If the launcher has
/// requested an error file, as torchrun does, the cause is written there too.
///
/// True if an enmasse launcher listens. Without a launcher nothing is reported, which is not an error.
pub fn report_cause(cause: &Cause) -> bool {
    write_error_file(&cause.to_string(), &[], None);
    let Some(number) = std::env::var(CAUSE_FD).ok().and_then(|value| value.parse::<u32>().ok()) else { return false };
    let record = cause.to_bytes();
    let mut frame = (record.len() as u32).to_le_bytes().to_vec();
    frame.extend(record);
    // A single write of a small record into an empty pipe is atomic, and never blocks.
    open_pipe(number).is_some_and(|mut pipe| pipe.write_all(&frame).is_ok())
}

/// Opens this process's descriptor once more. A descendant may inherit the variable but not the descriptor, and have a
/// file of its own under that number, so only a pipe is written to.
fn open_pipe(number: u32) -> Option<File> {
    let path = format!("/proc/self/fd/{number}");
    let is_pipe = |stat: rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo;
    rustix::fs::stat(&path).ok().filter(|&stat| is_pipe(stat))?;
    OpenOptions::new().write(true).open(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use enmasse_comm::CauseKind;

    #[test]
    fn reports() {
        let check = |bytes: &[u8], expected: Option<&Cause>| {
            let (mut reader, mut writer) = report_pipe().unwrap();
            writer.write_all(bytes).unwrap();
            // The writer stays open, as when a rank leaves a process behind.
            assert_eq!(read_report(&mut reader).as_ref(), expected, "{bytes:?}");
        };
        let cause = Cause::new(CauseKind::Error, "no such folder").of_rank(1);
        let record = cause.to_bytes();
        let frame = [&(record.len() as u32).to_le_bytes()[..], &record].concat();
        check(&[], None);
        check(&frame, Some(&cause));
        check(&[&frame[..], &frame].concat(), Some(&cause));
        check(&frame[..frame.len() - 1], None);
        check(&[0xff; 40], None);
        check(&[0; 4], None);
    }
}
