//! A trained model for programs that classify images: a run folder in, classes with their probabilities out.

use std::path::Path;
use std::sync::Arc;

use enmasse_data::DataError;
use enmasse_datasets::DataKind;
use enmasse_device::{Device, DeviceRequest, Program};
use enmasse_graph::Tensor;
use enmasse_train::{
    Classifier, Explainer, Heatmap, ImageSource, Prediction, Preparation, ProgramConfig, RunConfig, TrainConfig,
    TrainError,
};

/// The classes that [`TrainedModel::predict`] names, at most.
const NAMED: usize = 5;

/// Images that are computed at once, at most.
const MAX_BATCH: usize = 64;

/// The best weights of a run on a device. Images are files, or the bytes of files in memory.
///
/// ```no_run
/// use enmasse::prelude::*;
/// let mut model = TrainedModel::open("runs/flowers")?;
/// for guess in model.predict("rose.jpg")?.top {
///     println!("{:5.1} %  {}", 100.0 * guess.probability, guess.class);
/// }
/// let received: Vec<Vec<u8>> = vec![std::fs::read("rose.jpg").unwrap(), std::fs::read("tulip.png").unwrap()];
/// for prediction in model.predict_batch(&received)? {
///     println!("{}", prediction.top[0].class);
/// }
/// # Ok::<(), enmasse::train::TrainError>(())
/// ```
pub struct TrainedModel {
    classifier: Classifier,
    device: Arc<dyn Device>,
    model: Box<dyn Fn(Tensor, usize) -> Tensor>,
    /// For one image.
    program: Box<dyn Program>,
    /// For several, once there were several.
    batched: Option<Box<dyn Program>>,
    /// For heatmaps, once there was one.
    explainer: Option<Explainer>,
}

impl TrainedModel {
    /// Opens a run folder or a checkpoint of a model that [`crate::models`] has, on the kind of device that the run used. Probabilities
    /// have the temperature that `enmasse eval` kept in the run folder, if it did.
    pub fn open(run: impl AsRef<Path>) -> Result<Self, TrainError> {
        let classifier = open(run.as_ref())?;
        let Ok(model) = enmasse_models::find(&classifier.model) else {
            return Err(TrainError::Weights(format!(
                "{}: its model \"{}\" was defined by the program that trained it: open it there, by TrainedModel::open_own",
                run.as_ref().display(),
                classifier.model
            )));
        };
        Self::compile(classifier, Box::new(move |x, classes| model.forward(x, classes)))
    }

    /// Opens a run of a program's own model, given the function that it was trained with.
    pub fn open_own(
        run: impl AsRef<Path>,
        model: impl Fn(Tensor, usize) -> Tensor + 'static,
    ) -> Result<Self, TrainError> {
        Self::compile(open(run.as_ref())?, Box::new(model))
    }

    fn compile(classifier: Classifier, model: Box<dyn Fn(Tensor, usize) -> Tensor>) -> Result<Self, TrainError> {
        let RunConfig { train, program: ProgramConfig { devices, isa, .. } } = &classifier.configuration;
        let kind = devices.as_ref().map_or(crate::devices::KINDS[0].name, |devices| devices.kind.as_str());
        let request = DeviceRequest { isa: isa.clone(), exact: train.exact, ..DeviceRequest::default() };
        let device = crate::devices::open(kind, &request)?;
        let program = classifier.program(&model, device.as_ref(), 1)?;
        Ok(TrainedModel { classifier, device, model, program, batched: None, explainer: None })
    }

    /// The names of the classes, by label.
    pub fn classes(&self) -> &[String] {
        &self.classifier.classes
    }

    /// The most probable classes of an image, at most five. It is a path, or the bytes of a file, and is prepared as validation
    /// images were.
    pub fn predict<'a>(&mut self, image: impl Into<ImageSource<'a>>) -> Result<Prediction, TrainError> {
        let reading = self.classifier.configuration.train.reading();
        let mut predictions = self.classifier.predict(self.program.as_mut(), &[image.into()], NAMED, reading)?;
        predictions.pop().ok_or(TrainError::NotFitted)
    }

    /// The same for several images, in their order, which are computed in batches of up to 64. An image that cannot be read is an
    /// error. The first call, and one with more images than all before, compiles the model for its batch, which holds the
    /// weights once more.
    pub fn predict_batch<'a>(
        &mut self,
        images: impl IntoIterator<Item = impl Into<ImageSource<'a>>>,
    ) -> Result<Vec<Prediction>, TrainError> {
        let images: Vec<ImageSource> = images.into_iter().map(Into::into).collect();
        let wanted = images.len().next_power_of_two().min(MAX_BATCH);
        let program = match &mut self.batched {
            _ if wanted == 1 => &mut self.program,
            Some(program) if program.plans().evaluate.batch >= wanted => program,
            batched => batched.insert(self.classifier.program(&self.model, self.device.as_ref(), wanted)?),
        };
        self.classifier.predict(program.as_mut(), &images, NAMED, self.classifier.configuration.train.reading())
    }

    /// Where in an image a class comes from: the most probable one, or that of a label. It is Grad-CAM, and of vision transformers the
    /// attention rollout, which is the same for all classes. The first call compiles the model for it, which holds the weights once
    /// more, in f32. An error of a model without convolutions and attention.
    ///
    /// ```no_run
    /// use enmasse::prelude::*;
    /// let mut model = TrainedModel::open("runs/flowers")?;
    /// let heatmap = model.explain("rose.jpg", None)?;
    /// println!("where {} is", model.classes()[heatmap.class]);
    /// std::fs::write("heatmap.png", heatmap.png()?).unwrap();
    /// # Ok::<(), enmasse::train::TrainError>(())
    /// ```
    pub fn explain<'a>(
        &mut self,
        image: impl Into<ImageSource<'a>>,
        class: Option<usize>,
    ) -> Result<Heatmap, TrainError> {
        let (image, reading) = (image.into(), self.classifier.configuration.train.reading());
        let class = match class {
            Some(class) => class,
            None => {
                let found = self.classifier.predict(self.program.as_mut(), std::slice::from_ref(&image), 1, reading)?;
                let likeliest = found.first().and_then(|found| found.top.first());
                let none = || TrainError::Weights("the run predicts numbers: say which one to explain".to_owned());
                likeliest.ok_or_else(none)?.index
            }
        };
        let explainer = match &mut self.explainer {
            Some(explainer) => explainer,
            explainer => explainer.insert(self.classifier.explainer(&self.model, self.device.as_ref())?),
        };
        explainer.explain(&image.read(0, reading).map_err(DataError::from)?, class)
    }
}

fn open(run: &Path) -> Result<Classifier, TrainError> {
    // A run says how its images were prepared; bare weights, which do not, are refused for lack of a model.
    let preparation = Preparation::new(&TrainConfig::default(), DataKind::Folder);
    let mut classifier = Classifier::open(run, None, &preparation, &[])?;
    classifier.take_temperature(run)?;
    classifier.take_thresholds(run)?;
    Ok(classifier)
}
