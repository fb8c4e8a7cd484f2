//! Errors of files and folders, in one line that says what to do if that is known.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// A file or folder that could not be read or written.
#[derive(Debug, Error)]
#[error("cannot {action} {}: {}", path.display(), self.reason())]
pub struct FileError {
    /// `read`, `write`, `create`, …
    action: &'static str,
    /// The file or folder.
    path: PathBuf,
    /// The kernel's error.
    source: io::Error,
}

impl FileError {
    /// For `map_err`.
    pub fn of<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> FileError + 'a {
        move |source| FileError { action, path: path.to_owned(), source }
    }

    fn reason(&self) -> String {
        match self.source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                "the disk is full; free some space, or choose another folder".to_owned()
            }
            // A file that is written need not exist.
            ErrorKind::NotFound if self.action == "write" => {
                let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
                format!("there is no folder {}", folder.unwrap_or(Path::new(".")).display())
            }
            ErrorKind::NotFound => "it does not exist".to_owned(),
            ErrorKind::CrossesDevices => {
                "it is on another file system than the folder in which files are prepared".to_owned()
            }
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => format!("no permission ({})", self.source),
            _ => self.source.to_string(),
        }
    }
}

/// The system's message without "(os error 2)", for the end of a sentence.
pub fn system_message(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_lowercase(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons() {
        let check = |kind: ErrorKind, expected: &str| {
            let error = FileError::of("write", Path::new("a"))(kind.into());
            assert_eq!(error.to_string(), format!("cannot write a: {expected}"));
        };
        check(ErrorKind::StorageFull, "the disk is full; free some space, or choose another folder");
        check(ErrorKind::QuotaExceeded, "the disk is full; free some space, or choose another folder");
        check(ErrorKind::NotFound, "there is no folder .");
        let read = FileError::of("read", Path::new("a"))(ErrorKind::NotFound.into());
        assert_eq!(read.to_string(), "cannot read a: it does not exist");
        check(ErrorKind::CrossesDevices, "it is on another file system than the folder in which files are prepared");
        check(ErrorKind::ReadOnlyFilesystem, "no permission (read-only filesystem or storage medium)");
        check(ErrorKind::IsADirectory, "is a directory");
    }
}
