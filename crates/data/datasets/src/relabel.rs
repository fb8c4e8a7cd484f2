//! A data set labelled by another list of classes or labels, such as a trained model's.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use enmasse_data::{DataError, Dataset, Extent, Locality};
use enmasse_image::{Image, ImageRegion, RegionRequest};

use crate::TaskKind;
use crate::open::is_same_class;

/// Labels the images of `dataset`, which was opened at `root` for `task` and has the classes or labels `own`, by
/// `classes`. Several numbers are found by their names.
///
/// # Errors
/// One of `own` is not among `classes`, or there is another count of numbers.
pub fn relabel(
    dataset: Arc<dyn Dataset>,
    root: &Path,
    task: TaskKind,
    own: &[String],
    classes: &[String],
) -> Result<Arc<dyn Dataset>, DataError> {
    if own == classes || (task == TaskKind::Regression && (own.len(), classes.len()) == (1, 1)) {
        return Ok(dataset);
    }
    if task == TaskKind::Regression && own.len() != classes.len() {
        let problem = format!("it has {} numbers of each image, and {} are expected", own.len(), classes.len());
        return Err(DataError::layout(root, problem));
    }
    let label = |class: &String| {
        let exact = classes.iter().position(|known| known == class);
        exact.or_else(|| classes.iter().position(|known| is_same_class(known, class))).ok_or_else(|| {
            let what = match task {
                TaskKind::Classification => "class",
                TaskKind::MultiLabel => "label",
                TaskKind::Regression => "number",
            };
            DataError::layout(root, format!("the {what} {class:?} is not among the {} expected ones", classes.len()))
        })
    };
    let labels = own.iter().map(label).collect::<Result<_, _>>()?;
    Ok(Arc::new(Relabelled { dataset, task, labels, count: classes.len() }))
}

struct Relabelled {
    dataset: Arc<dyn Dataset>,
    task: TaskKind,
    /// The new label for each of the data set's own.
    labels: Vec<usize>,
    /// The number of new labels.
    count: usize,
}

/// Everything but labels is the data set's own.
impl Dataset for Relabelled {
    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn label(&self, index: usize) -> usize {
        match self.task {
            TaskKind::Classification => self.labels[self.dataset.label(index)],
            TaskKind::MultiLabel | TaskKind::Regression => self.dataset.label(index),
        }
    }

    fn read(&self, index: usize) -> Result<Image, DataError> {
        self.dataset.read(index)
    }

    fn targets(&self, index: usize) -> Vec<f32> {
        let own = self.dataset.targets(index);
        if self.task == TaskKind::Classification {
            return own;
        }
        let mut targets = vec![0.0; self.count];
        self.labels.iter().zip(own).for_each(|(&label, value)| targets[label] = value);
        targets
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
