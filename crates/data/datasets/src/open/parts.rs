//! The folders of a data set that comes in parts, under the names that people give them.

use std::path::Path;

use enmasse_data::DataError;

use crate::scan::folders;
use crate::{DataWarning, LeftOut};

const TRAIN: &[&str] = &["train", "training"];
const VALIDATION: &[&str] = &["val", "valid", "validation", "dev"];
const TEST: &[&str] = &["test", "testing"];

/// The kind of part that something is named for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum PartName {
    /// For training.
    Train,
    /// For validation.
    Validation,
    /// For tests: it validates if nothing else does.
    Test,
}

impl PartName {
    /// The part with this name, in any case.
    pub fn of(name: &str) -> Option<Self> {
        let is_in = |names: &[&str]| names.iter().any(|known| known.eq_ignore_ascii_case(name));
        match () {
            () if is_in(TRAIN) => Some(PartName::Train),
            () if is_in(VALIDATION) => Some(PartName::Validation),
            () if is_in(TEST) => Some(PartName::Test),
            () => None,
        }
    }
}

/// The names of folders that hold parts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PartFolders {
    /// The folder for training.
    pub train: String,
    /// The folder for validation; without one, a part of the other is sampled.
    pub held_out: Option<String>,
    /// The folder for tests, besides that for validation.
    pub test: Option<String>,
    /// What the user should know about them.
    pub warning: Option<DataWarning>,
}

impl PartFolders {
    /// The folders' names, that of the training part first.
    pub fn names(self) -> Vec<String> {
        [Some(self.train), self.held_out, self.test].into_iter().flatten().collect()
    }
}

/// The folders in `root` that hold parts; `None` if it does not come in parts. The folder for training is one only if
/// there is another part, or if nothing else is in `root`: `train` may be a class. `is_usable` tells whether a folder holds
/// labelled images: a test part often has no labels, and is left alone then, with a warning.
pub(crate) fn part_folders(root: &Path, is_usable: impl Fn(&Path) -> bool) -> Result<Option<PartFolders>, DataError> {
    let found = folders(root, &mut LeftOut::default())?;
    let find = |part: PartName| {
        let mut named = found.iter().filter(|name| PartName::of(name) == Some(part));
        match (named.next(), named.next()) {
            (Some(one), Some(two)) => {
                let problem = format!("it has both {one}/ and {two}/: rename or remove one of them");
                Err(DataError::layout(root, problem))
            }
            (first, _) => Ok(first.cloned()),
        }
    };
    let Some(train) = find(PartName::Train)? else { return Ok(None) };
    let test = find(PartName::Test)?;
    let usable = test.clone().filter(|test| is_usable(&root.join(test)));
    let (held_out, test, warning) = match (find(PartName::Validation)?, usable, test) {
        (validation, None, Some(test)) => {
            let warning = DataWarning::unlabelled_test(&root.join(test), "it has no class folders");
            (validation, None, Some(warning))
        }
        (Some(validation), test, _) => (Some(validation), test, None),
        (None, Some(test), _) => {
            let warning = DataWarning::test_validates(root, &format!("{test}/"));
            (Some(test), None, Some(warning))
        }
        (None, None, None) => (None, None, None),
    };
    let is_class =
        held_out.is_none() && (!is_usable(&root.join(&train)) || found.iter().any(|name| PartName::of(name).is_none()));
    Ok((!is_class).then_some(PartFolders { train, held_out, test, warning }))
}
