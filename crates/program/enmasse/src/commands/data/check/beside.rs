//! What lies beside the images and is in no part: an image that is missing without a word is missed late.

use std::collections::{BTreeSet, HashSet};
use std::fs::read_dir;
use std::path::{Path, PathBuf};

use enmasse_datasets::{LeftOut, is_clutter};

use super::finding::{Finding, Item};
use super::look::CheckedPart;

/// What the scan of the folders found and could not use.
pub fn left_out(left_out: &LeftOut) -> Finding {
    Finding::told("left_out", left_out.to_string(), left_out.count())
}

/// Files and folders beside the images that are none of them, without clutter.
pub fn files(parts: &[CheckedPart]) -> Finding {
    let paths = |part: &CheckedPart| {
        (0..part.dataset.len()).filter_map(|index| part.dataset.locality()?.file_path(index)).collect::<Vec<_>>()
    };
    let known: HashSet<PathBuf> = parts.iter().flat_map(paths).collect();
    let folders: BTreeSet<&Path> = known.iter().filter_map(|path| path.parent()).collect();
    let above: HashSet<&Path> = folders.iter().flat_map(|folder| folder.ancestors()).collect();
    let mut beside = BTreeSet::new();
    // A folder that cannot be listed any more has lost its images too, which are told.
    for entry in folders.iter().filter_map(|folder| read_dir(folder).ok()).flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if !is_clutter(&name)
            && !known.contains(&path)
            && !above.contains(path.as_path())
            && (path.is_file() || path.is_dir())
        {
            beside.insert(path);
        }
    }
    let items: Vec<Item> = beside.iter().map(|path| Item::file(path.display().to_string())).collect();
    let said = ["beside the images is in no part", "beside the images are in no part"];
    Finding::counted("beside", "path", said, items)
}
