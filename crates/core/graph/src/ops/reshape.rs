//! Images as tokens, and back.

use super::Operation;
use crate::autodiff::Backward;
use crate::{Conv, GraphError, Node, Tensor, ValueId};

/// The same elements, in the order of memory, in another shape. `y` may lie over `x`, and then nothing is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reshape;

impl Operation for Reshape {
    const NAME: &'static str = "reshape";
    const SIGNATURE: &'static str = "(x) -> (y)";
    const PYTORCH: Option<&'static str> = Some("torch.reshape");

    fn in_place(&self) -> Option<(usize, usize)> {
        Some((0, 0))
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        backward.emit_gradient(node.inputs[0], Reshape, vec![dy]);
        Ok(())
    }
}

impl Tensor {
    /// The pixels of each image as tokens, row by row.
    ///
    /// # Shapes
    /// `[N,H,W,C]` to `[N,H*W,C]`.
    pub fn tokens(self) -> Tensor {
        let shape = self.shape();
        let Some([n, h, w, c]) = self.image_dims(self.place("tokens"), &shape) else { return self };
        self.record(Reshape, &[], [n, h * w, c].into())
    }

    /// The square patches of each image as tokens, row by row: a convolution whose stride is its kernel. Parameters are
    /// `NAME.weight` and `NAME.bias`.
    ///
    /// # Shapes
    /// `[N,H,W,C]` to `[N,H/size*W/size,channels]`, where H and W are multiples of `size`.
    pub fn patches(self, name: &str, channels: usize, size: usize) -> Tensor {
        self.enter(name);
        let place = self.layer("patches");
        let shape = self.shape();
        let Some([_, h, w, _]) = self.image_dims(place.clone(), &shape) else { return self };
        if size == 0 || [h, w].iter().any(|pixels| !pixels.is_multiple_of(size)) {
            let reason = format!("it needs multiples of its patches' {size} pixels as height and width: change `size`");
            return self.fail(GraphError::Shape { place, shape, reason });
        }
        self.conv2d(name, Conv::new(channels, size).stride(size)).tokens()
    }

    /// Tokens as the pixels of images of `[height, width]`, row by row.
    ///
    /// # Shapes
    /// `[N,height*width,C]` to `[N,height,width,C]`.
    pub fn images(self, [height, width]: [usize; 2]) -> Tensor {
        let Some([n, t, c]) = self.token_dims("images") else { return self };
        if height.checked_mul(width) != Some(t) {
            let place = self.place("images");
            let shape = self.shape();
            return self.fail(GraphError::Shape { place, shape, reason: format!("it needs {height}x{width} tokens") });
        }
        self.record(Reshape, &[], [n, height, width, c].into())
    }

    /// The mean over the tokens of each sample, as features.
    ///
    /// # Shapes
    /// `[N,T,C]` to `[N,C]`.
    pub fn mean_tokens(self) -> Tensor {
        let Some([_, t, _]) = self.token_dims("mean_tokens") else { return self };
        self.images([1, t]).adaptive_avg_pool([1, 1]).flatten()
    }

    /// The dimensions of tokens; sets an error if there are others.
    pub(super) fn token_dims(&self, operation: &'static str) -> Option<[usize; 3]> {
        let shape = self.shape();
        let dims = <[usize; 3]>::try_from(&shape[..]).ok();
        if dims.is_none() {
            let place = self.place(operation);
            let reason = "it needs [batch,tokens,channels]".into();
            self.set_error(GraphError::Shape { place, shape, reason });
        }
        dims
    }
}

#[cfg(test)]
mod tests {
    use crate::{CompileOptions, Conv, Op, Tensor, compile};

    #[test]
    fn what_is_not_needed_in_its_old_shape_stays_in_its_place() {
        let model = |x: Tensor| {
            let x = x.conv2d("patches", Conv::new(8, 2).stride(2)).tokens();
            let y = x.layer_norm("norm", 1e-6).linear("fc1", 8).images([4, 4]);
            y.conv2d("conv", Conv::new(8, 3)).tokens().mean_tokens().linear("fc2", 5)
        };
        let plan = compile(&model, &CompileOptions::new("tokens", 2, 8, 5)).unwrap().train.unwrap();
        let reshapes: Vec<bool> = (plan.instructions.iter())
            .filter(|node| matches!(node.op, Op::Reshape(_)))
            .map(|node| plan.slot(node.inputs[0]) == plan.slot(node.outputs[0]))
            .collect();
        // Four forward, four back.
        assert_eq!(reshapes, [true; 8]);
    }
}
