//! The images of each part. A test part is sampled from what training draws for itself.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use enmasse_data::Dataset;
use enmasse_datasets::TaskKind;
use enmasse_image::RandomStream;

use crate::commands::data::opened::Opened;
use crate::commands::data::targets::noun;
use crate::failure::{Failure, failed, usage};

/// A part of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SplitPart {
    Train,
    Validation,
    Test,
}

impl SplitPart {
    pub const ALL: [SplitPart; 3] = [SplitPart::Train, SplitPart::Validation, SplitPart::Test];

    /// The name of its folder.
    pub fn word(self) -> &'static str {
        match self {
            SplitPart::Train => "train",
            SplitPart::Validation => "val",
            SplitPart::Test => "test",
        }
    }

    pub fn purpose(self) -> &'static str {
        match self {
            SplitPart::Train => "training",
            SplitPart::Validation => "validation",
            SplitPart::Test => "testing",
        }
    }
}

/// An image and its place.
#[derive(Debug, PartialEq)]
pub struct SplitImage {
    pub part: SplitPart,
    /// Empty where images have labels or numbers.
    pub class: String,
    /// The labels or numbers, as [`Dataset::targets`] gives them.
    pub targets: Vec<f32>,
    /// Its name in the folder of part and class.
    pub name: String,
    /// Its file, without links on the way to it.
    pub file: PathBuf,
}

/// All images: those that training and validation draw, and of the former a share of each class for a test part.
pub fn entries(opened: &Opened, test: f64) -> Result<Vec<SplitImage>, Failure> {
    let Opened { config, data, .. } = opened;
    let has_classes = data.task == TaskKind::Classification;
    if test > 0.0 && !has_classes {
        return Err(usage!("--test: takes a share of each class, and images have {}s; leave it out", noun(data.task)));
    }
    let held_out = testing(data.train.as_ref(), data.validation.as_ref(), &data.classes, config.train.split_seed, test);
    let train = (0..data.train.len()).map(|index| {
        let part = if held_out.contains(&index) { SplitPart::Test } else { SplitPart::Train };
        (&data.train, index, part)
    });
    let validation = (0..data.validation.len()).map(|index| (&data.validation, index, SplitPart::Validation));
    let mut names = Names::default();
    let mut entries = Vec::with_capacity(data.train.len() + data.validation.len());
    for (dataset, index, part) in train.chain(validation) {
        let class = if has_classes { data.classes[dataset.label(index)].as_str() } else { "" };
        let path = dataset.locality().and_then(|locality| locality.file_path(index)).ok_or_else(|| {
            failed!("{}: is no file of its own, which could be linked or listed", dataset.name(index))
        })?;
        let file = path.canonicalize().map_err(|error| failed!("{}: {error}", path.display()))?;
        // Only classes become folders.
        let name = if has_classes { names.of(part, class, &path)? } else { String::new() };
        entries.push(SplitImage { part, class: class.to_owned(), targets: dataset.targets(index), name, file });
    }
    Ok(entries)
}

/// The samples of the training part that are held out for testing: ⌊n · `share`⌋ of each class's n images in both parts. The
/// draw depends on the seed and the class's name alone.
fn testing(train: &dyn Dataset, validation: &dyn Dataset, classes: &[String], seed: u64, share: f64) -> HashSet<usize> {
    let mut own = vec![Vec::new(); classes.len()];
    (0..train.len()).for_each(|index| own[train.label(index)].push(index));
    let mut all: Vec<usize> = own.iter().map(Vec::len).collect();
    (0..validation.len()).for_each(|index| all[validation.label(index)] += 1);
    let of_class = |((class, own), all): ((&String, Vec<usize>), usize)| {
        let order = RandomStream::new(seed, &format!("split test {class}"), 0, 0).permutation(own.len());
        let count = (all as f64 * share) as usize;
        order.into_iter().take(count).map(move |place| own[place as usize]).collect::<Vec<_>>()
    };
    classes.iter().zip(own).zip(all).flat_map(of_class).collect()
}

/// Names of files that are unique in their folders.
#[derive(Default)]
struct Names {
    /// How often a name occurred in the folder of a part and class.
    taken: HashMap<(SplitPart, String, String), usize>,
}

impl Names {
    /// The file's own name. A later file of the same name gets a number: `a-2.jpg`.
    fn of(&mut self, part: SplitPart, class: &str, path: &Path) -> Result<String, Failure> {
        let is_folder = Path::new(class).file_name().is_some_and(|name| name == class);
        let text = |part: Option<&std::ffi::OsStr>| part.and_then(|part| part.to_str()).map(str::to_owned);
        let (Some(name), Some(stem), true) = (text(path.file_name()), text(path.file_stem()), is_folder) else {
            return Err(failed!("{}: the class {class:?} cannot be a folder", path.display()));
        };
        let extension = text(path.extension()).map_or(String::new(), |extension| format!(".{extension}"));
        let mut chosen = name;
        loop {
            let count = self.taken.entry((part, class.to_owned(), chosen.clone())).or_insert(0);
            *count += 1;
            match *count {
                1 => return Ok(chosen),
                count => chosen = format!("{stem}-{count}{extension}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_in_their_folder() {
        let mut names = Names::default();
        let mut check = |part: SplitPart, class: &str, path: &str, expected: &str| {
            assert_eq!(names.of(part, class, Path::new(path)).unwrap(), expected);
        };
        check(SplitPart::Train, "red", "a/1.jpg", "1.jpg");
        check(SplitPart::Train, "blue", "a/1.jpg", "1.jpg");
        check(SplitPart::Test, "red", "b/1.jpg", "1.jpg");
        check(SplitPart::Train, "red", "b/1.jpg", "1-2.jpg");
        check(SplitPart::Train, "red", "b/1-2.jpg", "1-2-2.jpg");
        check(SplitPart::Train, "red", "c/1.jpg", "1-3.jpg");
        check(SplitPart::Train, "red", "c/plain", "plain");
        for class in ["a/b", "..", ".", "", "/"] {
            assert!(names.of(SplitPart::Train, class, Path::new("1.jpg")).is_err(), "{class:?}");
        }
    }
}
