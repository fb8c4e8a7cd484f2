//! Dropout, and drop path (stochastic depth), whose random numbers depend on the sample, not on its place in a batch.

use super::Operation;
use crate::autodiff::Backward;
use crate::builder::SAMPLE_INDICES;
use crate::{GraphError, Mode, Node, Op, Tensor, ValueId};

/// Element e of sample i is multiplied by `1 / (1 - probability)` if word `e % 4` of block `e / 4` of the random stream
/// (seed, "dropout LAYER", epoch, i) is at least `probability`. Otherwise it becomes 0. With `per_sample` word 0 of block 0
/// decides about all elements of the sample.
///
/// Of a layer that is cut over ranks `x` has the rank's part of each row. Its elements have the numbers e that they have in the
/// whole layer, so that the mask does not depend on the cut.
///
/// The operation is its own gradient; `y` may lie over `x`.
#[derive(Clone, Debug, PartialEq)]
pub struct Dropout {
    /// Probability of dropping an element.
    pub probability: f32,
    /// The user's seed.
    pub seed: u64,
    /// The layer's name.
    pub layer: String,
    /// Whether whole samples are dropped.
    pub per_sample: bool,
    /// The channels of the whole layer, if each rank has an equal part of them.
    pub cut_channels: Option<usize>,
}

impl Operation for Dropout {
    const NAME: &'static str = "dropout";
    const SIGNATURE: &'static str = "(x, sample_indices i64 [N]) -> (y)";
    const PYTORCH: Option<&'static str> = Some("torch.nn.Dropout, torchvision.ops.StochasticDepth");

    fn name(&self) -> &'static str {
        if self.per_sample { "drop_path" } else { Self::NAME }
    }

    fn attributes(&self) -> String {
        let cut = self.cut_channels.map_or(String::new(), |channels| format!(" part of {channels} channels"));
        format!("probability {} seed {} layer {}{cut}", self.probability, self.seed, self.layer)
    }

    fn in_place(&self) -> Option<(usize, usize)> {
        Some((0, 0))
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        backward.emit_gradient(node.inputs[0], self.clone(), vec![dy, node.inputs[1]]);
        Ok(())
    }
}

impl Tensor {
    /// Each element times `1 / (1 - probability)` or, with this probability, 0, in training; evaluation leaves it out. The name
    /// keys its random numbers.
    ///
    /// # Shapes
    /// Any, and the same.
    pub fn dropout(self, name: &str, probability: f32) -> Tensor {
        self.drop(name, probability, false)
    }

    /// Each sample times `1 / (1 - probability)` or, with this probability, 0, in training; evaluation leaves it out: torchvision's
    /// `StochasticDepth` of mode "row", and timm's `DropPath`, at the end of a residual branch. The name keys its random numbers.
    ///
    /// # Shapes
    /// Any, and the same.
    pub fn drop_path(self, name: &str, probability: f32) -> Tensor {
        self.drop(name, probability, true)
    }

    fn drop(self, name: &str, probability: f32, per_sample: bool) -> Tensor {
        self.enter(name);
        let op = Dropout { probability, seed: self.seed(), layer: name.into(), per_sample, cut_channels: None };
        let kind = op.name();
        if !(0.0..1.0).contains(&probability) {
            let reason = format!("has probability {probability}, which must be at least 0 and below 1");
            return self.fail(GraphError::Attribute { place: self.layer(kind), reason });
        }
        let is_this = |node: &Node| matches!(&node.op, Op::Dropout(Dropout { layer, .. }) if layer == name);
        if self.change_graph(|graph| graph.nodes.iter().any(is_this)) {
            let reason = "has the name of an earlier dropout, and both would drop the same elements".into();
            return self.fail(GraphError::Attribute { place: self.layer(kind), reason });
        }
        if self.mode() == Mode::Evaluate || probability == 0.0 {
            return self;
        }
        self.record(op, &[SAMPLE_INDICES], self.shape())
    }
}
