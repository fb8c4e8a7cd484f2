//! A trained model for programs that classify images: a run folder in, classes with their probabilities out.

use std::path::Path;
use std::sync::Arc;

use enmasse_data::DataError;
use enmasse_datasets::{DataKind, TaskKind};
use enmasse_device::{Device, DeviceRequest, Program};
use enmasse_graph::Tensor;
use enmasse_image::ReadOptions;
use enmasse_train::{
    Classifier, Explainer, Heatmap, ImageSource, Prediction, Preparation, ProgramConfig, RunConfig, TrainConfig,
    TrainError,
};

/// The classes that [`TrainedModel::predict`] names, at most.
const NAMED: usize = 5;

/// The best weights of a run on a device. Images are files, the bytes of files in memory, or pixels.
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
    model: Box<dyn Fn(Tensor, usize) -> Tensor + Send>,
    /// For one image.
    program: Box<dyn Program>,
    /// For several, once there were several.
    batched: Option<Box<dyn Program>>,
    /// For heatmaps, once there was one.
    explainer: Option<Explainer>,
}

impl TrainedModel {
    /// Images that are computed at once, at most.
    pub const MAX_BATCH: usize = 64;

    /// Opens a run folder or a checkpoint of a model that [`crate::models`] has, on the kind of device that the run used. Probabilities
    /// have the temperature that `enmasse eval` kept in the run folder, if it did.
    ///
    /// # Errors
    /// There is no run or checkpoint, it cannot be read, its model is not one of [`crate::models`], or the device
    /// cannot be opened or has too little memory.
    pub fn open(run: impl AsRef<Path>) -> Result<Self, TrainError> {
        Self::open_zoo(run.as_ref(), None)
    }

    /// The same on another kind of device: `cpu` for a run that trained on GPUs, where there are none.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_on(run: impl AsRef<Path>, kind: &str) -> Result<Self, TrainError> {
        Self::open_zoo(run.as_ref(), Some(kind))
    }

    /// Opens a run of a program's own model, given the function that it was trained with.
    ///
    /// # Errors
    /// There is no run or checkpoint, it cannot be read, its tensors are not those of `model`, or the device cannot be
    /// opened or has too little memory.
    pub fn open_own(
        run: impl AsRef<Path>,
        model: impl Fn(Tensor, usize) -> Tensor + Send + 'static,
    ) -> Result<Self, TrainError> {
        Self::compile(open(run.as_ref())?, None, Box::new(model))
    }

    fn open_zoo(run: &Path, kind: Option<&str>) -> Result<Self, TrainError> {
        let classifier = open(run)?;
        let Ok(model) = enmasse_models::find(&classifier.model) else {
            return Err(TrainError::Weights(format!(
                "{}: its model \"{}\" was defined by the program that trained it: open it there, by TrainedModel::open_own",
                run.display(),
                classifier.model
            )));
        };
        Self::compile(classifier, kind, Box::new(move |x, classes| model.forward(x, classes)))
    }

    fn compile(
        classifier: Classifier,
        kind: Option<&str>,
        model: Box<dyn Fn(Tensor, usize) -> Tensor + Send>,
    ) -> Result<Self, TrainError> {
        let RunConfig { train, program: ProgramConfig { devices, isa, .. } } = &classifier.configuration;
        let own = devices.as_ref().map_or(crate::devices::KINDS[0].name, |devices| devices.kind.as_str());
        let kind = kind.unwrap_or(own);
        // Its level is that of the run's own kind.
        let isa = isa.clone().filter(|_| kind == own);
        let request = DeviceRequest { isa, exact: train.exact, ..DeviceRequest::default() };
        let device = crate::devices::open(kind, &request)?;
        let program = classifier.program(&model, device.as_ref(), 1)?;
        Ok(TrainedModel { classifier, device, model, program, batched: None, explainer: None })
    }

    /// The names of the classes, by label, of the labels or of the numbers.
    pub fn classes(&self) -> &[String] {
        &self.classifier.classes
    }

    /// What it predicts of an image.
    pub fn task(&self) -> TaskKind {
        self.classifier.kind()
    }

    /// The model's name.
    pub fn architecture(&self) -> &str {
        &self.classifier.model
    }

    /// Height and width of the images that the model sees.
    pub fn size(&self) -> usize {
        self.classifier.transform.size
    }

    /// From which probability on each label is predicted, by its number.
    pub fn thresholds(&self) -> Vec<f64> {
        (0..self.classes().len()).map(|label| self.classifier.threshold(label)).collect()
    }

    /// The most probable classes of an image, at most five. It is a path, or the bytes of a file, and is prepared as validation
    /// images were.
    ///
    /// # Errors
    /// The image cannot be read, or the device fails.
    pub fn predict<'a>(&mut self, image: impl Into<ImageSource<'a>>) -> Result<Prediction, TrainError> {
        let reading = self.reading();
        let mut predictions = self.classifier.predict(self.program.as_mut(), &[image.into()], NAMED, reading)?;
        predictions.pop().ok_or(TrainError::NotFitted)
    }

    /// The same for several images, in their order, which are computed in batches of up to 64. The first call, and one
    /// with more images than all before, compiles the model for its batch, which holds the weights once more.
    ///
    /// # Errors
    /// An image cannot be read, the device has too little memory for the batch, or it fails. There are no predictions
    /// of the other images then.
    pub fn predict_batch<'a>(
        &mut self,
        images: impl IntoIterator<Item = impl Into<ImageSource<'a>>>,
    ) -> Result<Vec<Prediction>, TrainError> {
        let images: Vec<ImageSource> = images.into_iter().map(Into::into).collect();
        let reading = self.reading();
        let (classifier, program) = self.program_of(images.len())?;
        classifier.predict(program, &images, NAMED, reading)
    }

    /// The same as numbers: of each image the probability of every class or label, or the predicted numbers, in the order of
    /// [`TrainedModel::classes`].
    ///
    /// # Errors
    /// Those of [`predict_batch`](Self::predict_batch).
    pub fn outputs<'a>(
        &mut self,
        images: impl IntoIterator<Item = impl Into<ImageSource<'a>>>,
    ) -> Result<Vec<Vec<f64>>, TrainError> {
        let images: Vec<ImageSource> = images.into_iter().map(Into::into).collect();
        let reading = self.reading();
        let (classifier, program) = self.program_of(images.len())?;
        classifier.outputs(program, &images, reading)
    }

    /// How image files are read.
    pub fn reading(&self) -> ReadOptions {
        self.classifier.configuration.train.reading()
    }

    /// The program for so many images, compiled if there is none whose batch is large enough.
    fn program_of(&mut self, images: usize) -> Result<(&Classifier, &mut dyn Program), TrainError> {
        let wanted = images.next_power_of_two().min(Self::MAX_BATCH);
        if wanted > 1 && self.batched.as_ref().is_none_or(|program| program.plans().evaluate.batch < wanted) {
            self.batched = Some(self.classifier.program(&self.model, self.device.as_ref(), wanted)?);
        }
        let batched = self.batched.as_mut().filter(|_| wanted > 1);
        Ok((&self.classifier, batched.unwrap_or(&mut self.program).as_mut()))
    }

    /// Where in an image a class comes from: the most probable one, or that of a label. It is Grad-CAM, and of vision transformers the
    /// attention rollout, which is the same for all classes. The first call compiles the model for it, which holds the weights once
    /// more, in f32.
    ///
    /// # Errors
    /// The model has neither convolutions nor attention, there is no such class, or none is given and the run predicts
    /// numbers. Or the image cannot be read, or the device has too little memory or fails.
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
        let (image, reading) = (image.into(), self.reading());
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
        let image = image.read(0, reading).map_err(DataError::from)?;
        explainer.explain(&image, class)
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
