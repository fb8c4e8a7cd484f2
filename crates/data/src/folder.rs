//! A folder of class folders: `DIR/<class>/<picture>.jpg`.
//!
//! Classes and files are sorted by the bytes of their names, so every machine and locale agrees on labels and indices.

use std::collections::HashMap;
use std::fs::{self, FileType};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use enmasse_files::name_of;

use crate::decode::{self, ReadOptions};
use crate::{DataError, Dataset, LeftOut, Picture};

/// Extensions of picture files, in any case. The content decides which format a file has.
pub(crate) const EXTENSIONS: [&str; 6] = ["jpg", "jpeg", "png", "webp", "bmp", "gif"];

/// Pictures in class folders, or a part of them.
#[derive(Clone, Debug)]
pub struct Folder {
    root: PathBuf,
    classes: Vec<String>,
    /// Path relative to `root`, and class. Shared, since lists of a million files are cloned with the folder.
    files: Arc<Vec<(String, usize)>>,
    options: ReadOptions,
    left_out: LeftOut,
}

impl Folder {
    /// Lists the class folders of `root` and the pictures directly inside them. Hidden entries are skipped. A class
    /// folder without a picture is an error.
    pub fn scan(root: impl AsRef<Path>) -> Result<Self, DataError> {
        Self::scan_below(root.as_ref(), "")
    }

    /// The same for the class folders in `root`/`part`; the relative paths then begin with `part`.
    pub(crate) fn scan_below(root: &Path, part: &str) -> Result<Self, DataError> {
        let top = if part.is_empty() { root.to_owned() } else { root.join(part) };
        let mut left_out = LeftOut::default();
        let classes = class_folders(&top, &mut left_out)?;
        let mut files = Vec::new();
        for (label, class) in classes.iter().enumerate() {
            let relative = if part.is_empty() { class.clone() } else { format!("{part}/{class}") };
            let pictures = pictures(&root.join(&relative), &mut left_out)?;
            files.extend(pictures.into_iter().map(|file| (format!("{relative}/{file}"), label)));
        }
        Ok(Folder { root: root.to_owned(), classes, files: Arc::new(files), options: ReadOptions::default(), left_out })
    }

    /// A data set from a stored list of relative paths; each path's last folder is its class.
    pub fn from_lists(root: impl AsRef<Path>, classes: Vec<String>, files: Vec<String>) -> Result<Self, DataError> {
        let root = root.as_ref().to_owned();
        let labels: HashMap<&str, usize> = classes.iter().map(String::as_str).zip(0..).collect();
        let label = |file: &str| labels.get(Path::new(file).parent()?.file_name()?.to_str()?).copied();
        let mut labelled = Vec::with_capacity(files.len());
        for file in files {
            let Some(label) = label(&file) else {
                return Err(DataError::layout(root.join(file), "its folder is not among the listed classes"));
            };
            labelled.push((file, label));
        }
        Ok(Folder {
            root,
            classes,
            files: Arc::new(labelled),
            options: ReadOptions::default(),
            left_out: LeftOut::default(),
        })
    }

    /// Labels the same pictures by another list of classes, such as a trained model's, which must contain every class.
    pub fn relabel(mut self, classes: &[String]) -> Result<Self, DataError> {
        let mut labels = Vec::with_capacity(self.classes.len());
        for class in &self.classes {
            match classes.iter().position(|known| known == class) {
                Some(label) => labels.push(label),
                None => {
                    return Err(DataError::layout(
                        &self.root,
                        format!("the class {class:?} is not among the {} expected ones", classes.len()),
                    ));
                }
            }
        }
        for (_, label) in Arc::make_mut(&mut self.files) {
            *label = labels[*label];
        }
        self.classes = classes.to_vec();
        Ok(self)
    }

    /// How the files become RGB pixels.
    pub fn read_with(self, options: ReadOptions) -> Self {
        Folder { options, ..self }
    }

    /// Class names, sorted by bytes; a label is a position in this list.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Relative paths in index order, separated by `/`.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &str> {
        self.files.iter().map(|(file, _)| file.as_str())
    }

    /// The full path of sample `index`.
    pub fn path(&self, index: usize) -> PathBuf {
        self.root.join(&self.files[index].0)
    }

    /// What the scan found in the folder and its class folders, and could not use.
    pub fn left_out(&self) -> &LeftOut {
        &self.left_out
    }

    /// The same without what the scan left out, for the second of two parts.
    pub(crate) fn without_left_out(self) -> Self {
        Folder { left_out: LeftOut::default(), ..self }
    }

    /// Number of pictures of each class.
    pub fn counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.classes.len()];
        for &(_, label) in self.files.iter() {
            counts[label] += 1;
        }
        counts
    }

    /// The samples for which `keep` returns true, in the same order.
    pub(crate) fn part(&self, keep: impl Fn(usize) -> bool) -> Folder {
        let kept = self.files.iter().enumerate().filter(|&(index, _)| keep(index));
        Folder { files: Arc::new(kept.map(|(_, file)| file.clone()).collect()), ..self.clone() }
    }
}

impl Dataset for Folder {
    fn len(&self) -> usize {
        self.files.len()
    }

    fn label(&self, index: usize) -> usize {
        self.files[index].1
    }

    fn read(&self, index: usize) -> Result<Picture, DataError> {
        let mut picture = Picture::default();
        self.read_into(index, &mut picture)?;
        Ok(picture)
    }

    fn read_into(&self, index: usize, picture: &mut Picture) -> Result<(), DataError> {
        decode::read_file(&self.path(index), self.options, picture)
    }

    fn name(&self, index: usize) -> String {
        self.path(index).display().to_string()
    }

    fn reading_bytes(&self) -> usize {
        /// Files whose sizes are looked at, evenly distributed over the data set.
        const SAMPLES: usize = 64;
        /// The largest of them, which are read.
        const READ: usize = 4;
        // A progressive JPEG has two bytes for each coefficient in addition to the pixels.
        const PER_PIXEL_BYTE: usize = 3;
        let samples = (0..SAMPLES.min(self.len())).map(|sample| sample * self.len() / SAMPLES.min(self.len()));
        let sized = samples.filter_map(|index| Some((fs::metadata(self.path(index)).ok()?.len() as usize, index)));
        let mut sized: Vec<(usize, usize)> = sized.collect();
        sized.sort_unstable_by(|a, b| b.cmp(a));
        let bytes = sized.iter().take(READ).filter_map(|&(file, index)| {
            let pixels = self.read(index).ok()?.pixels().len();
            Some(pixels * PER_PIXEL_BYTE + file)
        });
        bytes.max().unwrap_or(0)
    }

    fn class_names(&self) -> Vec<String> {
        self.classes.clone()
    }
}

/// All pictures in a folder and in its folders, at any depth, sorted by path. Hidden entries are skipped, and so is a link
/// to a folder that it lies in. What is neither a file nor a folder is added to `left_out`. A folder without a picture is an
/// error.
pub fn list_pictures(folder: &Path, left_out: &mut LeftOut) -> Result<Vec<PathBuf>, DataError> {
    fn add(
        folder: &Path,
        above: &mut Vec<(u64, u64)>,
        found: &mut Vec<PathBuf>,
        left_out: &mut LeftOut,
    ) -> Result<(), DataError> {
        let metadata = fs::metadata(folder).map_err(|source| DataError::read(folder, source))?;
        let identity = (metadata.dev(), metadata.ino());
        if above.contains(&identity) {
            return Ok(());
        }
        let files = entries(folder, left_out, |name, kind| kind.is_file() && is_picture(name))?;
        found.extend(files.iter().map(|name| folder.join(name)));
        above.push(identity);
        for inner in entries(folder, &mut LeftOut::default(), |_, kind| kind.is_dir())? {
            add(&folder.join(inner), above, found, left_out)?;
        }
        above.pop();
        Ok(())
    }
    let mut found = Vec::new();
    add(folder, &mut Vec::new(), &mut found, left_out)?;
    if found.is_empty() {
        return Err(DataError::layout(folder, format!("there are no pictures ({}) in it", EXTENSIONS.join(", "))));
    }
    found.sort_unstable();
    Ok(found)
}

/// Names of the entries of `folder` that `wanted` accepts, without hidden ones, sorted by bytes. What is neither a file nor a
/// folder is added to `left_out`.
fn entries(
    folder: &Path,
    left_out: &mut LeftOut,
    wanted: impl Fn(&str, FileType) -> bool,
) -> Result<Vec<String>, DataError> {
    let failed = |source| DataError::read(folder, source);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        let name = entry.file_name();
        if name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        // Links are followed. A broken link is neither a picture nor a class, and neither is a pipe or a device.
        let kind = match entry.file_type() {
            Ok(kind) if !kind.is_symlink() => kind,
            _ => match fs::metadata(&path) {
                Ok(metadata) => metadata.file_type(),
                Err(error) => {
                    let broken = error.kind() == ErrorKind::NotFound;
                    left_out.add(&path, if broken { "a broken link" } else { "a link that cannot be followed" });
                    continue;
                }
            },
        };
        if !kind.is_file() && !kind.is_dir() {
            left_out.add(&path, name_of(kind));
            continue;
        }
        let Some(name) = name.to_str() else {
            return Err(DataError::layout(path, "its name is not valid UTF-8; rename it"));
        };
        if wanted(name, kind) {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn is_picture(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str()).unwrap_or("");
    EXTENSIONS.iter().any(|known| extension.eq_ignore_ascii_case(known))
}

/// Whether there is a picture in a folder of `root`, or one level below. Stops at the first one.
pub(crate) fn holds_pictures(root: &Path) -> Result<bool, DataError> {
    // The scan that follows tells what is left out.
    let folders = |folder: &Path| entries(folder, &mut LeftOut::default(), |_, kind| kind.is_dir());
    let has_some = |folder: &Path| {
        let pictures = entries(folder, &mut LeftOut::default(), |name, kind| kind.is_file() && is_picture(name));
        pictures.map(|found| !found.is_empty())
    };
    for class in folders(root)? {
        let class = root.join(class);
        if has_some(&class)? {
            return Ok(true);
        }
        for inner in folders(&class)? {
            if has_some(&class.join(inner))? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn class_folders(root: &Path, left_out: &mut LeftOut) -> Result<Vec<String>, DataError> {
    let metadata = fs::metadata(root).map_err(|source| DataError::read(root, source))?;
    if !metadata.is_dir() {
        return Err(DataError::layout(root, "this is a file; the data must be a folder of class folders"));
    }
    let classes = entries(root, left_out, |_, kind| kind.is_dir())?;
    if classes.is_empty() {
        return Err(DataError::layout(root, "it has no class folders; put each class's pictures into its own folder"));
    }
    Ok(classes)
}

fn pictures(folder: &Path, left_out: &mut LeftOut) -> Result<Vec<String>, DataError> {
    let mut own = LeftOut::default();
    let files = entries(folder, &mut own, |name, kind| kind.is_file() && is_picture(name))?;
    if files.is_empty() {
        let problem = match entries(folder, &mut LeftOut::default(), |_, kind| kind.is_dir())?.first() {
            Some(inner) => {
                format!(
                    "this class folder holds folders ({inner}, …) instead of pictures; give a folder of class folders"
                )
            }
            None if !own.is_empty() => format!("this class folder holds no pictures: {own}"),
            None => format!("this class folder holds no pictures ({}); fill it or remove it", EXTENSIONS.join(", ")),
        };
        return Err(DataError::layout(folder, problem));
    }
    left_out.append(own);
    Ok(files)
}
