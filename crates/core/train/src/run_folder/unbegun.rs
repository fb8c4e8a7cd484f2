//! The folder of a run that ends before it begins: it holds nothing of use, and goes. The first
//! file makes a run.

use std::fs::{remove_dir, remove_file};
use std::path::Path;

use super::{RunPaths, claim};

/// Removes the folder of a run that has not begun. It stays if it holds anything but the lock, the token of ranks that
/// meet there, and claims of this process. The writer, if it still lives, can no longer write.
pub fn remove_unbegun(root: &Path) {
    let paths = RunPaths::new(root);
    let Ok(entries) = claim::entries(root) else { return };
    let is_file = |path: &Path| [".lock", ".token"].iter().any(|name| *path == root.join(name));
    if paths.holds_run() || !entries.iter().all(|path| is_file(path) || claim::is_of_this_process(path)) {
        return;
    }
    // What cannot be removed stays: the failure that led here is the one to report.
    for path in &entries {
        let _ = if is_file(path) { remove_file(path) } else { remove_dir(path) };
    }
    let _ = remove_dir(root);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attempt, RunConfig, RunFolder};

    #[test]
    fn only_folders_of_runs_that_never_began_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let check = |name: &str, prepare: &dyn Fn(&Path, &RunFolder), expected: bool| {
            let root = place.path().join(name);
            let folder = RunFolder::open(RunPaths::new(&root), false, &Attempt::default()).unwrap();
            prepare(&root, &folder);
            remove_unbegun(&root);
            assert_eq!(root.exists(), expected, "{name}");
        };
        check("nothing", &|_, _| {}, false);
        check("token", &|root, _| std::fs::write(root.join(".token"), "").unwrap(), false);
        check("begun", &|_, folder| folder.write_config(&RunConfig::default()).unwrap(), true);
        check("other file", &|root, _| std::fs::write(root.join("notes"), "").unwrap(), true);
        check("other process", &|root, _| std::fs::create_dir(root.join(".attempt-a-0-0-1.5")).unwrap(), true);
        remove_unbegun(&place.path().join("nowhere"));
    }
}
