//! The models that are served: opened once, with a program for each size of batch.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use enmasse_datasets::DataKind;
use enmasse_device::Program;
use enmasse_image::ReadOptions;
use enmasse_train::{Classifier, LayeredConfig, Prediction};
use enmasse_wording::one_line;

use super::queue::Model;
use crate::command_line::settings::{self, Ranks};
use crate::commands::predict;
use crate::commands::weights::{self, Source};
use crate::failure::{Failure, usage};
use crate::output::say;
use crate::ranks::Rank;

/// `NAME=RUN`, or a run alone.
pub struct Named {
    pub name: String,
    pub path: PathBuf,
}

/// What an argument names. A folder or a file may have a `=` in its name.
pub fn named(argument: &Path) -> Result<Named, Failure> {
    let text = argument.to_string_lossy();
    if let Some((name, path)) = text.split_once('=').filter(|(name, _)| !argument.exists() && !name.contains('/')) {
        if name.is_empty() || path.is_empty() || name.contains(char::is_control) {
            return Err(usage!("{text}: is not NAME=RUN"));
        }
        return Ok(Named { name: name.to_owned(), path: path.into() });
    }
    let whole = argument.canonicalize().unwrap_or_else(|_| argument.to_owned());
    let name = if whole.is_file() { whole.file_stem() } else { whole.file_name() };
    let name = name.map_or_else(|| text.into_owned(), |name| name.to_string_lossy().into_owned());
    Ok(Named { name, path: argument.to_owned() })
}

/// A model on a device.
pub struct Compiled {
    pub classifier: Arc<Classifier>,
    /// For each of `batches`.
    programs: Vec<Box<dyn Program>>,
    pub reading: ReadOptions,
    batches: Vec<usize>,
    top: usize,
}

/// Opens a run or weights, for batches of up to `batch` images and up to `top` classes.
pub fn open(
    named: &Named,
    mut layers: LayeredConfig,
    (batch, top, temperature): (usize, usize, Option<f64>),
) -> Result<Compiled, Failure> {
    let source = Source::named(&named.path, &mut layers)?;
    let mut weights = weights::open(source, &layers, DataKind::Folder, true)?;
    weights.classifier.require_classes()?;
    weights.report();
    predict::take_kept(&mut weights, temperature)?;
    let config = weights.compute_as_trained(settings::finish(layers, Ranks::One)?)?;
    let device = Rank::alone().device(&config)?;
    let forward = |x, classes| weights.model.forward(x, classes);
    let smaller = std::iter::successors(Some(1), |size| Some(size * 2)).take_while(|size| *size < batch);
    let batches: Vec<usize> = smaller.chain([batch]).collect();
    let programs = weights.classifier.programs(&forward, device.as_ref(), &batches)?;
    let name = &named.name;
    let model = &weights.classifier.model;
    let classes = weights.classifier.classes.len();
    say(format_args!("{name}: {model}, {} of {classes}, on {}", weights.classifier.kind(), device.name()));
    let top = top.min(classes);
    let reading = config.train.reading();
    Ok(Compiled { classifier: Arc::new(weights.classifier), reading, programs, batches, top })
}

impl Model for Compiled {
    fn batches(&self) -> &[usize] {
        &self.batches
    }

    fn predict(&mut self, images: &[(String, Vec<u8>)]) -> Result<Vec<Prediction>, String> {
        let place = self.batches.partition_point(|batch| *batch < images.len());
        let Some(program) = self.programs.get_mut(place) else { return Err("the batch is too large".to_owned()) };
        let predicted = self.classifier.predict_prepared(program.as_mut(), images, self.top);
        predicted.map_err(|error| one_line(&error.to_string()))
    }
}
