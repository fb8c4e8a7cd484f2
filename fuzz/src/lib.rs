//! Files and folders of a fuzz target, for the parsers that read files.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The folder of this process, empty at first. The next inputs use it too.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("enmasse-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the folder for temporary files can be written");
        folder
    })
}

/// A file with these bytes.
pub fn file(bytes: &[u8]) -> PathBuf {
    let path = folder().join("input");
    std::fs::write(&path, bytes).expect("the folder for temporary files can be written");
    path
}
