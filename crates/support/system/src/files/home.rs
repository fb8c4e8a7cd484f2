//! `~` in paths that no shell has expanded.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// `~` has no home folder to stand for.
#[derive(Clone, Copy, Debug, Error)]
#[error("cannot expand ~: HOME is not set")]
pub struct NoHome;

/// A path that is `~` or begins with `~/`, below the user's home folder; any other path is unchanged. Shells expand `~`
/// only at the start of a word: not in `--data=~/photos`, in a file, or in a variable.
///
/// # Errors
/// [`NoHome`] if the path is below the home folder and there is none.
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
    fn only_a_leading_tilde_component_is_home() {
        let home = std::env::home_dir().unwrap();
        let check = |path: &str, expected: &Path| assert_eq!(expand_home(Path::new(path)).unwrap(), expected);
        check("~", &home);
        check("~/photos/a", &home.join("photos/a"));
        // Only a shell knows other users' home folders.
        check("~other/a", Path::new("~other/a"));
        check("./~", Path::new("./~"));
        check("a/~", Path::new("a/~"));
    }
}
