//! The folder for what can be made again.

use std::path::PathBuf;

/// The user's cache of this program: `$ENMASSE_CACHE`, else `$XDG_CACHE_HOME/enmasse`, else `~/.cache/enmasse`. `None` without a
/// home folder.
pub fn cache_folder() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("ENMASSE_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|cache| cache.join("enmasse")))
        .or_else(|| variable("HOME").map(|home| home.join(".cache/enmasse")))
}
