//! What a model needs of a file: the names and shapes of its tensors, and which of them are its classifier.

use crate::Positions;

/// The tensors that a model needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelTensors {
    /// The model's name, for errors.
    pub name: String,
    /// Names and PyTorch's shapes, in the model's order.
    pub tensors: Vec<(String, Vec<usize>)>,
    /// The layer of the logits, such as `fc`. The first dimension of its tensors is the number of classes.
    pub classifier: String,
    /// Whether a classifier for any number of classes is taken. Otherwise one for another number begins anew.
    pub any_classes: bool,
    /// The position embedding, which may be for images of another size in the file.
    pub positions: Option<Positions>,
}

impl ModelTensors {
    /// Whether this is the name of one of the classifier's tensors.
    pub(crate) fn is_classifier(&self, name: &str) -> bool {
        name.strip_prefix(self.classifier.as_str()).is_some_and(|rest| rest.starts_with('.'))
    }
}
