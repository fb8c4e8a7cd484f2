//! A trained model for programs that classify pictures: a run folder in, classes with their probabilities out.

use std::path::Path;

use enmasse_data::DataKind;
use enmasse_device::{DeviceRequest, Program};
use enmasse_train::{Classifier, ModelFn, Prediction, Preparation, TrainConfig, TrainError};

/// The classes that [`TrainedModel::predict`] names, at most.
const NAMED: usize = 5;

/// The best weights of a run on a device, ready for one picture at a time.
///
/// ```no_run
/// use enmasse::prelude::*;
/// let mut model = TrainedModel::open("runs/flowers")?;
/// for guess in model.predict("rose.jpg")?.top {
///     println!("{:5.1} %  {}", 100.0 * guess.probability, guess.class);
/// }
/// # Ok::<(), enmasse::train::TrainError>(())
/// ```
pub struct TrainedModel {
    classifier: Classifier,
    program: Box<dyn Program>,
}

impl TrainedModel {
    /// Opens a run folder or a checkpoint of a model that [`crate::models`] has, on the kind of device that the run used.
    pub fn open(run: impl AsRef<Path>) -> Result<Self, TrainError> {
        let classifier = open(run.as_ref())?;
        let Ok(model) = enmasse_models::find(&classifier.model) else {
            return Err(TrainError::Weights(format!(
                "{}: its model \"{}\" was defined by the program that trained it: open it there, by TrainedModel::open_own",
                run.as_ref().display(),
                classifier.model
            )));
        };
        Self::compile(classifier, &|x, classes| model.forward(x, classes))
    }

    /// Opens a run of a program's own model, given the function that it was trained with.
    pub fn open_own(run: impl AsRef<Path>, model: &ModelFn) -> Result<Self, TrainError> {
        Self::compile(open(run.as_ref())?, model)
    }

    fn compile(classifier: Classifier, model: &ModelFn) -> Result<Self, TrainError> {
        let TrainConfig { devices, isa, exact, .. } = &classifier.configuration;
        let kind = devices.as_ref().map_or(enmasse_devices::KINDS[0].name, |devices| devices.kind.as_str());
        let request = DeviceRequest { isa: isa.clone(), exact: *exact, ..DeviceRequest::default() };
        let device = enmasse_devices::open(kind, &request)?;
        let program = classifier.program(model, device.as_ref(), 1)?;
        Ok(TrainedModel { classifier, program })
    }

    /// The names of the classes, by label.
    pub fn classes(&self) -> &[String] {
        &self.classifier.classes
    }

    /// The most probable classes of a picture file, at most five. The picture is prepared as validation pictures were.
    pub fn predict(&mut self, picture: impl AsRef<Path>) -> Result<Prediction, TrainError> {
        let reading = self.classifier.configuration.reading();
        let mut predictions = self.classifier.predict(self.program.as_mut(), &[picture], NAMED, reading)?;
        predictions.pop().ok_or(TrainError::NotFitted)
    }
}

fn open(run: &Path) -> Result<Classifier, TrainError> {
    // A run says how its pictures were prepared; bare weights, which do not, are refused for lack of a model.
    Classifier::open(run, None, &Preparation::new(&TrainConfig::default(), DataKind::Folder), &[])
}
