//! A factor for each class.

use super::Operation;
use crate::autodiff::Backward;
use crate::{GraphError, Node, Tensor, ValueId};

/// Each class times its factor. The operation is its own gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaleClasses {
    /// The factor of each class.
    pub factors: Vec<f32>,
}

impl Operation for ScaleClasses {
    const NAME: &'static str = "scale_classes";
    const SIGNATURE: &'static str = "(x [N,K]) -> (y [N,K])";

    fn attributes(&self) -> String {
        format!("factors {:?}", self.factors)
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        backward.emit_gradient(node.inputs[0], self.clone(), vec![dy]);
        Ok(())
    }
}

impl Tensor {
    /// Each class times its factor (PyTorch's `x * factors`).
    ///
    /// # Shapes
    /// `[N,K]`, and the same.
    pub fn scale_classes(self, factors: &[f32]) -> Tensor {
        let Some([n, classes]) = self.row_dims("scale_classes") else { return self };
        let wrong = match factors.iter().find(|factor| !factor.is_finite()) {
            _ if factors.len() != classes => {
                Some(format!("a factor for each of {classes} classes, got {}", factors.len()))
            }
            Some(factor) => Some(format!("finite factors, got {factor}")),
            None => None,
        };
        if let Some(wrong) = wrong {
            let place = self.place("scale_classes");
            let reason = format!("takes {wrong}");
            return self.fail(GraphError::Attribute { place, reason });
        }
        self.record(ScaleClasses { factors: factors.into() }, &[], [n, classes].into())
    }
}
