//! The product of two tensors, element by element. The second may have one factor for each channel.

use super::Operation;
use crate::autodiff::Backward;
use crate::{GraphError, Init, Layout, Node, Tensor, ValueId};

/// `a * b`, element by element; `c` may lie over `a`.
///
/// `b` has the shape of `a`, or one factor for each channel: of all samples `[C]`, or of each one `[N,C]` or `[N,1,1,C]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Multiply;

impl Operation for Multiply {
    const NAME: &'static str = "multiply";
    const SIGNATURE: &'static str = "(a, b) -> (c)";
    const PYTORCH: Option<&'static str> = Some("torch.mul");

    fn in_place(&self) -> Option<(usize, usize)> {
        Some((0, 0))
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        let [a, b] = [node.inputs[0], node.inputs[1]];
        backward.emit_gradient(a, Multiply, vec![dy, b]);
        if backward.shape(a) == backward.shape(b) {
            backward.emit_gradient(b, Multiply, vec![dy, a]);
        } else {
            backward.emit_gradient(b, MultiplyReduce, vec![dy, a]);
        }
        Ok(())
    }
}

/// The gradient of a product's factors per channel: sums of `dy * a` over all that share a factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MultiplyReduce;

impl Operation for MultiplyReduce {
    const NAME: &'static str = "multiply_reduce";
    const SIGNATURE: &'static str = "(dy, a) -> (db)";
}

/// Multiplies two tensors, element by element.
///
/// # Shapes
/// Two of the same shape; or `[N,..,C]` by `[N,1,1,C]`, `[N,C]` or `[C]`, which has one factor for each channel.
impl std::ops::Mul for Tensor {
    type Output = Tensor;
    fn mul(self, other: Tensor) -> Tensor {
        let (shape, factors) = (self.shape(), other.shape());
        let is_per_channel = match (&shape[..], &factors[..]) {
            ([n, _, .., c], [samples, channels]) => (samples, channels) == (n, c),
            ([n, _, _, c], [samples, 1, 1, channels]) => (samples, channels) == (n, c),
            ([_, .., c], [channels]) => channels == c,
            _ => false,
        };
        if is_per_channel {
            return self.record(Multiply, &[other.id], shape);
        }
        match self.same_shape("multiply", &other) {
            Some(shape) => self.record(Multiply, &[other.id], shape),
            None => self,
        }
    }
}

impl Tensor {
    /// Each channel times a trained factor, which is `initial` at first: the layer scale of vision transformers. The parameter
    /// is `NAME`, of PyTorch's shape `[C]`.
    ///
    /// # Shapes
    /// `[N,..,C]`, and the same.
    pub fn scale_channels(self, name: &str, initial: f32) -> Tensor {
        self.scale(name, initial, Layout::Plain)
    }

    /// [`Tensor::scale_channels`] with a parameter of PyTorch's shape `[C,1,1]`, as in torchvision's ConvNeXt.
    pub fn scale_images(self, name: &str, initial: f32) -> Tensor {
        self.scale(name, initial, Layout::Channels)
    }

    fn scale(self, name: &str, initial: f32, layout: Layout) -> Tensor {
        self.enter(name);
        let shape = self.shape();
        if !initial.is_finite() {
            let reason = format!("begins with {initial}, which must be finite");
            return self.fail(GraphError::Attribute { place: self.layer("scale_channels"), reason });
        }
        let factors = self.parameter(name.into(), [shape.last()].into(), layout, Init::Constant(initial));
        self.record(Multiply, &[factors], shape)
    }
}
