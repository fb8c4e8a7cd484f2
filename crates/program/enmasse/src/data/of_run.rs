//! The data of a saved run, which may be elsewhere by now.

use std::path::Path;

use enmasse_datasets::{is_remote, is_self_contained};

use crate::failure::{Failure, failed};

/// An error if the data on which `run` was trained are gone. Without it each image would be said to be unreadable.
pub fn check_data_of_run(root: &Path, run: &Path) -> Result<(), Failure> {
    if root.exists() || is_remote(root) || !is_self_contained(root) {
        return Ok(());
    }
    let from = if root.is_relative() { " from the folder where it was started" } else { "" };
    let (root, run) = (root.display(), run.display());
    Err(failed!("{root}: it does not exist; {run} read its data there{from}, so name the DATA"))
}
