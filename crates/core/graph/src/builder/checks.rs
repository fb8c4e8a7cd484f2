//! Checks of shapes, and the words for the operation that fails one: a layer by its name, another operation by the last
//! named layer before it.

use enmasse_tensor::Shape;

use super::Tensor;
use crate::ops::Op;
use crate::{GraphError, OperationLocation, Pool, Relation, Window};

impl Tensor {
    /// The layer that is being recorded, as a place for errors.
    pub(crate) fn layer(&self, operation: &'static str) -> OperationLocation {
        OperationLocation { operation, layer: self.state.borrow().layer.clone(), relation: Relation::Layer }
    }

    /// An operation without a name on this tensor, as a place for errors.
    pub(crate) fn place(&self, operation: &'static str) -> OperationLocation {
        match &self.state.borrow().function {
            Some(function) => OperationLocation { operation, layer: function.clone(), relation: Relation::Inside },
            None => OperationLocation { operation, layer: self.origin(), relation: Relation::After },
        }
    }

    /// The last named layer that this tensor comes from. For a sum, that is the layer of the first operand.
    fn origin(&self) -> String {
        let state = self.state.borrow();
        let mut id = self.id;
        // A node's inputs were recorded before it.
        for node in state.graph.nodes.iter().rev() {
            if !node.outputs.contains(&id) {
                continue;
            }
            match node.op {
                Op::Conv2d(_) | Op::BatchNormNormalize(_) | Op::LinearForward(_) | Op::Dropout(_) => {
                    return node.layer.clone();
                }
                _ => id = node.inputs.first().copied().unwrap_or(id),
            }
        }
        "the input".to_owned()
    }

    /// The window and the shape after pooling; sets an error if the window does not fit.
    pub(crate) fn pooled(&self, operation: &'static str, pool: Pool) -> Option<(Window, Shape)> {
        let shape = self.shape();
        let [n, h, w, c] = self.image_dims(self.place(operation), &shape)?;
        let window = if pool.same { pool.window.same([h, w]) } else { pool.window };
        if (0..2).any(|axis| window.padding[axis].iter().any(|padding| padding * 2 > window.kernel[axis])) {
            let reason = format!("has a window of {window}, whose padding is more than half the kernel");
            self.set_error(GraphError::Attribute { place: self.place(operation), reason });
            return None;
        }
        let [oh, ow] = self.window_dims(self.place(operation), &shape, &window, [h, w])?;
        Some((window, [n, oh, ow, c].into()))
    }

    /// The dimensions of a feature map; sets an error if it is none.
    pub(crate) fn image_dims(&self, place: OperationLocation, shape: &Shape) -> Option<[usize; 4]> {
        let dims = <[usize; 4]>::try_from(&shape[..]).ok();
        if dims.is_none() {
            let reason = "it needs [batch,height,width,channels], as before flatten".into();
            self.set_error(GraphError::Shape { place, shape: shape.clone(), reason });
        }
        dims
    }

    /// The dimensions of `[batch, classes]`; sets an error if there are others.
    pub(crate) fn row_dims(&self, operation: &'static str) -> Option<[usize; 2]> {
        let shape = self.shape();
        let dims = <[usize; 2]>::try_from(&shape[..]).ok();
        if dims.is_none() {
            let place = self.place(operation);
            let reason = "it needs [batch,classes]".into();
            self.set_error(GraphError::Shape { place, shape, reason });
        }
        dims
    }

    /// The common shape of both tensors; sets an error if they differ.
    pub(crate) fn same_shape(&self, operation: &'static str, other: &Tensor) -> Option<Shape> {
        let (shape, theirs) = (self.shape(), other.shape());
        if shape == theirs {
            return Some(shape);
        }
        let (place, second) = (self.place(operation), other.place(operation));
        let other = if second == place { theirs.to_string() } else { format!("{theirs} after {}", second.layer) };
        self.set_error(GraphError::Different { place, shape, other });
        None
    }

    /// Height and width after a window; sets an error if it does not fit.
    pub(crate) fn window_dims(
        &self,
        place: OperationLocation,
        shape: &Shape,
        window: &Window,
        size: [usize; 2],
    ) -> Option<[usize; 2]> {
        let zero = [("kernel", window.kernel), ("stride", window.stride), ("dilation", window.dilation)];
        if let Some((what, _)) = zero.into_iter().find(|(_, values)| values.contains(&0)) {
            let reason = format!("has {what} 0, which must be at least 1");
            self.set_error(GraphError::Attribute { place, reason });
            return None;
        }
        let dims = window.output(0, size[0]).zip(window.output(1, size[1]));
        if dims.is_none() {
            let [h, w] = [0, 1].map(|axis| window.least(axis));
            let reason =
                format!("a window of {window} needs a feature map of at least {h}x{w}: use larger images (`size`)");
            self.set_error(GraphError::Shape { place, shape: shape.clone(), reason });
        }
        dims.map(|(h, w)| [h, w])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchNorm, Builder, Conv, Mode};

    /// A branch of 3x3 convolutions without padding, so that activations of different depth have different shapes.
    fn conv(x: Tensor, name: &str, channels: usize) -> Tensor {
        x.conv2d(name, Conv::new(channels, 3)).relu()
    }

    fn error_of(model: impl Fn(Tensor) -> Tensor) -> String {
        let builder = Builder::new(2, [8, 8], Mode::Train, 0);
        let logits = model(builder.pixels(&[0.0; 3], &[1.0; 3]));
        builder.finish(&logits, 10).unwrap_err().to_string()
    }

    #[test]
    fn mistakes_name_the_layer_the_shape_and_the_need() {
        let check = |model: &dyn Fn(Tensor) -> Tensor, expected: &str| assert_eq!(error_of(model), expected);

        // Named layers.
        let larger = "use larger images (`size`)";
        let kernel = format!("a window of kernel 9x9 needs a feature map of at least 9x9: {larger}");
        check(&|x| x.conv2d("stem", Conv::new(4, 9)), &format!("layer stem: conv2d got [2,8,8,3], but {kernel}"));
        let window =
            format!("a window of kernel 5x5 padding 1x1 dilation 3x3 needs a feature map of at least 11x11: {larger}");
        let dilated = Conv::new(4, 5).dilation(3).padding(1);
        check(&|x| x.conv2d("stem", dilated), &format!("layer stem: conv2d got [2,8,8,3], but {window}"));
        let groups = "its groups (2) must divide 3 input and 4 output channels";
        check(
            &|x| x.conv2d("stem", Conv::new(4, 3).groups(2)),
            &format!("layer stem: conv2d got [2,8,8,3], but {groups}"),
        );
        check(
            &|x| conv(x, "a", 4).conv2d("b", Conv::new(6, 3).groups(4)),
            "layer b: conv2d got [2,6,6,4], but its groups (4) must divide 4 input and 6 output channels",
        );
        check(
            &|x| x.conv2d("stem", Conv::new(4, 3).groups(0)),
            "layer stem: conv2d got [2,8,8,3], but its groups (0) must divide 3 input and 4 output channels",
        );
        check(
            &|x| x.conv2d("stem", Conv::new(0, 3)),
            "layer stem: conv2d got [2,8,8,3], but its groups (1) must divide 3 input and 0 output channels",
        );
        check(
            &|x| x.conv2d("stem", Conv::new(4, 3).dilation(0)),
            "layer stem: conv2d has dilation 0, which must be at least 1",
        );
        check(
            &|x| x.linear("fc", 10),
            "layer fc: linear got [2,8,8,3], but it needs [batch,features] or [batch,tokens,channels]: add flatten or tokens before this layer",
        );
        check(&|x| x.flatten().linear("fc", 0), "layer fc: linear has no outputs");
        let map = "it needs [batch,height,width,channels], as before flatten";
        check(
            &|x| x.max_pool(Pool::new(8)).flatten().linear("a", 5).batch_norm("b").conv2d("c", Conv::new(1, 1)),
            &format!("layer c: conv2d got [2,5], but {map}"),
        );
        check(
            &|x| x.flatten().sum_classes().batch_norm("b"),
            "layer b: batch_norm got [2], but it needs [batch,height,width,channels] or [batch,features]",
        );
        check(
            &|x| x.conv2d("c", Conv::new(4, 1)).conv2d("c", Conv::new(4, 1)),
            "layer c: a tensor named c.weight exists already; give each layer its own name",
        );
        check(
            &|x| x.flatten().sum_classes().layer_norm("norm", 1e-5),
            "layer norm: layer_norm got [2], but it needs channels as the last of at least two dimensions",
        );
        check(&|x| x.layer_norm("norm", 0.0), "layer norm: layer_norm has epsilon 0, which must be above 0");
        check(
            &|x| x.batch_norm_with("bn", BatchNorm::new().epsilon(-1.0)),
            "layer bn: batch_norm has epsilon -1 (at least 0) and momentum 0.1 (0 to 1)",
        );
        check(
            &|x| x.scale_channels("scale", f32::NAN),
            "layer scale: scale_channels begins with NaN, which must be finite",
        );
        check(
            &|x| x.clone() * x.flatten().linear("gate", 4),
            "multiply after the input: [2,8,8,3] and [2,4] after gate must have the same shape",
        );
        check(
            &|x| x.dropout("drop", 1.0),
            "layer drop: dropout has probability 1, which must be at least 0 and below 1",
        );
        check(
            &|x| x.drop_path("drop", -0.1),
            "layer drop: drop_path has probability -0.1, which must be at least 0 and below 1",
        );
        check(
            &|x| x.dropout("drop", 0.5).dropout("drop", 0.5),
            "layer drop: dropout has the name of an earlier dropout, and both would drop the same elements",
        );

        // Operations without a name.
        check(&|x| x.flatten().flatten(), &format!("flatten after the input got [2,192], but {map}"));
        check(
            &|x| conv(x, "a", 4).max_pool(Pool::new(7)),
            &format!(
                "max_pool after a got [2,6,6,4], but a window of kernel 7x7 stride 7x7 needs a feature map of at least 7x7: {larger}"
            ),
        );
        check(&|x| x.flatten().tokens(), &format!("tokens after the input got [2,192], but {map}"));
        check(&|x| x.images([8, 8]), "images after the input got [2,8,8,3], but it needs [batch,tokens,channels]");
        check(&|x| x.tokens().images([4, 8]), "images after the input got [2,64,3], but it needs 4x8 tokens");
        check(
            &|x| x.flatten().mean_tokens(),
            "mean_tokens after the input got [2,192], but it needs [batch,tokens,channels]",
        );
        check(&|x| x.flatten().avg_pool(Pool::new(2)), &format!("avg_pool after the input got [2,192], but {map}"));
        check(
            &|x| x.max_pool(Pool::new(2).padding(2)),
            "max_pool after the input has a window of kernel 2x2 stride 2x2 padding 2x2, whose padding is more than half the kernel",
        );
        check(
            &|x| x.avg_pool(Pool::new(3).padding_sides([[0, 0], [1, 2]])),
            "avg_pool after the input has a window of kernel 3x3 stride 3x3 padding 0+0x1+2, whose padding is more than half the kernel",
        );
        check(&|x| x.max_pool(Pool::new(0).same()), "max_pool after the input has kernel 0, which must be at least 1");
        check(
            &|x| x.conv2d("stem", Conv::new(4, 3).stride(0).same()),
            "layer stem: conv2d has stride 0, which must be at least 1",
        );
        check(
            &|x| x.max_pool(Pool::new(17)),
            "max_pool after the input has a window of kernel 17x17 stride 17x17; at most 256 elements fit",
        );
        check(
            &|x| x.batch_norm("bn").relu().max_pool(Pool::new(2).stride(0)),
            "max_pool after bn has stride 0, which must be at least 1",
        );
        check(
            &|x| conv(x, "a", 4).adaptive_avg_pool([0, 1]),
            "adaptive_avg_pool after a needs an output of at least 1x1, got 0x1",
        );
        check(
            &|x| conv(conv(x.clone(), "block2.conv1", 8), "block2.conv2", 8) + conv(x, "downsample.0", 8),
            "add after block2.conv2: [2,4,4,8] and [2,6,6,8] after downsample.0 must have the same shape",
        );
        check(
            &|x| conv(x.clone(), "a", 3) + x,
            "add after a: [2,6,6,3] and [2,8,8,3] after the input must have the same shape",
        );
        check(
            &|x| x.clone() + x.max_pool(Pool::new(2)),
            "add after the input: [2,8,8,3] and [2,4,4,3] must have the same shape",
        );
        // The branch counts, not the layer recorded last.
        check(
            &|x| {
                let a = conv(x.clone(), "a", 4);
                conv(x, "b", 4).flatten();
                a.flatten().flatten()
            },
            &format!("flatten after a got [2,144], but {map}"),
        );
        check(&|x| x.log_softmax(), "log_softmax after the input got [2,8,8,3], but it needs [batch,classes]");
        check(
            &|x| x.flatten().linear("fc", 9).relu(),
            "the loss after fc got [2,9], but the model must end in [2,10], one logit per class or output",
        );
    }
}
