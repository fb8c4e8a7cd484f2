//! WebDataset: tar archives, named by a pattern or in a folder, in parts if their names say so.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::OpenOptions;
use super::classes::{Distinct, LABELS, sort_classes};
use super::parts::PartName;
use crate::file_list::FileList;
use crate::scan::files_below;
use crate::shards::{Indexed, Place, Shards, index};
use crate::split::Scanned;
use crate::{DataError, LeftOut};

/// Archives whose headers are read at a time: most of the time is a file server's.
const THREADS: usize = 16;
/// Archives that a pattern may name.
const MOST: usize = 100_000;

/// Whether a path that does not exist is a pattern, such as `train-{000..099}.tar`.
pub(crate) fn is_pattern(path: &Path) -> bool {
    path.to_str().is_some_and(|path| path.contains(['{', '*']))
}

/// The archives that a pattern names, in order: `{000..099}` and `{train,val}` are expanded, and `*` in the last part of the
/// path is any text.
pub(crate) fn expand(pattern: &Path) -> Result<Vec<PathBuf>, DataError> {
    let refused = |problem: String| DataError::layout(pattern, problem);
    let text = pattern.to_str().ok_or_else(|| refused("it is not valid UTF-8".to_owned()))?;
    let mut paths = Vec::new();
    for name in braces(text).map_err(refused)? {
        let path = PathBuf::from(&name);
        let (folder, last) = name.rsplit_once('/').unwrap_or((".", &name));
        if folder.contains('*') {
            return Err(refused("a * may be in the names of archives, not in those of folders".to_owned()));
        }
        if !last.contains('*') {
            paths.push(path);
            continue;
        }
        let folder = if folder.is_empty() { "/" } else { folder };
        let listed = fs::read_dir(folder).map_err(|source| DataError::read(folder, source))?;
        let names = listed.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut found: Vec<String> = names.filter(|own| !own.starts_with('.') && is_match(last, own)).collect();
        found.sort_unstable();
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
    let (inside, rest) = (&pattern[start + 1..start + length], &pattern[start + length + 1..]);
    let own: Vec<String> = match inside.split_once("..") {
        Some((first, last)) => {
            let number = |text: &str| text.parse::<usize>().map_err(|_| format!("{{{inside}}} is no range of numbers"));
            let (from, to) = (number(first)?, number(last)?);
            if from > to || to - from >= MOST {
                return Err(format!("{{{inside}}} is no range of numbers, or one of more than {MOST}"));
            }
            (from..=to).map(|number| format!("{number:0width$}", width = first.len())).collect()
        }
        None => inside.split(',').map(str::to_owned).collect(),
    };
    let rest = braces(rest)?;
    if own.len().saturating_mul(rest.len()) > MOST {
        return Err(format!("it stands for more than {MOST} archives"));
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

/// The archives in a folder and its folders; perhaps none.
pub(crate) fn in_folder(root: &Path) -> Result<Vec<PathBuf>, DataError> {
    let found = files_below(root, &["tar"], &mut LeftOut::default())?;
    Ok(found.into_iter().map(|relative| root.join(relative)).collect())
}

/// Lists the pictures in archives, which are named relative to `root` to find out their parts.
pub(crate) fn scan(archives: Vec<PathBuf>, root: &Path, options: &OpenOptions) -> Result<Scanned<Shards>, DataError> {
    let parts: Vec<Option<PartName>> =
        archives.iter().map(|path| part_of(path.strip_prefix(root).unwrap_or(path))).collect();
    let has = |part: Option<PartName>| parts.contains(&part);
    let held_out = [PartName::Validation, PartName::Test].into_iter().find(|&part| has(Some(part)));
    let held_out = held_out.filter(|_| has(Some(PartName::Train)));
    if let (Some(part), Some(place)) = (held_out, parts.iter().position(Option::is_none)) {
        let problem =
            format!("its name says no part, and others are for training and for {part:?}; rename it or name a pattern");
        return Err(DataError::layout(&archives[place], problem));
    }
    // Test archives beside those for validation are for later.
    let wanted = |part: Option<PartName>| held_out.is_none() || part == Some(PartName::Train) || part == held_out;
    let (archives, parts): (Vec<PathBuf>, Vec<_>) =
        archives.into_iter().zip(parts).filter(|(_, part)| wanted(*part)).unzip();
    let mut fields: Vec<&str> = options.label_column.iter().map(String::as_str).collect();
    if fields.is_empty() {
        fields = LABELS.to_vec();
    }
    let mut warnings = Vec::new();
    let (mut distinct, mut first) = (Distinct::default(), Vec::new());
    let mut lists = [(FileList::default(), Vec::new()), (FileList::default(), Vec::new())];
    for (number, indexed) in index_all(&archives, &fields).into_iter().enumerate() {
        let Indexed { samples, is_complete } = indexed?;
        if !is_complete {
            let path = archives[number].display();
            warnings.push(format!("{path}: it lacks the mark of an archive's end, and may have been cut short"));
        }
        let (names, places) = &mut lists[usize::from(held_out.is_some() && parts[number] == held_out)];
        for sample in samples {
            let label = distinct.number(&sample.label);
            if label as usize == first.len() {
                first.push((number, sample.name.clone()));
            }
            names.push(&sample.name, label);
            places.push(Place { offset: sample.offset, archive: number as u32, length: sample.length });
        }
    }
    if lists[0].1.is_empty() {
        return Err(DataError::layout(root, "there are no samples in its archives"));
    }
    let (classes, labels) = sort_classes(&distinct.texts).map_err(|(class, problem)| {
        let (number, name) = &first[class];
        DataError::layout(archives[*number].join(name), problem)
    })?;
    let [train, validation] =
        lists.map(|(names, places)| Shards::new(archives.clone(), classes.clone(), names.relabelled(&labels), places));
    let held_out = held_out.map(|_| validation);
    Ok(Scanned { held_out, warnings, ..Scanned::whole("WebDataset archives", train) })
}

/// The part that an archive's name, or a folder's, says: `imagenet-train-000.tar` is for training.
fn part_of(path: &Path) -> Option<PartName> {
    let text = path.to_string_lossy();
    text.rsplit('/').flat_map(|name| name.split(|letter: char| !letter.is_alphanumeric())).find_map(PartName::of)
}

/// The samples of all archives, in their order.
fn index_all(archives: &[PathBuf], fields: &[&str]) -> Vec<Result<Indexed, DataError>> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::with_capacity(archives.len()));
    thread::scope(|scope| {
        for _ in 0..THREADS.min(archives.len()) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(path) = archives.get(number) else { break };
                    let indexed = index(path, fields);
                    found.lock().unwrap_or_else(PoisonError::into_inner).push((number, indexed));
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_unstable_by_key(|(number, _)| *number);
    found.into_iter().map(|(_, indexed)| indexed).collect()
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
        check("{0..999}{0..999}", Err("it stands for more than 100000 archives"));
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
}
