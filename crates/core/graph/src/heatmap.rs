//! Plans that compute where in an image a prediction comes from: a number for each cell of a grid over the image.
//!
//! Of a model with attention it is the attention rollout, otherwise Grad-CAM. Both are a forward in evaluation mode, followed by nodes
//! of the loss phase, so every device runs them as it runs an evaluation. Everything is f32, and nothing is fused: only few operations
//! that are fused have gradients.
//!
//! Sources: R. R. Selvaraju et al., "Grad-CAM: Visual explanations from deep networks via gradient-based localization", ICCV 2017;
//! S. Abnar, W. Zuidema, "Quantifying attention flow in transformers", ACL 2020.

use enmasse_tensor::Shape;

use crate::autodiff::gradient_of;
use crate::builder::Forward;
use crate::loss::{AddedLoss, add_loss};
use crate::ops::{
    AdaptiveAvgPool, Add, Attention, AttentionBackward, Function, Multiply, Reshape, SampleSum, SampleSumBackward,
    SelectTokens, SelectTokensBackward, SumClasses, SumClassesBackward,
};
use crate::placement::{place, state_tensors};
use crate::{
    CompileOptions, GraphError, Loss, Mode, Node, Op, PerSample, Phase, Plans, Precision, Target, Tensor, ValueId,
};

/// How a heatmap comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeatmapMethod {
    /// The channels of the last map of features, each weighted by the mean gradient of the class's logit. Negative sums speak for
    /// other classes.
    GradCam,
    /// How much of each patch reaches the class token through the attention of all blocks. It is the same for all classes.
    AttentionRollout,
}

/// The plans of a model's heatmaps.
#[derive(Clone, Debug)]
pub struct HeatmapPlans {
    /// An evaluation whose labels are the classes to explain, and whose logits are the heatmaps `[batch, height * width]`, row by row.
    /// Its loss is the sum of the logits of these classes.
    pub plans: Plans,
    /// Height and width of the grid.
    pub grid: [usize; 2],
    /// The method.
    pub method: HeatmapMethod,
}

impl Target<'_> {
    /// Compiles an evaluation step that computes heatmaps. Precision, loss and metrics of the options do not matter.
    ///
    /// # Errors
    /// The model has neither attention with a class token nor a map of features, an option is out of range, or a layer
    /// does not take what it is given.
    ///
    /// ```
    /// use enmasse_graph::{CompileOptions, Conv, HeatmapMethod, Pool, Target, Tensor};
    /// let model = |x: Tensor| {
    ///     let x = x.conv2d("conv", Conv::new(8, 3).padding(1)).relu().max_pool(Pool::new(2));
    ///     x.adaptive_avg_pool([1, 1]).flatten().linear("fc", 10)
    /// };
    /// let found = Target::default().compile_heatmaps(&model, &CompileOptions::new("net", 1, 16, 10)).unwrap();
    /// assert_eq!((found.grid, found.method), ([8, 8], HeatmapMethod::GradCam));
    /// ```
    pub fn compile_heatmaps(
        &self,
        model: &dyn Fn(Tensor) -> Tensor,
        options: &CompileOptions,
    ) -> Result<HeatmapPlans, GraphError> {
        let score = PerSample::new(|logits: Tensor, targets: Tensor| (logits * targets).sum_classes());
        let options = CompileOptions {
            loss: Loss::Custom(score),
            metrics: Vec::new(),
            precision: Precision::F32,
            fuse: false,
            ..options.clone()
        };
        options.check()?;
        let mut forward = self.record(model, &options, Mode::Evaluate)?;
        let parameters: Vec<ValueId> = forward.graph.parameters().map(|(id, _, _)| id).collect();
        let state = state_tensors(&forward.graph, &parameters);
        let map = last_map(&forward);
        let has_attention = forward.graph.nodes.iter().any(|node| matches!(node.op, Op::Attention(_)));
        let AddedLoss { node, loss, correct } = add_loss(&mut forward, &options, 1.0, Mode::Evaluate)?;
        let (grid, method) = match map {
            _ if has_attention => (attention_rollout(&mut forward)?, HeatmapMethod::AttentionRollout),
            Some(map) => (grad_cam(&mut forward, node, map)?, HeatmapMethod::GradCam),
            None => {
                let reason = "the model has no map of features between its images and its classes, so no heatmap";
                return Err(GraphError::Option(reason.to_owned()));
            }
        };
        let evaluate = place(forward, &options, Mode::Evaluate, (loss, correct), Vec::new(), &state, &[])?;
        Ok(HeatmapPlans { plans: self.plans(None, evaluate, state), grid, method })
    }
}

/// The last image of several pixels from which alone all that follows is computed, before a pooling to a fixed size: what a Grad-CAM
/// of the last layer is of. A single pixel would have no places.
fn last_map(forward: &Forward) -> Option<ValueId> {
    let graph = &forward.graph;
    let mut last_use = vec![0; graph.values.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        node.inputs.iter().for_each(|input| last_use[input.0] = index);
    }
    last_use[forward.logits.0] = graph.nodes.len();
    let (mut open, mut found): (Vec<ValueId>, _) = (Vec::new(), None);
    for (index, node) in graph.nodes.iter().enumerate() {
        open.retain(|value| last_use[value.0] > index);
        open.extend(node.outputs.iter().filter(|value| last_use[value.0] > index));
        let is_of_features = !matches!(node.op, Op::Normalize(_) | Op::AdaptiveAvgPool(_));
        if let [only] = open[..]
            && is_of_features
            && node.outputs[0] == only
            && matches!(graph.shape(only)[..], [_, height, width, _] if height * width > 1)
        {
            found = Some(only);
        }
    }
    found
}

/// Makes the logits the sums over channels of the map times the means of its gradients.
fn grad_cam(forward: &mut Forward, loss_node: usize, map: ValueId) -> Result<[usize; 2], GraphError> {
    let graph = &mut forward.graph;
    let [n, height, width, channels] = [0, 1, 2, 3].map(|axis| graph.shape(map)[axis]);
    // What follows the loss counts hits. Gradients come after it, in the same phase.
    let recorded = graph.nodes.len();
    let gradient = gradient_of(graph, loss_node, map)?;
    graph.nodes[recorded..].iter_mut().for_each(|node| node.phase = Phase::Loss);
    let gradient = gradient.ok_or_else(|| {
        GraphError::Option("the model's classes do not depend on its last map of features".to_owned())
    })?;
    let weights = append(forward, AdaptiveAvgPool { output: [1, 1] }, &[gradient], [n, 1, 1, channels]);
    let weighted = append(forward, Multiply, &[map, weights], [n, height, width, channels]);
    let rows = append(forward, Reshape, &[weighted], [n * height * width, channels]);
    let sums = append(forward, SumClasses, &[rows], [n * height * width]);
    forward.logits = append(forward, Reshape, &[sums], [n, height * width]);
    Ok([height, width])
}

/// Makes the logits the row of the class token in the product over all blocks of `(A + 1) / 2`, where A is the mean over heads of the
/// probabilities of attention.
///
/// The row `r` goes from the last block to the first: `r (A + 1) / 2`. Since an attention gives `A v`, its gradient with respect to
/// the values is `r A` in each channel where that of its result is `r`, and no matrix is stored.
fn attention_rollout(forward: &mut Forward) -> Result<[usize; 2], GraphError> {
    let graph = &forward.graph;
    let refused = || {
        let reason =
            "the model has attention without a class token after it that reads patches, so no attention rollout";
        GraphError::Option(reason.to_owned())
    };
    let nodes = &graph.nodes;
    let attentions: Vec<Node> = nodes.iter().filter(|node| matches!(node.op, Op::Attention(_))).cloned().collect();
    let (first, end) = nodes
        .iter()
        .rev()
        .take_while(|node| !matches!(node.op, Op::Attention(_)))
        .find_map(|node| match (&node.op, &graph.shape(node.outputs[0])[..]) {
            (Op::SelectTokens(select), &[_, 1, _]) => Some((select.first, graph.shape(node.inputs[0])[1])),
            _ => None,
        })
        .ok_or_else(refused)?;
    let patches = nodes.iter().find_map(|node| match (&node.op, &graph.shape(node.inputs[0])[..]) {
        (Op::Reshape(_), &[_, height, width, _]) => Some([height, width]),
        _ => None,
    });
    let [height, width] = patches.filter(|[height, width]| height * width < end).ok_or_else(refused)?;
    let [n, tokens, channels] = [0, 1, 2].map(|axis| graph.shape(attentions[0].outputs[0])[axis]);
    if tokens != end || attentions.iter().any(|node| graph.shape(node.outputs[0])[1] != tokens) {
        return Err(refused());
    }
    // 1 at the class token.
    let one = append(forward, SampleSumBackward(SampleSum { scale: 1.0 }), &[forward.labels], [n]);
    let one = append(forward, Reshape, &[one], [n, 1, 1]);
    let row = append(forward, SelectTokensBackward { first }, &[one], [n, tokens, 1]);
    let mut row = append(forward, Reshape, &[row], [n * tokens]);
    for Node { op, inputs, outputs, .. } in attentions.into_iter().rev() {
        let Op::Attention(Attention { heads }) = op else { continue };
        let everywhere = append(forward, SumClassesBackward, &[row], [n * tokens, channels]);
        let everywhere = append(forward, Reshape, &[everywhere], [n, tokens, channels]);
        let operands = [everywhere, inputs[0], outputs[0], outputs[1]];
        let gradient = append(forward, AttentionBackward { heads }, &operands, [n, tokens, 3 * channels]);
        // Queries, keys and values of each token.
        let gradient = append(forward, Reshape, &[gradient], [n * tokens, 3, channels]);
        let of_values = append(forward, SelectTokens { first: 2 }, &[gradient], [n * tokens, 1, channels]);
        let of_values = append(forward, Reshape, &[of_values], [n * tokens, channels]);
        let attended = append(forward, SumClasses, &[of_values], [n * tokens]);
        let half = |scale| Function::Affine { scale, shift: 0.0 };
        let attended = append(forward, half(0.5 / channels as f32), &[attended], [n * tokens]);
        let kept = append(forward, half(0.5), &[row], [n * tokens]);
        row = append(forward, Add, &[attended, kept], [n * tokens]);
    }
    let row = append(forward, Reshape, &[row], [n, tokens, 1]);
    let cells = height * width;
    let row = append(forward, SelectTokens { first: tokens - cells }, &[row], [n, cells, 1]);
    forward.logits = append(forward, Reshape, &[row], [n, cells]);
    Ok([height, width])
}

/// Appends an operation with one result of this shape.
fn append(forward: &mut Forward, op: impl Into<Op>, inputs: &[ValueId], shape: impl Into<Shape>) -> ValueId {
    let op = op.into();
    let output = forward.graph.add_activation(format!("heatmap.{}", op.name()), shape.into());
    forward.append(op, inputs.into(), output, "heatmap");
    output
}

#[cfg(test)]
#[path = "heatmap_tests.rs"]
mod tests;
