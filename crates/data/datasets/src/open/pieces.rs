//! Data in several files of one kind: named by a pattern or in a folder, in parts if their names say so.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use enmasse_data::DataError;

use super::parts::PartName;
use crate::scan::files_below;
use crate::storage::Storage;
use crate::{DataWarning, LeftOut};

/// Files that are opened at a time: most of the time is a file server's.
const THREADS: usize = 16;
/// Objects that are looked up at a time: of each a server sends a byte.
const LOOKS: usize = 64;
/// Files that a pattern may name.
const MAX: usize = 100_000;

/// Whether a path that does not exist is a pattern, such as `train-{000..099}.tar`.
pub(super) fn is_pattern(path: &Path) -> bool {
    path.to_str().is_some_and(|path| path.contains(['{', '*']))
}

/// The files that a pattern names, in order: `{000..099}` and `{train,val}` are expanded, and `*` in the last part of the
/// path is any text.
pub(super) fn expand(storage: &Storage, pattern: &Path) -> Result<Vec<PathBuf>, DataError> {
    let refused = |problem: String| DataError::layout(pattern, problem);
    let text = pattern.to_str().ok_or_else(|| refused("it is not valid UTF-8".to_owned()))?;
    let mut paths = Vec::new();
    for name in braces(text).map_err(refused)? {
        let path = PathBuf::from(&name);
        let (folder, last) = name.rsplit_once('/').unwrap_or((".", &name));
        if folder.contains('*') {
            return Err(refused("a * may be in the names of files, not in those of folders".to_owned()));
        }
        if !last.contains('*') {
            paths.push(path);
            continue;
        }
        let folder = if folder.is_empty() { "/" } else { folder };
        let mut found = storage.names(folder)?;
        found.retain(|own| !own.starts_with('.') && is_match(last, own));
        if found.is_empty() {
            return Err(refused(format!("no file in {folder} is called {last}")));
        }
        paths.extend(found.iter().map(|own| path.with_file_name(own)));
    }
    Ok(paths)
}

/// The texts that a pattern with braces stands for.
fn braces(pattern: &str) -> Result<Vec<String>, String> {
    let Some(start) = pattern.find('{') else { return Ok(vec![pattern.to_owned()]) };
    let length = pattern[start..].find('}').ok_or("it has a { without a }")?;
    let inside = &pattern[start + 1..start + length];
    let rest = &pattern[start + length + 1..];
    let own: Vec<String> = match inside.split_once("..") {
        Some((first, last)) => {
            let number = |text: &str| text.parse::<usize>().map_err(|_| format!("{{{inside}}} is no range of numbers"));
            let (from, to) = (number(first)?, number(last)?);
            if from > to || to - from >= MAX {
                return Err(format!("{{{inside}}} is no range of numbers, or one of more than {MAX}"));
            }
            (from..=to).map(|number| format!("{number:0width$}", width = first.len())).collect()
        }
        None => inside.split(',').map(str::to_owned).collect(),
    };
    let rest = braces(rest)?;
    if own.len().saturating_mul(rest.len()) > MAX {
        return Err(format!("it stands for more than {MAX} files"));
    }
    Ok(own.iter().flat_map(|own| rest.iter().map(move |rest| format!("{}{own}{rest}", &pattern[..start]))).collect())
}

/// Whether `name` is `pattern` with any texts in the places of `*`.
fn is_match(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let (middle, last) = rest.rsplit_once('*').map_or((None, rest), |(middle, last)| (Some(middle), last));
    // The nearest place is as good as any later one.
    for piece in middle.into_iter().flat_map(|middle| middle.split('*')) {
        match name.find(piece) {
            Some(at) => name = &name[at + piece.len()..],
            None => return false,
        }
    }
    name.ends_with(last)
}

/// The files with an extension in a folder and its folders; perhaps none.
pub(super) fn in_folder(root: &Path, extension: &str) -> Result<Vec<PathBuf>, DataError> {
    let found = files_below(root, &[extension], &mut LeftOut::default())?;
    Ok(found.into_iter().map(|relative| root.join(relative)).collect())
}

/// Files, each for one part or for all.
pub(super) struct Pieces {
    /// Those that are used, and what each is for: [`PartName::Train`] if they do not come in parts.
    pub files: Vec<(PathBuf, PartName)>,
    /// The part that validates, if it is one of its own.
    pub held_out: Option<PartName>,
}

impl Pieces {
    /// The parts of `files`, which are named relative to `root` to find them out. Those of `unlabelled` parts do not count.
    pub fn new(files: Vec<PathBuf>, root: &Path, unlabelled: &[PartName]) -> Result<Self, DataError> {
        let parts: Vec<Option<PartName>> =
            files.iter().map(|path| part_of(path.strip_prefix(root).unwrap_or(path))).collect();
        let has = |part: Option<PartName>| parts.contains(&part);
        let labelled = [PartName::Validation, PartName::Test].into_iter().filter(|part| !unlabelled.contains(part));
        let held_out = labelled.filter(|_| has(Some(PartName::Train))).find(|&part| has(Some(part)));
        if let (Some(part), Some(place)) = (held_out, parts.iter().position(Option::is_none)) {
            let problem = format!(
                "its name says no part, and others are for training and for {part:?}; rename it or name a pattern"
            );
            return Err(DataError::layout(&files[place], problem));
        }
        let used = files.into_iter().zip(parts).filter(|(_, part)| part.is_none_or(|part| !unlabelled.contains(&part)));
        let of_part = |part: Option<PartName>| part.filter(|_| held_out.is_some()).unwrap_or(PartName::Train);
        let files = used.map(|(path, part)| (path, of_part(part))).collect();
        Ok(Pieces { files, held_out })
    }

    /// Whether there are files for tests besides those for validation.
    pub fn has_test(&self) -> bool {
        self.held_out == Some(PartName::Validation) && self.files.iter().any(|(_, part)| *part == PartName::Test)
    }

    /// The place of a file's part among the three of a data set: training, validation, test.
    pub fn place_of(&self, part: PartName) -> usize {
        match part {
            PartName::Train => 0,
            part if Some(part) == self.held_out => 1,
            PartName::Validation | PartName::Test => 2,
        }
    }

    /// A warning if the files for tests validate.
    pub fn warning(&self, root: &Path) -> Option<DataWarning> {
        let warn = || DataWarning::test_validates(root, "its test part");
        (self.held_out == Some(PartName::Test)).then(warn)
    }
}

/// The part that a file's name, or a folder's, says: `imagenet-train-000.tar` is for training.
fn part_of(path: &Path) -> Option<PartName> {
    let text = path.to_string_lossy();
    text.rsplit('/').flat_map(|name| name.split(|letter: char| !letter.is_alphanumeric())).find_map(PartName::of)
}

/// What `read` makes of each file, in their order, or the error of the first one that has one. Several are read at a time.
pub(super) fn read_all<T: Send>(
    storage: &Storage,
    files: &[(PathBuf, PartName)],
    read: impl Fn(&Path, PartName) -> Result<T, DataError> + Sync,
) -> Result<Vec<T>, DataError> {
    if storage.is_remote() {
        // An object that is missing is an error before anything of the others is fetched.
        each(files, LOOKS, |path, _| storage.open(path).map(drop))?;
    }
    each(files, THREADS, read)
}

/// The same for so many files at a time. None is begun after one with an error.
fn each<T: Send>(
    files: &[(PathBuf, PartName)],
    threads: usize,
    read: impl Fn(&Path, PartName) -> Result<T, DataError> + Sync,
) -> Result<Vec<T>, DataError> {
    let next = AtomicUsize::new(0);
    let end = AtomicUsize::new(files.len());
    let found = Mutex::new(Vec::with_capacity(files.len()));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= end.load(Ordering::Relaxed) {
                break;
            }
            let (path, part) = &files[number];
            let made = read(path, *part);
            if made.is_err() {
                end.fetch_min(number, Ordering::Relaxed);
            }
            found.lock().unwrap_or_else(PoisonError::into_inner).push((number, made));
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(files.len()) {
            // Where the system has no more threads, those that there are do the work; this one is always among them.
            if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_unstable_by_key(|(number, _)| *number);
    found.into_iter().map(|(_, made)| made).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_stand_for_names() {
        let check = |pattern: &str, expected: Result<&[&str], &str>| {
            let found = braces(pattern);
            assert_eq!(
                found.as_deref().map_err(String::as_str),
                expected
                    .map(|names| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>())
                    .as_deref()
                    .map_err(|problem| *problem)
            );
        };
        check("a.tar", Ok(&["a.tar"]));
        check("a-{08..11}.tar", Ok(&["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]));
        check("{a,b}-{0..1}", Ok(&["a-0", "a-1", "b-0", "b-1"]));
        check("a-{3..1}.tar", Err("{3..1} is no range of numbers, or one of more than 100000"));
        check("a-{a..b}.tar", Err("{a..b} is no range of numbers"));
        check("a-{0..1", Err("it has a { without a }"));
        check("{0..999}{0..999}", Err("it stands for more than 100000 files"));
    }

    #[test]
    fn stars_are_any_text() {
        let check = |pattern: &str, name: &str, expected: bool| {
            assert_eq!(is_match(pattern, name), expected, "{pattern} {name}")
        };
        check("*.tar", "a.tar", true);
        check("*.tar", "a.tar.gz", false);
        check("a*b*c", "a-b-b-c", true);
        check("a*b*c", "a-c-b", false);
        check("a*a", "a", false);
        check("a", "a", true);
        check("**", "", true);
    }

    #[test]
    fn parts_by_names() {
        let check = |path: &str, expected: Option<PartName>| assert_eq!(part_of(Path::new(path)), expected, "{path}");
        check("train-000.tar", Some(PartName::Train));
        check("imagenet1k-validation-01.tar", Some(PartName::Validation));
        check("val/000.tar", Some(PartName::Validation));
        check("train/val-000.tar", Some(PartName::Validation));
        check("trainer-000.tar", None);
        check("000.tar", None);
    }

    #[test]
    fn the_first_error_ends_it() {
        let files: Vec<(PathBuf, PartName)> =
            (0..9).map(|number| (PathBuf::from(number.to_string()), PartName::Train)).collect();
        let check = |threads: usize, bad: &[&str], expected: Result<usize, &str>, most: usize| {
            let read = AtomicUsize::new(0);
            let found = each(&files, threads, |path, _| {
                read.fetch_add(1, Ordering::Relaxed);
                let is_bad = bad.iter().any(|bad| Path::new(bad) == path);
                if is_bad { Err(DataError::layout(path, "bad")) } else { Ok(path.to_owned()) }
            });
            let found = found.map(|found| found.iter().zip(&files).filter(|(found, (path, _))| *found == path).count());
            assert_eq!(found.map_err(|error| error.to_string()), expected.map_err(str::to_owned));
            assert!(read.into_inner() <= most);
        };
        check(1, &[], Ok(9), 9);
        check(4, &[], Ok(9), 9);
        check(1, &["3", "5"], Err("3: bad"), 4);
        check(4, &["3", "5"], Err("3: bad"), 9);
    }
}
