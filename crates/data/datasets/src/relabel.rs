//! A data set labelled by another list of classes, such as a trained model's.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use enmasse_data::{DataError, Dataset, Extent};
use enmasse_image::{Image, ImageRegion, RegionRequest};

use crate::open::is_same_class;

/// Labels the images of `dataset`, which was opened at `root`, by `classes`, which must contain every class of it.
pub fn relabel(dataset: Arc<dyn Dataset>, root: &Path, classes: &[String]) -> Result<Arc<dyn Dataset>, DataError> {
    let own = dataset.class_names();
    if own == classes {
        return Ok(dataset);
    }
    let label = |class: &String| {
        let exact = classes.iter().position(|known| known == class);
        exact.or_else(|| classes.iter().position(|known| is_same_class(known, class))).ok_or_else(|| {
            DataError::layout(root, format!("the class {class:?} is not among the {} expected ones", classes.len()))
        })
    };
    let labels = own.iter().map(label).collect::<Result<_, _>>()?;
    Ok(Arc::new(Relabelled { dataset, labels, classes: classes.to_vec() }))
}

struct Relabelled {
    dataset: Arc<dyn Dataset>,
    /// The new label for each of the data set's own.
    labels: Vec<usize>,
    classes: Vec<String>,
}

/// Everything but labels and classes is the data set's own.
impl Dataset for Relabelled {
    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn label(&self, index: usize) -> usize {
        self.labels[self.dataset.label(index)]
    }

    fn read(&self, index: usize) -> Result<Image, DataError> {
        self.dataset.read(index)
    }

    fn read_into(&self, index: usize, image: &mut Image) -> Result<(), DataError> {
        self.dataset.read_into(index, image)
    }

    fn read_part(
        &self,
        index: usize,
        wanted: &dyn Fn(usize, usize) -> RegionRequest,
        view: &mut ImageRegion,
    ) -> Result<(), DataError> {
        self.dataset.read_part(index, wanted, view)
    }

    fn read_file(&self, index: usize, bytes: &mut Vec<u8>) -> Result<bool, DataError> {
        self.dataset.read_file(index, bytes)
    }

    fn file_path(&self, index: usize) -> Option<PathBuf> {
        self.dataset.file_path(index)
    }

    fn name(&self, index: usize) -> String {
        self.dataset.name(index)
    }

    fn reading_bytes(&self) -> usize {
        self.dataset.reading_bytes()
    }

    fn kept_bytes(&self) -> usize {
        self.dataset.kept_bytes()
    }

    fn is_remote(&self) -> bool {
        self.dataset.is_remote()
    }

    fn extent(&self, index: usize) -> Option<Extent> {
        self.dataset.extent(index)
    }

    /// Its samples are told apart by their labels here too.
    fn fingerprint(&self) -> Option<String> {
        Some(format!("{} as {:?}", self.dataset.fingerprint()?, self.labels))
    }

    fn blocks(&self) -> Option<Vec<usize>> {
        self.dataset.blocks()
    }

    fn prefers_blocks(&self) -> bool {
        self.dataset.prefers_blocks()
    }

    fn class_names(&self) -> Vec<String> {
        self.classes.clone()
    }
}
