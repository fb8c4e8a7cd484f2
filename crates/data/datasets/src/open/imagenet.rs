//! ImageNet (ILSVRC 2012) as class folders: names of its classes, and whether a copy is complete.
//!
//! Its classes are folders named by WordNet's numbers, such as `n01440764`. `LOC_synset_mapping.txt` names the classes.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use enmasse_data::{DataError, Dataset};
use enmasse_system::files::read_regular;
use enmasse_wording::grouped;

use crate::split::Scanned;
use crate::{DataWarning, Folder};

const CLASSES: usize = 1000;
/// Images of the training part and of the validation part.
const IMAGES: [usize; 2] = [1_281_167, 50_000];

/// Kaggle's table of the classes' names.
pub(super) const NAMES: &str = "LOC_synset_mapping.txt";
/// Limit of these tables' bytes; Kaggle's have 31 KB and 2.4 MB.
const MAX_TABLE_BYTES: u64 = 64 << 20;

/// If the classes are ImageNet's: names them, where a table does, and warns of missing images.
pub(super) fn describe(scanned: &mut Scanned<Folder>, root: &Path) -> Result<(), DataError> {
    let Scanned { train, held_out, test, warnings, .. } = scanned;
    if !train.classes().iter().all(|class| is_number(class)) {
        return Ok(());
    }
    if let (CLASSES, Some(validation)) = (train.classes().len(), held_out.as_ref()) {
        let parts = [("training", train.len(), IMAGES[0]), ("validation", validation.len(), IMAGES[1])];
        for (part, found, expected) in parts.into_iter().filter(|(_, found, expected)| found != expected) {
            warnings.push(DataWarning::incomplete(format!(
                "{}: ImageNet has {} {part} images, and this copy has {}",
                root.display(),
                grouped(expected as u64),
                grouped(found as u64)
            )));
        }
    }
    if let Some(table) = find_table(root, NAMES) {
        let names: HashMap<String, String> = read_names(&table)?.into_iter().collect();
        for part in [Some(train), held_out.as_mut(), test.as_mut()].into_iter().flatten() {
            let name = |class: &String| match names.get(class) {
                Some(name) => format!("{class} {name}"),
                None => class.clone(),
            };
            let classes = part.classes().iter().map(name).collect();
            *part = part.clone().with_classes(classes);
        }
    }
    Ok(())
}

/// Whether two names are those of one class: they are the same, or begin with the same number of WordNet.
pub(crate) fn is_same_class(one: &str, other: &str) -> bool {
    let number = |name: &str| name.split(' ').next().filter(|word| is_number(word)).map(str::to_owned);
    one == other || number(one).is_some_and(|own| number(other) == Some(own))
}

/// Whether a name is one of WordNet's numbers.
pub(super) fn is_number(name: &str) -> bool {
    name.len() == 9 && name.starts_with('n') && name.bytes().skip(1).all(|byte| byte.is_ascii_digit())
}

/// The file with this name in `folder` or in one of the three folders above it.
pub(super) fn find_table(folder: &Path, name: &str) -> Option<PathBuf> {
    let folder = fs::canonicalize(folder).ok()?;
    folder.ancestors().take(4).map(|above| above.join(name)).find(|path| path.is_file())
}

pub(super) fn read_table(path: &Path) -> Result<String, DataError> {
    let bytes = read_regular(path, MAX_TABLE_BYTES).map_err(|source| DataError::read(path, source))?;
    String::from_utf8(bytes).map_err(|_| DataError::layout(path, "it is not valid UTF-8"))
}

/// Numbers and first names of the classes: `n01440764 tench, Tinca tinca` is (`n01440764`, `tench`).
pub(super) fn read_names(path: &Path) -> Result<Vec<(String, String)>, DataError> {
    let text = read_table(path)?;
    let entry = |(line, text): (usize, &str)| match text.split_once(' ') {
        Some((number, names)) if is_number(number) => {
            let first = names.split(',').next().unwrap_or(names).trim();
            Ok((number.to_owned(), first.to_owned()))
        }
        _ => Err(DataError::layout(path, format!("line {line} does not begin with a class such as n01440764"))),
    };
    (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()).map(entry).collect()
}
