//! A data set labelled by another list of classes, such as a trained model's.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use enmasse_data::{DataError, Dataset, Extent, Locality};
use enmasse_image::{Image, ImageRegion, RegionRequest};

use crate::open::is_same_class;

/// Labels the images of `dataset`, which was opened at `root` and has the classes `own`, by `classes`, which must contain all
/// of them.
pub fn relabel(
    dataset: Arc<dyn Dataset>,
    root: &Path,
    own: &[String],
    classes: &[String],
) -> Result<Arc<dyn Dataset>, DataError> {
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
    Ok(Arc::new(Relabelled { dataset, labels }))
}

struct Relabelled {
    dataset: Arc<dyn Dataset>,
    /// The new label for each of the data set's own.
    labels: Vec<usize>,
}

/// Everything but labels is the data set's own.
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

    fn targets(&self, index: usize) -> Vec<f32> {
        self.dataset.targets(index)
    }

    fn locality(&self) -> Option<&dyn Locality> {
        Some(self)
    }
}

impl Locality for Relabelled {
    fn name(&self, index: usize) -> String {
        self.dataset.name(index)
    }

    fn file_path(&self, index: usize) -> Option<PathBuf> {
        self.dataset.locality()?.file_path(index)
    }

    fn read_file(&self, index: usize, bytes: &mut Vec<u8>) -> Result<bool, DataError> {
        self.dataset.locality().map_or(Ok(false), |locality| locality.read_file(index, bytes))
    }

    fn read_part(
        &self,
        index: usize,
        wanted: &dyn Fn(usize, usize) -> RegionRequest,
        view: &mut ImageRegion,
    ) -> Result<(), DataError> {
        self.dataset.read_part(index, wanted, view)
    }

    fn reading_bytes(&self) -> usize {
        self.dataset.locality().map_or(0, |locality| locality.reading_bytes())
    }

    fn kept_bytes(&self) -> usize {
        self.dataset.locality().map_or(0, |locality| locality.kept_bytes())
    }

    fn is_remote(&self) -> bool {
        self.dataset.locality().is_some_and(|locality| locality.is_remote())
    }

    fn extent(&self, index: usize) -> Option<Extent> {
        self.dataset.locality()?.extent(index)
    }

    fn blocks(&self) -> Option<Vec<usize>> {
        self.dataset.locality()?.blocks()
    }

    fn prefers_blocks(&self) -> bool {
        self.dataset.locality().is_some_and(|locality| locality.prefers_blocks())
    }

    /// Its samples are told apart by their labels here too.
    fn fingerprint(&self) -> Option<String> {
        Some(format!("{} as {:?}", self.dataset.locality()?.fingerprint()?, self.labels))
    }
}
