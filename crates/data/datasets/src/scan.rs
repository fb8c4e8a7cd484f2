//! Which images lie in folders. Hidden entries and those of file managers are skipped, links are followed, and what is neither
//! a file nor a folder is counted. Entries are sorted by the bytes of their names, so every machine and locale agrees on labels and indices.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, FileType, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use enmasse_data::DataError;
use enmasse_image::ImageFormat;
use enmasse_system::files::name_of;

use crate::LeftOut;

/// Folders in folders that are followed. Paths have at most 4096 bytes; this bounds the stack.
const MAX_DEPTH: usize = 256;

/// How often links lead into the same folder. Two links in each of twenty folders lead a million times into the last one.
const MAX_ENTRIES: usize = 100;

/// What file managers leave in folders, besides hidden files such as `.DS_Store` and the `._` files of AppleDouble.
const CLUTTER: [&str; 4] = ["__MACOSX", "Thumbs.db", "ehthumbs.db", "desktop.ini"];

/// Whether an entry of a folder is hidden, or left there by a file manager: scans skip it without a word.
pub fn is_clutter(name: &OsStr) -> bool {
    let is_known = |known: &&str| name.eq_ignore_ascii_case(known);
    name.as_encoded_bytes().starts_with(b".") || CLUTTER.iter().any(is_known)
}

/// What a link is that leads to a folder it lies in, whose images are of other classes.
pub const LINK_ABOVE: &str = "a link to a folder above it";

/// What a file is whose name is that of an image in a format that is not read.
fn unread(name: &str) -> Option<&'static str> {
    let kinds: [(&[&str], &str); 3] = [
        (&["tif", "tiff"], "TIFF is not read; convert it to PNG or JPEG"),
        (&["heic", "heif"], "HEIC is not read; convert it to PNG or JPEG"),
        (&["avif"], "AVIF is not read; convert it to PNG or JPEG"),
    ];
    kinds.into_iter().find(|(extensions, _)| has_extension(name, extensions)).map(|(_, kind)| kind)
}

/// An image in a format that is not read, in a folder or in one of its folders, with what it is.
pub(crate) fn unread_image(root: &Path) -> Option<(PathBuf, &'static str)> {
    let none = &mut LeftOut::default();
    let inner = folders(root, none).ok()?.into_iter().map(|name| root.join(name));
    let mut names = std::iter::once(root.to_owned()).chain(inner).filter_map(|folder| {
        let found = entries(&folder, &mut LeftOut::default()).ok()?;
        found.into_iter().filter_map(|(name, _)| Some((folder.join(&name), unread(&name)?))).min()
    });
    names.next()
}

/// All images in a folder and in its folders, at any depth, sorted by path. Hidden entries are skipped. A link to a folder that it
/// lies in, what is neither a file nor a folder, and images in formats that are not read are added to `left_out`.
///
/// # Errors
/// A folder cannot be read, or there is no image in it.
pub fn list_images(folder: &Path, left_out: &mut LeftOut) -> Result<Vec<PathBuf>, DataError> {
    let mut found: Vec<PathBuf> =
        images_below(folder, left_out)?.into_iter().map(|relative| folder.join(relative)).collect();
    if found.is_empty() {
        return Err(DataError::layout(
            folder,
            format!("there are no images ({}) in it", ImageFormat::EXTENSIONS.join(", ")),
        ));
    }
    found.sort_unstable();
    Ok(found)
}

/// The paths of the same images relative to `folder`, sorted by their bytes; perhaps none.
pub(crate) fn images_below(folder: &Path, left_out: &mut LeftOut) -> Result<Vec<String>, DataError> {
    files_below(folder, &ImageFormat::EXTENSIONS, left_out)
}

/// The same for files with other extensions.
pub(crate) fn files_below(
    folder: &Path,
    extensions: &[&str],
    left_out: &mut LeftOut,
) -> Result<Vec<String>, DataError> {
    let mut found = Vec::new();
    add_files(folder, "", extensions, &mut Entered::default(), &mut found, left_out)?;
    found.sort_unstable();
    Ok(found)
}

/// Adds the files in `folder`, whose paths begin with `prefix`.
fn add_files(
    folder: &Path,
    prefix: &str,
    extensions: &[&str],
    entered: &mut Entered,
    found: &mut Vec<String>,
    left_out: &mut LeftOut,
) -> Result<(), DataError> {
    if !entered.enter(folder, &metadata_of(folder)?)? {
        left_out.add(folder, LINK_ABOVE);
        return Ok(());
    }
    let mut folders = Vec::new();
    for (name, kind) in entries(folder, left_out)? {
        if kind.is_dir() {
            folders.push(name);
        } else if has_extension(&name, extensions) {
            found.push(format!("{prefix}{name}"));
        } else if let Some(kind) = unread(&name).filter(|_| extensions == ImageFormat::EXTENSIONS) {
            left_out.add(&folder.join(&name), kind);
        }
    }
    for inner in folders {
        add_files(&folder.join(&inner), &format!("{prefix}{inner}/"), extensions, entered, found, left_out)?;
    }
    entered.leave();
    Ok(())
}

/// The files and folders in `folder` without clutter, in the order of the file system. What is neither is added to
/// `left_out`.
fn entries(folder: &Path, left_out: &mut LeftOut) -> Result<Vec<(String, FileType)>, DataError> {
    let failed = |source| DataError::read(folder, source);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        if is_clutter(&name) {
            continue;
        }
        // Links are followed. A broken link is neither an image nor a class, and neither is a pipe or a device.
        let kind = match entry.file_type() {
            Ok(kind) if !kind.is_symlink() => kind,
            _ => match fs::metadata(entry.path()) {
                Ok(metadata) => metadata.file_type(),
                Err(error) => {
                    let broken = error.kind() == ErrorKind::NotFound;
                    left_out
                        .add(&entry.path(), if broken { "a broken link" } else { "a link that cannot be followed" });
                    continue;
                }
            },
        };
        if !kind.is_file() && !kind.is_dir() {
            left_out.add(&entry.path(), name_of(kind));
            continue;
        }
        match name.into_string() {
            Ok(name) => found.push((name, kind)),
            Err(_) => return Err(DataError::layout(entry.path(), "its name is not valid UTF-8; rename it")),
        }
    }
    Ok(found)
}

/// Names of the folders in `folder`, sorted.
pub(crate) fn folders(folder: &Path, left_out: &mut LeftOut) -> Result<Vec<String>, DataError> {
    names(folder, left_out, |_, kind| kind.is_dir())
}

/// Names of the files in `folder` with one of these extensions in any case, sorted.
pub(crate) fn files(folder: &Path, extensions: &[&str], left_out: &mut LeftOut) -> Result<Vec<String>, DataError> {
    names(folder, left_out, |name, kind| kind.is_file() && has_extension(name, extensions))
}

fn names(
    folder: &Path,
    left_out: &mut LeftOut,
    wanted: impl Fn(&str, FileType) -> bool,
) -> Result<Vec<String>, DataError> {
    let found = entries(folder, left_out)?.into_iter();
    let mut names: Vec<String> = found.filter(|(name, kind)| wanted(name, *kind)).map(|(name, _)| name).collect();
    names.sort_unstable();
    Ok(names)
}

/// Whether a file's name ends as those of images do.
pub(crate) fn is_image(name: &str) -> bool {
    has_extension(name, &ImageFormat::EXTENSIONS)
}

pub(crate) fn has_extension(name: &str, extensions: &[&str]) -> bool {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    extensions.iter().any(|known| extension.eq_ignore_ascii_case(known))
}

/// Whether there is an image in or below a folder of `root`. Stops at the first one.
pub(crate) fn holds_images(root: &Path) -> Result<bool, DataError> {
    fn has_some(folder: &Path, depth: usize, seen: &mut HashSet<Identity>) -> Result<bool, DataError> {
        check_depth(folder, depth)?;
        // A folder that was seen has no image.
        if !seen.insert(identity(&metadata_of(folder)?)) {
            return Ok(false);
        }
        // The scan that follows tells what is left out.
        let found = entries(folder, &mut LeftOut::default())?;
        if depth > 0 && found.iter().any(|(name, kind)| kind.is_file() && is_image(name)) {
            return Ok(true);
        }
        for (inner, _) in found.iter().filter(|(_, kind)| kind.is_dir()) {
            if has_some(&folder.join(inner), depth + 1, seen)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
    has_some(root, 0, &mut HashSet::new())
}

/// What tells a folder from all others: its device and its number there.
type Identity = (u64, u64);

fn identity(metadata: &Metadata) -> Identity {
    (metadata.dev(), metadata.ino())
}

fn metadata_of(folder: &Path) -> Result<Metadata, DataError> {
    fs::metadata(folder).map_err(|source| DataError::read(folder, source))
}

fn check_depth(folder: &Path, depth: usize) -> Result<(), DataError> {
    match depth {
        MAX_DEPTH => Err(DataError::layout(folder, format!("it lies more than {MAX_DEPTH} folders deep"))),
        _ => Ok(()),
    }
}

/// The folders that a scan has entered. Links are followed, and a scan must end all the same.
#[derive(Debug, Default)]
pub struct Entered {
    /// Where the scan began.
    root: PathBuf,
    /// The folders around it, once that matters.
    around: Option<HashSet<Identity>>,
    /// Those that the scan is in, outermost first.
    above: Vec<Identity>,
    /// How often it has entered each.
    times: HashMap<Identity, usize>,
}

impl Entered {
    /// Enters a folder. Returns false for a link to one that it lies in.
    ///
    /// # Errors
    /// Folders lie too deep in each other, or links lead too often into the same one.
    pub fn enter(&mut self, folder: &Path, metadata: &Metadata) -> Result<bool, DataError> {
        check_depth(folder, self.above.len())?;
        let identity = identity(metadata);
        if self.above.is_empty() {
            self.root = folder.to_owned();
        }
        // A folder that begins a scan is mostly no link, and has no folders: then there is nothing to look up.
        let may_lead_out = !self.above.is_empty() || folder.is_symlink();
        if self.above.contains(&identity) || (may_lead_out && self.around().contains(&identity)) {
            return Ok(false);
        }
        let times = self.times.entry(identity).or_default();
        *times += 1;
        if *times > MAX_ENTRIES {
            let problem = format!(
                "links lead into this folder more than {MAX_ENTRIES} times; remove links that repeat its images"
            );
            return Err(DataError::layout(folder, problem));
        }
        self.above.push(identity);
        Ok(true)
    }

    /// The folders in which the scan's first one lies, by its name and in truth.
    fn around(&mut self) -> &HashSet<Identity> {
        let root = &self.root;
        self.around.get_or_insert_with(|| {
            let real = root.canonicalize().unwrap_or_default();
            let folders = root.ancestors().skip(1).chain(real.ancestors().skip(1));
            folders.filter_map(|folder| Some(identity(&fs::metadata(folder).ok()?))).collect()
        })
    }

    /// Leaves the folder that was entered last.
    pub fn leave(&mut self) {
        self.above.pop();
    }
}
