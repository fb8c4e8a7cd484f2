//! Operations that a program outside this repository defines.

use std::fmt;
use std::sync::Arc;

use enmasse_tensor::Shape;

use super::Operation;
use crate::autodiff::Backward;
use crate::{GraphError, Node, Tensor, ValueId};

/// An operation of a program's own: shapes, gradient, and what it computes on a CPU. All its values are f32.
///
/// Devices that cannot run it refuse a plan with a sentence that names it.
pub trait CustomOperation: fmt::Debug + Send + Sync {
    /// The name in plans, profiles and error messages.
    fn name(&self) -> &'static str;

    /// The attributes as they follow the name in a plan. Ranks compare them, so they must say all that the result depends on.
    fn attributes(&self) -> String {
        String::new()
    }

    /// The shape of the result of operands with these shapes.
    ///
    /// # Errors
    /// What is wrong with them, as `takes ...`.
    fn shape(&self, operands: &[Shape]) -> Result<Shape, String>;

    /// Writes every element of the result. Operands and result are dense, in the order of their shapes. `parallel(n, job)` runs
    /// `job(0)` to `job(n - 1)` on all threads of the device, and what they compute must not depend on their order.
    fn compute(&self, operands: &[&[f32]], result: &mut [f32], parallel: &Parallel);

    /// Turns `dy`, the gradient of the node's result, into gradients of its operands. Without this method the operation cannot
    /// stand between a loss and what is trained.
    ///
    /// # Errors
    /// [`GraphError::NotDifferentiable`], unless the operation has this method.
    fn gradient(&self, _backward: &mut Backward, node: &Node, _dy: ValueId) -> Result<(), GraphError> {
        Err(GraphError::NotDifferentiable { layer: node.layer.clone(), operation: self.name() })
    }
}

/// Runs a number of jobs on all threads of a device. A job starts no further ones.
pub type Parallel<'a> = dyn Fn(usize, &(dyn Fn(usize) + Sync)) + 'a;

/// A [`CustomOperation`] in a plan.
#[derive(Clone, Debug)]
pub struct Custom(Arc<dyn CustomOperation>);

impl Custom {
    /// The most operands of an operation.
    pub const MAX_OPERANDS: usize = 8;

    /// Makes it an operation of a plan, as [`Tensor::custom`] and [`Backward::emit`] take it.
    pub fn new(operation: impl CustomOperation + 'static) -> Self {
        Custom(Arc::new(operation))
    }

    /// What it computes: see [`CustomOperation::compute`].
    pub fn compute(&self, operands: &[&[f32]], result: &mut [f32], parallel: &Parallel) {
        self.0.compute(operands, result, parallel);
    }
}

/// Operations with the same name and attributes are the same.
impl PartialEq for Custom {
    fn eq(&self, other: &Custom) -> bool {
        (self.0.name(), self.0.attributes()) == (other.0.name(), other.0.attributes())
    }
}

impl Operation for Custom {
    const NAME: &'static str = "custom";
    const SIGNATURE: &'static str = "(operands..) -> (y)";

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn attributes(&self) -> String {
        self.0.attributes()
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        self.0.gradient(backward, node, dy)
    }
}

impl Tensor {
    /// Applies an operation of the program's own to this tensor and `others`.
    ///
    /// # Shapes
    /// As the operation's [`CustomOperation::shape`] says.
    pub fn custom(self, operation: Custom, others: &[Tensor]) -> Tensor {
        let shapes: Vec<Shape> = [&self].into_iter().chain(others).map(Tensor::shape).collect();
        let shape = match shapes.len() {
            0..=Custom::MAX_OPERANDS => operation.0.shape(&shapes),
            count => Err(format!("takes {count} operands; at most {} fit", Custom::MAX_OPERANDS)),
        };
        match shape {
            Ok(shape) => {
                let operands: Vec<ValueId> = others.iter().map(|other| other.id).collect();
                self.record(operation, &operands, shape)
            }
            Err(reason) => {
                let place = self.place(operation.name());
                self.fail(GraphError::Attribute { place, reason })
            }
        }
    }
}
