//! Labelled image files below a folder: those of class folders `DIR/<class>/…`, or those of a list.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use enmasse_data::{DataError, Dataset, Locality};
use enmasse_image::decode::{self, MAX_FILE_BYTES, ReadOptions};
use enmasse_image::{Image, ImageFormat, ImageRegion, RegionRequest};
use enmasse_system::files::append_regular;

use crate::file_list::FileList;
use crate::reading::reading_bytes;
use crate::scan::{folders, images_below};
use crate::targets::Targets;
use crate::{LeftOut, TaskKind};

/// Labelled image files, or a part of them.
#[derive(Clone, Debug)]
pub struct Folder {
    root: PathBuf,
    classes: Vec<String>,
    /// Paths relative to `root`. Shared, since lists of a million files are cloned with the folder.
    files: Arc<FileList>,
    /// What is known of each image, unless that is its class. Parallel to `files`, whose labels are 0 then.
    targets: Option<Arc<Targets>>,
    options: ReadOptions,
    left_out: LeftOut,
}

impl Folder {
    /// Lists the class folders of `root` and the images inside them, at any depth. Hidden entries are skipped.
    ///
    /// # Errors
    /// A folder cannot be read, there is no class folder, or one has no image.
    pub fn scan(root: impl AsRef<Path>) -> Result<Self, DataError> {
        let root = root.as_ref();
        let folder = Self::scan_below(root, "")?;
        require_images(root, &[("", &folder)])?;
        Ok(folder)
    }

    /// The same for the class folders in `root`/`part`; the relative paths then begin with `part`. A class may have no image:
    /// see [`require_images`].
    pub(crate) fn scan_below(root: &Path, part: &str) -> Result<Self, DataError> {
        let top = if part.is_empty() { root.to_owned() } else { root.join(part) };
        let mut left_out = LeftOut::default();
        let classes = class_folders(&top, &mut left_out)?;
        let mut files = FileList::default();
        for (label, class) in (0..).zip(&classes) {
            let relative = if part.is_empty() { class.clone() } else { format!("{part}/{class}") };
            let images = images_below(&root.join(&relative), &mut left_out)?;
            images.iter().for_each(|file| files.push(&format!("{relative}/{file}"), label));
        }
        Ok(Folder { left_out, ..Self::of_files(root, classes, files) })
    }

    /// The given files, with paths relative to `root` and labels below the number of classes.
    pub(crate) fn of_files(root: &Path, classes: Vec<String>, files: FileList) -> Self {
        let (options, left_out) = (ReadOptions::default(), LeftOut::default());
        Folder { root: root.to_owned(), classes, files: Arc::new(files.shrink()), targets: None, options, left_out }
    }

    /// The same files with labels or numbers, which `classes` names.
    pub(crate) fn with_targets(self, targets: Targets) -> Self {
        debug_assert_eq!((targets.len(), targets.count()), (self.files.len(), self.classes.len()));
        Folder { targets: Some(Arc::new(targets.shrink())), ..self }
    }

    /// A data set from a stored list of relative paths, and of their labels if these are not the names of the paths' last
    /// folders.
    ///
    /// # Errors
    /// The label of a file, or the name of its folder, is not among the classes.
    pub fn from_lists(
        root: impl AsRef<Path>,
        classes: Vec<String>,
        files: Vec<String>,
        labels: Option<Vec<u32>>,
    ) -> Result<Self, DataError> {
        let root = root.as_ref();
        let by_name: HashMap<&str, u32> = classes.iter().map(String::as_str).zip(0..).collect();
        let mut list = FileList::default();
        for (index, file) in files.iter().enumerate() {
            let label = match &labels {
                Some(labels) => labels.get(index).copied().filter(|&label| (label as usize) < classes.len()),
                None => last_folder(file).and_then(|folder| by_name.get(folder).copied()),
            };
            let Some(label) = label else {
                let what = if labels.is_some() { "its label" } else { "its folder" };
                return Err(DataError::layout(root.join(file), format!("{what} is not among the listed classes")));
            };
            list.push(file, label);
        }
        Ok(Self::of_files(root, classes, list))
    }

    /// A data set from a stored list of relative paths and of what is known of each: the labels that it has, as places in
    /// `classes`, or as many numbers as `classes` names.
    ///
    /// # Errors
    /// There are not as many files as targets, or what is known of a file is not of the task or names no class.
    pub fn from_targets(
        root: impl AsRef<Path>,
        task: TaskKind,
        classes: Vec<String>,
        files: Vec<String>,
        targets: &[Vec<f32>],
    ) -> Result<Self, DataError> {
        let root = root.as_ref();
        let count = classes.len();
        let Some(mut own) = Targets::of_task(task, count).filter(|_| files.len() == targets.len()) else {
            let problem = format!(
                "the list of its files has {} entries, and that of {} {}",
                files.len(),
                task.known(),
                targets.len()
            );
            return Err(DataError::layout(root, problem));
        };
        let mut list = FileList::default();
        for (file, values) in files.iter().zip(targets) {
            let pushed = match task {
                TaskKind::MultiLabel => multi_hot(values, count).and_then(|vector| own.push(&vector)),
                TaskKind::Regression | TaskKind::Classification => own.push(values),
            };
            pushed.map_err(|problem| DataError::layout(root.join(file), problem))?;
            list.push(file, 0);
        }
        Ok(Self::of_files(root, classes, list).with_targets(own))
    }

    /// How the files become RGB pixels.
    pub fn read_with(self, options: ReadOptions) -> Self {
        Folder { options, ..self }
    }

    /// Other names for the classes, in the order of labels.
    pub(crate) fn with_classes(self, classes: Vec<String>) -> Self {
        debug_assert_eq!(classes.len(), self.classes.len());
        Folder { classes, ..self }
    }

    /// Class names; a label is a position in this list. Those of class folders are sorted by bytes.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Relative paths in index order, separated by `/`.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &str> {
        self.files.paths()
    }

    /// The labels, by index.
    pub fn labels(&self) -> &[u32] {
        self.files.labels()
    }

    /// Whether each image's last folder has the name of its class.
    pub fn is_labelled_by_folders(&self) -> bool {
        let class = |index: usize| self.classes[self.label(index)].as_str();
        self.files().enumerate().all(|(index, file)| last_folder(file) == Some(class(index)))
    }

    /// The full path of sample `index`.
    pub fn path(&self, index: usize) -> PathBuf {
        self.root.join(self.files.path(index))
    }

    /// What the scan found in the folder and its class folders, and could not use.
    pub fn left_out(&self) -> &LeftOut {
        &self.left_out
    }

    /// The same with what a scan left out.
    pub(crate) fn with_left_out(self, left_out: LeftOut) -> Self {
        Folder { left_out, ..self }
    }

    /// Number of images of each class.
    pub fn counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.classes.len()];
        self.labels().iter().for_each(|&label| counts[label as usize] += 1);
        counts
    }

    /// The samples for which `keep` returns true, in the same order.
    pub(crate) fn part(&self, keep: impl Fn(usize) -> bool) -> Folder {
        let targets = self.targets.as_ref().map(|targets| Arc::new(targets.part(&keep)));
        Folder { files: Arc::new(self.files.part(keep)), targets, ..self.clone() }
    }

    pub(crate) fn own_targets(&self) -> Option<&Targets> {
        self.targets.as_deref()
    }
}

impl Dataset for Folder {
    fn len(&self) -> usize {
        self.files.len()
    }

    fn label(&self, index: usize) -> usize {
        self.files.label(index) as usize
    }

    fn read(&self, index: usize) -> Result<Image, DataError> {
        Ok(decode::open(self.path(index), self.options)?)
    }

    fn targets(&self, index: usize) -> Vec<f32> {
        self.targets.as_ref().map(|targets| targets.vector(index)).unwrap_or_default()
    }

    fn locality(&self) -> Option<&dyn Locality> {
        Some(self)
    }
}

impl Locality for Folder {
    fn read_part(
        &self,
        index: usize,
        wanted: &dyn Fn(usize, usize) -> RegionRequest,
        view: &mut ImageRegion,
    ) -> Result<(), DataError> {
        Ok(decode::read_part(&self.path(index), self.options, wanted, view)?)
    }

    fn read_file(&self, index: usize, bytes: &mut Vec<u8>) -> Result<bool, DataError> {
        let path = self.path(index);
        bytes.clear();
        append_regular(&path, MAX_FILE_BYTES, bytes).map_err(|source| DataError::read(path, source))?;
        Ok(true)
    }

    fn file_path(&self, index: usize) -> Option<PathBuf> {
        Some(self.path(index))
    }

    fn name(&self, index: usize) -> String {
        self.path(index).display().to_string()
    }

    fn reading_bytes(&self) -> usize {
        reading_bytes(self, |index| Some(fs::metadata(self.path(index)).ok()?.len() as usize))
    }
}

/// The vector of zeros and ones with these labels, of `count`. The problem is the end of a sentence about the sample.
fn multi_hot(labels: &[f32], count: usize) -> Result<Vec<f32>, String> {
    let mut vector = vec![0.0; count];
    for label in labels {
        let place = vector.get_mut(*label as usize).filter(|_| label.fract() == 0.0 && *label >= 0.0);
        *place.ok_or_else(|| format!("its label {label} is not among the {count} listed ones"))? = 1.0;
    }
    Ok(vector)
}

/// The name of the folder that a file lies in.
fn last_folder(file: &str) -> Option<&str> {
    let (folders, _) = file.rsplit_once('/')?;
    folders.rsplit('/').next()
}

/// Fails if `root` is no folder.
pub(crate) fn check_folder(root: &Path) -> Result<(), DataError> {
    let metadata = fs::metadata(root).map_err(|source| DataError::read(root, source))?;
    if !metadata.is_dir() {
        return Err(DataError::layout(root, "this is a file; the data must be a folder of class folders"));
    }
    Ok(())
}

fn class_folders(root: &Path, left_out: &mut LeftOut) -> Result<Vec<String>, DataError> {
    check_folder(root)?;
    let classes = folders(root, left_out)?;
    if classes.is_empty() {
        return Err(DataError::layout(root, "it has no class folders; put each class's images into its own folder"));
    }
    Ok(classes)
}

/// Fails if class folders of a part hold no image, and names all of them. Each part has the name of its folder in `root`; that of
/// `root` itself is empty.
pub(crate) fn require_images(root: &Path, parts: &[(&str, &Folder)]) -> Result<(), DataError> {
    let of_part = |&(part, folder): &(&str, &Folder)| {
        let classes = folder.counts().into_iter().zip(folder.classes().to_vec());
        let path = Path::new(part).to_owned();
        classes.filter(|(count, _)| *count == 0).map(move |(_, class)| path.join(class))
    };
    let empty: Vec<PathBuf> = parts.iter().flat_map(of_part).collect();
    let formats = ImageFormat::EXTENSIONS.join(", ");
    let (place, problem) = match empty.as_slice() {
        [] => return Ok(()),
        [class] => {
            let class = root.join(class);
            let mut left_out = LeftOut::default();
            // What lies there instead.
            images_below(&class, &mut left_out)?;
            let problem = match left_out.is_empty() {
                false => format!("this class folder holds no images: {left_out}"),
                true => format!("this class folder holds no images ({formats}); fill it or remove it"),
            };
            (class, problem)
        }
        classes => {
            let mut names = classes.iter().take(MAX_NAMED).map(|class| class.display().to_string()).collect::<Vec<_>>();
            if classes.len() > MAX_NAMED {
                names.push(format!("{} more", classes.len() - MAX_NAMED));
            }
            let count = classes.len();
            let names = names.join(", ");
            let problem =
                format!("{count} class folders hold no images ({formats}): {names}; fill them or remove them");
            (root.to_owned(), problem)
        }
    };
    Err(DataError::layout(place, problem))
}

/// Class folders that an error names, at most.
const MAX_NAMED: usize = 100;
