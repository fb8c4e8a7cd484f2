//! Distillation: a trained model, the teacher, computes its logits in the same step, and training imitates them beside its loss.
//!
//! The teacher is recorded and fused as in evaluation, and comes before the model, so that its activations are gone when those of the
//! model begin to be kept. It sees the images of the batch, normalised by its own constants. Its tensors have names and an arena of
//! their own, and a role that no pass trains, averages or counts. A plan of evaluation has no teacher.
//!
//! Source: G. Hinton, O. Vinyals, J. Dean, "Distilling the knowledge in a neural network", 2015 (arXiv:1503.02531).

use std::fmt;
use std::sync::Arc;

use crate::builder::Forward;
use crate::ops::{Add, Function};
use crate::passes::Freeze;
use crate::{CompileOptions, GraphError, Layout, Loss, PerSample, Role, TargetKind, Tensor, ValueId};

/// Prefix of the names of a teacher's tensors and layers.
pub const TEACHER_PREFIX: &str = "teacher.";

/// A trained model, and how training imitates it.
///
/// ```
/// use enmasse_graph::{Arena, CompileOptions, PerSample, Teacher, Tensor, compile, losses};
/// let loss = PerSample::new(|logits, teacher| losses::distillation(logits, teacher, 4.0));
/// let teacher = Teacher::new("wide", 10, |x: Tensor| x.flatten().linear("fc1", 64).relu().linear("fc2", 10), loss);
/// let options = CompileOptions { teacher: Some(teacher), ..CompileOptions::new("narrow", 8, 16, 10) };
/// let plans = compile(&|x: Tensor| x.flatten().linear("fc", 10), &options).unwrap();
/// assert_eq!(plans.find("teacher.fc1.weight").unwrap().slot.arena, Arena::Teacher);
/// ```
#[derive(Clone)]
pub struct Teacher {
    /// The model's name, for errors.
    pub name: String,
    /// Its outputs.
    pub outputs: usize,
    /// The mean of each channel that it sees.
    pub mean: Vec<f32>,
    /// The std of each channel that it sees.
    pub std: Vec<f32>,
    /// A number for each sample from the model's logits and the teacher's, in place of targets.
    pub loss: PerSample,
    /// The share of that number in the loss, from 0 to 1. The loss of the targets has the rest.
    pub alpha: f32,
    model: Arc<dyn Fn(Tensor) -> Tensor + Send + Sync>,
}

impl fmt::Debug for Teacher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Teacher { name, outputs, mean, std, loss, alpha, model: _ } = self;
        f.debug_struct("Teacher")
            .field("name", name)
            .field("outputs", outputs)
            .field("mean", mean)
            .field("std", std)
            .field("loss", loss)
            .field("alpha", alpha)
            .finish_non_exhaustive()
    }
}

impl Teacher {
    /// A model of so many outputs that has half of the loss, with ImageNet's normalisation.
    pub fn new(
        name: impl Into<String>,
        outputs: usize,
        model: impl Fn(Tensor) -> Tensor + Send + Sync + 'static,
        loss: PerSample,
    ) -> Self {
        let CompileOptions { model: name, mean, std, .. } = CompileOptions::new(name, 1, 1, outputs);
        Teacher { name, outputs, mean, std, loss, alpha: 0.5, model: Arc::new(model) }
    }

    pub(crate) fn forward(&self, x: Tensor) -> Tensor {
        (self.model)(x)
    }

    /// The options by which the teacher is recorded beside a model that has `options`.
    pub(crate) fn options(&self, options: &CompileOptions) -> CompileOptions {
        CompileOptions {
            model: self.name.clone(),
            classes: self.outputs,
            mean: self.mean.clone(),
            std: self.std.clone(),
            target: TargetKind::Class,
            loss: Loss::default(),
            teacher: None,
            freeze: Freeze::default(),
            drop_path: None,
            ..options.clone()
        }
    }

    /// Appends the loss of each sample, as it is with the teacher's part in it. `values` are those of the targets.
    pub(crate) fn mix(&self, forward: &mut Forward, logits: ValueId, values: ValueId) -> Result<ValueId, GraphError> {
        let Some(taught) = forward.teacher else { return Ok(values) };
        let imitated = forward.record_of("the loss of distillation", LAYER, [logits, taught], &self.loss)?;
        let share = |forward: &mut Forward, of: ValueId, scale: f32| {
            let part = forward.graph.add_like("distillation.share", of);
            forward.append(Function::Affine { scale, shift: 0.0 }, vec![of], part, LAYER);
            part
        };
        let parts = [(values, 1.0 - self.alpha), (imitated, self.alpha)];
        let parts = parts.map(|(of, scale)| share(forward, of, scale));
        let sum = forward.graph.add_like("distillation.sum", values);
        forward.append(Add, parts.into(), sum, LAYER);
        Ok(sum)
    }
}

/// The layer of what the loss has of a teacher.
const LAYER: &str = "distillation";

impl Forward {
    /// Adds a recorded teacher before the model. It reads the same images.
    pub(crate) fn learn_from(&mut self, teacher: Forward) {
        let inputs = [
            (teacher.images, self.images),
            (teacher.labels, self.labels),
            (teacher.sample_indices, self.sample_indices),
        ];
        let mut numbers = Vec::with_capacity(teacher.graph.values.len());
        for (id, mut value) in teacher.graph.ids().map(|(id, value)| (id, value.clone())) {
            if let Some(&(_, own)) = inputs.iter().find(|(input, _)| *input == id) {
                numbers.push(own);
                continue;
            }
            value.name.insert_str(0, TEACHER_PREFIX);
            value.role = match value.role {
                Role::Parameter(parameter) => Role::Teacher { layout: parameter.layout },
                Role::Buffer { .. } => Role::Teacher { layout: Layout::Plain },
                role => role,
            };
            numbers.push(ValueId(self.graph.values.len()));
            self.graph.values.push(value);
        }
        let nodes = teacher.graph.nodes.into_iter().map(|mut node| {
            node.layer.insert_str(0, TEACHER_PREFIX);
            node.inputs.iter_mut().chain(&mut node.outputs).for_each(|id| *id = numbers[id.0]);
            node
        });
        self.graph.nodes.splice(0..0, nodes);
        self.teacher = Some(numbers[teacher.logits.0]);
    }
}

#[cfg(test)]
#[path = "teacher_tests.rs"]
mod tests;
