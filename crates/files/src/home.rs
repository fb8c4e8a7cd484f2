//! Paths where no shell has replaced `~`.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// There is no home folder that `~` could stand for.
#[derive(Clone, Copy, Debug, Error)]
#[error("~ has no meaning here, as HOME is not set")]
pub struct NoHome;

/// A path that begins with `~/`, or is `~`, below the user's home folder; any other as it is. Shells do this only for words
/// that begin with `~`: not in `--data=~/photos`, in a file, or in a variable.
pub fn expand_home(path: &Path) -> Result<PathBuf, NoHome> {
    match path.strip_prefix("~") {
        Ok(rest) if rest.as_os_str().is_empty() => std::env::home_dir().ok_or(NoHome),
        Ok(rest) => std::env::home_dir().map(|home| home.join(rest)).ok_or(NoHome),
        Err(_) => Ok(path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_leading_tilde_of_its_own_is_home() {
        let home = std::env::home_dir().unwrap();
        let check = |path: &str, expected: &Path| assert_eq!(expand_home(Path::new(path)).unwrap(), expected);
        check("~", &home);
        check("~/photos/a", &home.join("photos/a"));
        // Only a shell knows where others live.
        check("~other/a", Path::new("~other/a"));
        check("./~", Path::new("./~"));
        check("a/~", Path::new("a/~"));
    }
}
