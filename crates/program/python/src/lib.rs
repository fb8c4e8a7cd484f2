//! `enmasse._native`, the compiled part of the Python package: a trained model that predicts in Python's process, without the
//! interpreter's lock. The rest of the package is Python, in `python/enmasse`.
//!
//! It keeps to Python's stable ABI of 3.11, the first that lets other memory be read, so that one file serves all later versions.
//! `model.predict(["rose.jpg", "tulip.png"]).probabilities` in Python is here
//!
//! ```no_run
//! let mut model = enmasse::TrainedModel::open("runs/flowers")?;
//! let probabilities = model.outputs(["rose.jpg", "tulip.png"])?;
//! # Ok::<(), enmasse::train::TrainError>(())
//! ```

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use enmasse::TrainedModel;
use enmasse::data::{DataError, Image};
use enmasse::train::{ImageSource, TrainError};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

mod python {
    pyo3::import_exception!(enmasse._error, Error);
}

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::Model;
}

/// The best weights of a run.
#[pyclass(frozen, module = "enmasse._native")]
struct Model {
    model: Mutex<TrainedModel>,
    /// The process that has the model's threads. Its forks have not.
    process: u32,
    /// Names of the classes, by label, of the labels or of the numbers.
    #[pyo3(get)]
    classes: Vec<String>,
    /// The model's name.
    #[pyo3(get)]
    architecture: String,
    /// `classification`, `multi-label` or `regression`.
    #[pyo3(get)]
    task: String,
    /// Height and width of the images that the model sees.
    #[pyo3(get)]
    size: usize,
    /// From which probability on each label is predicted.
    #[pyo3(get)]
    thresholds: Vec<f64>,
}

#[pymethods]
impl Model {
    /// Opens a run folder or a checkpoint, on the kind of device that the run used or on another one.
    #[new]
    fn open(py: Python<'_>, run: PathBuf, device: Option<String>) -> PyResult<Self> {
        let open = || match &device {
            Some(kind) => TrainedModel::open_on(&run, kind),
            None => TrainedModel::open(&run),
        };
        let model = py.detach(open).map_err(raised)?;
        Ok(Model {
            process: std::process::id(),
            classes: model.classes().to_vec(),
            architecture: model.architecture().to_owned(),
            task: model.task().to_string(),
            size: model.size(),
            thresholds: model.thresholds(),
            model: Mutex::new(model),
        })
    }

    /// The probability of every class or label, or the numbers, of each image, as the bytes of 64-bit floats. Between two batches
    /// Python handles its signals.
    fn outputs<'py>(&self, py: Python<'py>, images: Vec<GivenImage>) -> PyResult<Bound<'py, PyBytes>> {
        if self.process != std::process::id() {
            // It would wait for threads that this process does not have.
            let reason = "the model was loaded by the process that this one was forked from: load it in this process";
            return Err(python::Error::new_err(reason));
        }
        let mut outputs = Vec::with_capacity(images.len() * self.classes.len() * size_of::<f64>());
        for (number, batch) in images.chunks(TrainedModel::MAX_BATCH).enumerate() {
            let found = py.detach(|| self.batch(batch, number * TrainedModel::MAX_BATCH)).map_err(raised)?;
            outputs.extend(found.iter().flatten().flat_map(|output| output.to_ne_bytes()));
            py.check_signals()?;
        }
        Ok(PyBytes::new(py, &outputs))
    }
}

impl Model {
    /// The outputs of a batch, whose first image has this place in the list.
    fn batch(&self, images: &[GivenImage], first: usize) -> Result<Vec<Vec<f64>>, TrainError> {
        let mut model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        let sources: Vec<ImageSource> = images.iter().map(GivenImage::source).collect();
        let reading = model.reading();
        let read =
            sources.iter().zip(first..).map(|(source, place)| source.read(place, reading).map(ImageSource::Pixels));
        let read = read.collect::<Result<Vec<_>, _>>().map_err(DataError::from)?;
        model.outputs(read)
    }
}

/// An image as Python gives it.
#[derive(FromPyObject)]
enum GivenImage {
    /// The content of a file.
    File(PyBackedBytes),
    Pixels(Pixels),
    Path(PathBuf),
}

impl GivenImage {
    fn source(&self) -> ImageSource<'_> {
        match self {
            GivenImage::File(bytes) => (&**bytes).into(),
            GivenImage::Path(path) => path.into(),
            GivenImage::Pixels(Pixels(image)) => image.into(),
        }
    }
}

/// RGB bytes `[height, width, 3]`, as numpy's arrays have them.
struct Pixels(Image);

impl<'a, 'py> FromPyObject<'a, 'py> for Pixels {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(&object)?;
        let &[height, width, 3] = buffer.shape() else {
            return Err(python::Error::new_err(format!("an array of the shape {:?} is no RGB image", buffer.shape())));
        };
        let image = Image::new(width, height, buffer.to_vec(object.py())?);
        image.map(Pixels).map_err(|error| python::Error::new_err(error.to_string()))
    }
}

/// The exception of an error, with its text.
fn raised(error: TrainError) -> PyErr {
    python::Error::new_err(error.to_string())
}
