//! A folder for this user's files in a place that others may write to, such as `/tmp`.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use rustix::process::geteuid;

use crate::files::FileError;

/// Creates a folder that only this user may read, or takes one that is there.
///
/// # Errors
/// It cannot be created. Or it is a link, a folder of another user, or one that others may write to: what is written
/// below it could end elsewhere, or be replaced.
pub fn make_own_folder(folder: &Path) -> Result<(), FileError> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        made => made.map_err(FileError::of("create", folder))?,
    }
    let found = fs::symlink_metadata(folder).map_err(FileError::of("read", folder))?;
    if found.is_dir() && found.uid() == geteuid().as_raw() {
        return match found.mode() & 0o022 {
            0 => Ok(()),
            _ => {
                let why = format!("other users may write to it (mode {:04o}): chmod go-w it", found.mode() & 0o7777);
                Err(FileError::of("write", folder)(io::Error::new(ErrorKind::PermissionDenied, why)))
            }
        };
    }
    Err(FileError::of("write", folder)(io::Error::other("it is another user's, or no folder; choose another place")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn no_link_and_no_file() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        for _ in 0..2 {
            make_own_folder(&path("own")).unwrap();
        }
        assert_eq!(fs::metadata(path("own")).unwrap().mode() & 0o777, 0o700);
        fs::write(path("file"), "").unwrap();
        std::os::unix::fs::symlink("own", path("link")).unwrap();
        for name in ["file", "link"] {
            let error = make_own_folder(&path(name)).unwrap_err().to_string();
            assert!(error.ends_with("it is another user's, or no folder; choose another place"), "{error}");
        }
        assert!(make_own_folder(&path("none/own")).is_err());
        // Regression test: the owner alone was checked.
        for (mode, refused) in [(0o755, false), (0o720, true), (0o702, true), (0o1777, true)] {
            fs::set_permissions(path("own"), PermissionsExt::from_mode(mode)).unwrap();
            let error = make_own_folder(&path("own")).err().map(|error| error.to_string());
            let says = format!("other users may write to it (mode {mode:04o}): chmod go-w it");
            assert_eq!(error.as_ref().is_some_and(|error| error.contains(&says)), refused, "{mode:o} {error:?}");
        }
    }
}
