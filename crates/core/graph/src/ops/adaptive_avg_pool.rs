//! Average pooling to a fixed size.

use super::Operation;
use crate::autodiff::Backward;
use crate::{GraphError, Node, Tensor, ValueId};

/// Output `i` of `n` averages inputs `floor(i*size/n) .. ceil((i+1)*size/n)`, along both axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdaptiveAvgPool {
    /// Output `[height, width]`.
    pub output: [usize; 2],
}

impl Operation for AdaptiveAvgPool {
    const NAME: &'static str = "adaptive_avg_pool";
    const SIGNATURE: &'static str = "(x) -> (y)";
    const PYTORCH: Option<&'static str> = Some("torch.nn.AdaptiveAvgPool2d");

    fn attributes(&self) -> String {
        format!("output {}x{}", self.output[0], self.output[1])
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        backward.emit_gradient(node.inputs[0], AdaptiveAvgPoolBackward(*self), vec![dy]);
        Ok(())
    }
}

/// The gradient of [`AdaptiveAvgPool`]: each element of `dy` spread evenly over what it averages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdaptiveAvgPoolBackward(pub AdaptiveAvgPool);

impl Operation for AdaptiveAvgPoolBackward {
    const NAME: &'static str = "adaptive_avg_pool_backward";
    const SIGNATURE: &'static str = "(dy) -> (dx)";

    fn attributes(&self) -> String {
        self.0.attributes()
    }
}

impl Tensor {
    /// Average pooling to a fixed `[height, width]`, independent of the input's size.
    ///
    /// # Shapes
    /// `[N,H,W,C]` to `[N,output height,output width,C]`.
    pub fn adaptive_avg_pool(self, output: [usize; 2]) -> Tensor {
        let shape = self.shape();
        let Some([n, _, _, c]) = self.image_dims(self.place("adaptive_avg_pool"), &shape) else { return self };
        if output.contains(&0) {
            let reason = format!("needs an output of at least 1x1, got {}x{}", output[0], output[1]);
            return self.fail(GraphError::Attribute { place: self.place("adaptive_avg_pool"), reason });
        }
        self.record(AdaptiveAvgPool { output }, &[], [n, output[0], output[1], c].into())
    }
}
