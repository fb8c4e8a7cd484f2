//! Which images are evaluated: a part of DATA, or all of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use enmasse_data::Dataset;
use enmasse_datasets::{
    DataKind, DataLayout, DataWarning, LeftOut, OpenOptions, TaskKind, WholeData, holds_known_set, is_packed,
    open_whole, relabel,
};
use enmasse_train::{RunConfig, RunPaths, SplitRecord, TrainingData};
use enmasse_wording::counted;

use crate::commands::weights::Weights;
use crate::failure::{Failure, failed, usage};

/// What kind of data is named.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Packed,
    /// CIFAR or MNIST.
    Known,
    Other,
}

impl Form {
    pub fn of(root: &Path) -> Self {
        if is_packed(root) {
            Form::Packed
        } else if holds_known_set(root) {
            Form::Known
        } else {
            Form::Other
        }
    }

    /// The part that is evaluated of data that always come in parts.
    pub fn held_out(self) -> Option<Part> {
        match self {
            Form::Packed => Some(Part::Validation),
            Form::Known => Some(Part::Test),
            Form::Other => None,
        }
    }
}

/// A part of DATA.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All of DATA; where that is asked for, also the part that DATA holds out itself.
    Whole,
    /// The images on which the run validated.
    Validation,
    /// The test part, or the part that DATA holds out itself.
    Test,
}

impl Part {
    /// Its value of `--split`, and in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Part::Whole => "all",
            Part::Validation => "val",
            Part::Test => "test",
        }
    }

    pub fn describe(self) -> &'static str {
        match self {
            Part::Whole => "all images",
            Part::Validation => "validation part",
            Part::Test => "test part",
        }
    }
}

/// The images that are asked for.
pub struct ImageSelection {
    pub root: PathBuf,
    pub form: Form,
    pub part: Part,
    pub options: OpenOptions,
    /// The configuration of the run.
    pub saved: Option<RunConfig>,
    /// Whether these are the run's own data.
    pub is_own: bool,
}

/// The images that are there.
pub struct Found {
    pub part: Part,
    pub data: Arc<dyn Dataset>,
    /// Names of the classes, by label.
    pub classes: Vec<String>,
    pub kind: DataKind,
    pub layout: DataLayout,
    /// What is no image in its folders.
    pub left_out: LeftOut,
    /// What the user should know about the data.
    pub warnings: Vec<DataWarning>,
}

impl ImageSelection {
    /// Opens the images at `root`, which may be a copy, with the classes of the weights as their labels.
    pub fn open(&self, weights: &Weights, root: &Path) -> Result<Found, Failure> {
        let check_task = |task: TaskKind| {
            let own = weights.classifier.kind();
            let path = root.display();
            let wrong = || failed!("{path}: these are data for {task}, and the weights are those of {own}");
            if task == own { Ok(()) } else { Err(wrong()) }
        };
        if self.form == Form::Other && self.part == Part::Whole {
            let WholeData { dataset, task, classes, kind, layout, is_held_out, left_out, warnings } =
                open_whole(root, &self.options).map_err(Failure::error)?;
            check_task(task)?;
            let part = if is_held_out { Part::Test } else { Part::Whole };
            let data = label_as(weights, dataset, task, &classes, root)?;
            return Ok(Found { part, data, classes, kind, layout, left_out, warnings });
        }
        let TrainingData { validation, test, task, classes, kind, layout, left_out, warnings, .. } = match self.form {
            Form::Packed | Form::Known => TrainingData::open(root, &self.options)?,
            Form::Other if self.part == Part::Test => self.with_test(weights, root)?,
            Form::Other => self.in_parts(weights, root)?,
        };
        check_task(task)?;
        let own = self.form.held_out().unwrap_or(Part::Validation);
        let (part, data) = match self.part {
            Part::Test if own != Part::Test => (Part::Test, test.ok_or_else(|| no_test_part(root))?),
            _ => (own, validation),
        };
        let data = match (self.form, part) {
            (Form::Packed | Form::Known, _) => check_classes(weights, &classes, root).map(|()| data)?,
            (Form::Other, Part::Test) => label_as(weights, data, task, &classes, root)?,
            // The run's own data have its classes.
            (Form::Other, _) => data,
        };
        Ok(Found { part, data, classes, kind, layout, left_out, warnings })
    }

    /// Whether the images of this part are those on which the run validated.
    pub fn is_validation_of_run(&self, part: Part) -> bool {
        // Only a run knows the validation part of data that do not come in parts.
        part == Part::Validation && self.saved.is_some() && (self.is_own || self.form == Form::Other)
    }

    /// The data of a run in its parts: those of its split, or the data set's own.
    pub fn in_parts(&self, weights: &Weights, root: &Path) -> Result<TrainingData, Failure> {
        let Some(saved) = &self.saved else {
            return Err(usage!("--split val: only a run folder knows which part of DATA validated it"));
        };
        let OpenOptions { reading, remote, .. } = self.options.clone();
        let options = OpenOptions { reading, remote, ..saved.train.open_options() };
        let paths = RunPaths::new(&weights.path);
        match paths.split().exists() {
            true => {
                let split = paths.read_split().map_err(Failure::error)?;
                Ok(TrainingData::from_record(root, split, &options)?)
            }
            false => Ok(TrainingData::open(root, &options)?),
        }
    }

    /// The data of a run with the test part of its split, or DATA in its parts.
    fn with_test(&self, weights: &Weights, root: &Path) -> Result<TrainingData, Failure> {
        let paths = RunPaths::new(&weights.path);
        if self.is_own && paths.split().exists() {
            let split: SplitRecord = paths.read_split().map_err(Failure::error)?;
            if split.test.is_some() {
                return Ok(TrainingData::from_record(root, split, &self.options)?);
            }
        }
        // A test part may have been added since.
        Ok(TrainingData::open(root, &self.options)?)
    }
}

/// Fails if a known data set or a packed file has other classes than the weights.
fn check_classes(weights: &Weights, classes: &[String], root: &Path) -> Result<(), Failure> {
    let known = &weights.classifier.classes;
    let fits = if weights.is_bare { classes.len() == known.len() } else { classes == known };
    match fits {
        true => Ok(()),
        false => Err(failed!(
            "{}: its {} are not the {} of the weights",
            root.display(),
            counted(classes.len(), "class"),
            known.len(),
        )),
    }
}

fn no_test_part(root: &Path) -> Failure {
    failed!(
        "{}: there is no test part besides the one for validation: add one (test/ beside train/ and val/, or files or rows named \
         test), or evaluate the validation part with --split val",
        root.display()
    )
}

/// The same images, labelled by the classes of the weights.
fn label_as(
    weights: &Weights,
    dataset: Arc<dyn Dataset>,
    task: TaskKind,
    classes: &[String],
    root: &Path,
) -> Result<Arc<dyn Dataset>, Failure> {
    let found = classes.len();
    let known = weights.classifier.classes.len();
    match weights.is_bare {
        false => relabel(dataset, root, task, classes, &weights.classifier.classes).map_err(Failure::error),
        // Without names, only the order of classes is known.
        true if found == known => Ok(dataset),
        true => {
            let path = root.display();
            Err(failed!("{path}: has {}, but the weights have {known}", counted(found, "class")))
        }
    }
}
