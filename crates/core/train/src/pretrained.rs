//! Weights of any program: the tensors of a file under a model's names, in the same way for training and for evaluation.

use std::collections::HashMap;
use std::path::Path;

use enmasse_device::Program;
use enmasse_graph::ops::PositionEmbedding;
use enmasse_graph::{Arena, Plans};
use enmasse_weights::{MatchError, Matching, ModelTensors, NamedTensor, Positions, Rename, match_tensors};

use crate::weights::{EvaluatedWeights, load_all, torch_shape};
use crate::{CheckpointError, Pretrained, TrainConfig, TrainError};

/// The tensors of a file that fit the model of `plans`, under the model's names, and a report. With `any_classes` the
/// classifier may be for any number of classes; otherwise one for another number is left out.
pub(crate) fn read_pretrained(
    plans: &Plans,
    path: &Path,
    renames: &[Rename],
    any_classes: bool,
) -> Result<(Matching, Vec<NamedTensor>), TrainError> {
    let mut file = enmasse_weights::read(path).map_err(CheckpointError::from)?;
    file.tensors = EvaluatedWeights::of(file.tensors).weights;
    let is_weight = |arena: Arena| matches!(arena, Arena::Parameters | Arena::Buffers);
    let weights = plans.state.iter().filter(|own| is_weight(own.slot.arena));
    let model = ModelTensors {
        name: plans.evaluate.model.clone(),
        tensors: weights.map(|own| (own.name.clone(), torch_shape(own))).collect(),
        classifier: plans.head().unwrap_or_default().to_owned(),
        any_classes,
        positions: positions(plans),
    };
    Ok(match_tensors(&model, file, renames)?)
}

/// The model's position embedding, which a file may have for images of another size.
fn positions(plans: &Plans) -> Option<Positions> {
    // The evaluation of a run may read averages, whose names are others.
    let plan = plans.train.as_ref().unwrap_or(&plans.evaluate);
    let PositionEmbedding { tokens, before, grid } = plan.position_embedding()?;
    let name = plan.value(tokens).name.clone();
    // As the authors of the models do.
    Some(Positions { name, before, grid, antialias: !plan.model.contains("dinov2") })
}

/// Sets the parameters and running statistics of a program that a file has; see [`match_tensors`]. All others stay as they
/// are, and so does a classifier for other classes.
///
/// # Errors
/// The file cannot be read, its tensors are not those of the model, or the device fails.
pub fn load_pretrained(program: &mut dyn Program, path: &Path, renames: &[Rename]) -> Result<Matching, TrainError> {
    let (matching, tensors) = read_pretrained(program.plans(), path, renames, false)?;
    let found: HashMap<&str, &[f32]> =
        tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.values.as_slice())).collect();
    load_all(program, &found)?;
    Ok(matching)
}

impl TrainConfig {
    /// Whether a run begins with weights.
    pub fn begins_with_weights(&self) -> bool {
        self.pretrained.is_on() || self.weights.is_some()
    }

    /// The file of the weights that a run begins with, if it does. What is not a file the program has found before.
    pub(crate) fn first_weights(&self) -> Result<Option<&Path>, TrainError> {
        let file = match &self.pretrained {
            Pretrained::No => self.weights.as_deref(),
            Pretrained::Named(file) => Some(Path::new(file)).filter(|file| file.is_file()),
            Pretrained::Best => None,
        };
        match self.weights_file.as_deref().or(file) {
            None if self.pretrained.is_on() => Err(TrainError::Weights(
                "`pretrained` finds weights only in the program enmasse: give `weights` the file that \"enmasse weights fetch\" names"
                    .to_owned(),
            )),
            file => Ok(file),
        }
    }
}

impl From<MatchError> for TrainError {
    fn from(error: MatchError) -> Self {
        TrainError::Weights(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_that_a_run_begins_with() {
        let check = |settings: &[(&str, &str)], expected: Result<Option<&str>, ()>| {
            let mut config = TrainConfig::default();
            settings.iter().for_each(|(name, value)| config.set(name, value).unwrap());
            let found = config.first_weights().map_err(|_| ());
            assert_eq!(found, expected.map(|file| file.map(Path::new)), "{settings:?}");
        };
        check(&[], Ok(None));
        check(&[("weights", "a.pth")], Ok(Some("a.pth")));
        check(&[("weights", "hf:a/b"), ("weights_file", "b.pth")], Ok(Some("b.pth")));
        check(&[("pretrained", "true"), ("weights_file", "b.pth")], Ok(Some("b.pth")));
        let own = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        check(&[("pretrained", own)], Ok(Some(own)));
        // Names are found by the program.
        check(&[("pretrained", "true")], Err(()));
        check(&[("pretrained", "IMAGENET1K_V1")], Err(()));
    }
}
