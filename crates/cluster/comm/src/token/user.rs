//! A user's own secret, for jobs on loopback that were given none.
//!
//! The first job makes the file, and every later one reads it. The folder is `$XDG_RUNTIME_DIR/enmasse`, or else
//! `/tmp/enmasse-UID`. Other users share `/tmp`, so what lies there is used only after its owner and mode are checked.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstat, linkat, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;
use thiserror::Error;

use super::private::{WRITABLE, check, read_token};
use super::{Token, random};

/// The file in the folder.
const FILE: &str = "secret";

/// Why a user's secret cannot be used.
#[derive(Debug, Error)]
#[error(
    "cannot use this user's secret for jobs on this machine, {}: {source}; mend that, or set ENMASSE_TOKEN to the same secret text for all ranks",
    path.display()
)]
pub struct UserSecretError {
    path: PathBuf,
    pub(crate) source: io::Error,
}

impl Token {
    /// This user's own secret, from a file that the first caller makes and only the user can read. For loopback:
    /// processes of other users, machines and containers do not have it.
    ///
    /// # Errors
    /// The file cannot be made or read, or others can read it.
    pub fn of_user() -> Result<Self, UserSecretError> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        Self::of_user_in(&place(runtime.as_deref(), Path::new("/tmp")))
    }

    fn of_user_in(path: &Path) -> Result<Self, UserSecretError> {
        let folder = open_folder(path).map_err(|source| UserSecretError { path: path.to_owned(), source })?;
        let read = || read_token(&folder, Path::new(FILE));
        let found = match read() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(&folder).and_then(|()| read()),
            found => found,
        };
        found.map_err(|source| UserSecretError { path: path.join(FILE), source })
    }
}

/// The folder: in the user's run-time directory where that is the user's own, and otherwise in `temporary`.
fn place(runtime: Option<&Path>, temporary: &Path) -> PathBuf {
    let is_own = |path: &&Path| {
        let opened = openat(CWD, *path, OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        path.is_absolute() && opened.and_then(fstat).is_ok_and(|stat| check(&stat, WRITABLE).is_ok())
    };
    match runtime.filter(is_own) {
        Some(runtime) => runtime.join("enmasse"),
        None => temporary.join(format!("enmasse-{}", geteuid().as_raw())),
    }
}

/// Opens the folder, and makes it if it does not exist.
fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    match mkdirat(CWD, path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let folder = openat(CWD, path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    check(&fstat(&folder)?, WRITABLE)?;
    Ok(folder)
}

/// Makes the file. It appears whole, and only once: of several processes that make it, one succeeds.
fn make(folder: &OwnedFd) -> io::Result<()> {
    let unfinished = Token::generate()?;
    let name = random()?.iter().take(8).fold(format!("{FILE}-"), |name, byte| format!("{name}{byte:02x}"));
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = std::fs::File::from(openat(folder, &name, flags, Mode::RUSR | Mode::WUSR)?);
    let written = file.write_all(&unfinished.0).and_then(|()| file.sync_all()).and_then(|()| {
        match linkat(folder, &name, folder, FILE, AtFlags::empty()) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    });
    unlinkat(folder, &name, AtFlags::empty())?;
    written
}

#[cfg(test)]
mod tests {
    use super::super::private::USABLE;
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn all_jobs_of_a_user_find_one_private_secret() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("enmasse");
        // All start at once, and one of them makes the file.
        let secrets: Vec<_> = std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..8).map(|_| scope.spawn(|| Token::of_user_in(&path).unwrap())).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap().0).collect()
        });
        assert!(secrets.iter().all(|secret| secret == &secrets[0]));
        assert_eq!(Token::of_user_in(&path).unwrap().0, secrets[0]);
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!((mode(&path), mode(&path.join(FILE))), (0o700, 0o600));
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
        let other = Token::of_user_in(&home.path().join("other")).unwrap();
        assert_ne!(other.0, secrets[0]);
    }

    #[test]
    fn the_run_time_directory_is_used_where_it_is_the_users_own() {
        let folder = tempfile::tempdir().unwrap();
        let temporary = Path::new("/tmp");
        let runtime = folder.path();
        let elsewhere = temporary.join(format!("enmasse-{}", geteuid().as_raw()));
        assert_eq!(place(Some(runtime), temporary), runtime.join("enmasse"));
        assert_eq!(place(None, temporary), elsewhere);
        assert_eq!(place(Some(&runtime.join("missing")), temporary), elsewhere);
        assert_eq!(place(Some(Path::new(".")), temporary), elsewhere);
        set_mode(runtime, 0o777);
        assert_eq!(place(Some(runtime), temporary), elsewhere);
    }

    /// Checks the error after `change` was made to a folder with a secret.
    fn check_refusal(change: impl Fn(&Path), expected: &str) {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("enmasse");
        Token::of_user_in(&path).unwrap();
        change(&path);
        let error = Token::of_user_in(&path).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{error:?} lacks {expected:?}");
        assert!(error.contains(&path.display().to_string()) && error.contains("set ENMASSE_TOKEN"), "{error}");
    }

    #[test]
    fn folders_and_files_that_others_control_are_refused() {
        check_refusal(|path| set_mode(path, 0o777), "other users may use it (mode 0777)");
        check_refusal(|path| set_mode(path, 0o720), "other users may use it (mode 0720)");
        check_refusal(|path| set_mode(&path.join(FILE), 0o640), "secret: other users may use it (mode 0640)");
        check_refusal(|path| fs::write(path.join(FILE), b"short").unwrap(), "it has 5 bytes instead of 32: remove it");
        let replaced = |path: &Path| {
            let moved = path.with_extension("moved");
            fs::rename(path, &moved).unwrap();
            symlink(moved, path).unwrap();
        };
        check_refusal(replaced, "Not a directory");
        check_refusal(|path| replaced(&path.join(FILE)), "symbolic link");
    }

    #[test]
    fn what_belongs_to_another_user_is_refused() {
        let mut stat = fstat(tempfile::tempfile().unwrap()).unwrap();
        check(&stat, WRITABLE).unwrap();
        let own = stat.st_uid;
        stat.st_uid += 1;
        let error = check(&stat, USABLE).unwrap_err().to_string();
        assert_eq!(error, format!("it belongs to user {}, and this is user {own}", own + 1));
    }
}
