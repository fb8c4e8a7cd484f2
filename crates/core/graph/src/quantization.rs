//! What inference with integers of 8 bits rounds: the activations that convolutions, linear layers and sums read.
//!
//! Their ranges are found by running images through a plan that keeps these activations ([`Target::compile_calibration`]).

use crate::builder::Forward;
use crate::compile::evaluation_plan;
use crate::placement::state_tensors;
use crate::{CompileOptions, GraphError, Mode, Op, Plans, Precision, Target, Tensor, ValueId};

/// The operands of convolutions and linear layers, without weights and biases, and those of sums, in the order in which a forward pass
/// reads them first.
pub fn quantized_values(forward: &Forward) -> Vec<ValueId> {
    let mut values = Vec::new();
    for node in &forward.graph.nodes {
        let operands = match node.op {
            Op::Conv2d(_) | Op::LinearForward(_) => &node.inputs[..1],
            Op::Add(_) => &node.inputs[..],
            _ => &[],
        };
        for operand in operands {
            if !values.contains(operand) {
                values.push(*operand);
            }
        }
    }
    values
}

impl Target<'_> {
    /// Compiles an evaluation step that keeps [`quantized_values`], in f32 and without fusing, so that each of them is computed. The
    /// loss and metrics of the options do not matter.
    ///
    /// # Errors
    /// If the model or an option is wrong.
    ///
    /// ```
    /// use enmasse_graph::{CompileOptions, Target, Tensor};
    /// let model = |x: Tensor| x.flatten().linear("fc1", 20).relu().linear("fc2", 10);
    /// let plans = Target::default().compile_calibration(&model, &CompileOptions::new("net", 1, 4, 10)).unwrap();
    /// let plan = &plans.evaluate;
    /// let shapes: Vec<_> = plan.kept.iter().map(|&value| plan.shape(value).to_vec()).collect();
    /// assert_eq!(shapes, [[1, 48], [1, 20]]);
    /// ```
    pub fn compile_calibration(
        &self,
        model: &dyn Fn(Tensor) -> Tensor,
        options: &CompileOptions,
    ) -> Result<Plans, GraphError> {
        let options = CompileOptions { metrics: Vec::new(), precision: Precision::F32, fuse: false, ..options.clone() };
        options.check()?;
        let mut forward = self.record(model, &options, Mode::Evaluate)?;
        forward.kept = quantized_values(&forward);
        let parameters: Vec<ValueId> = forward.graph.parameters().map(|(id, _, _)| id).collect();
        let state = state_tensors(&forward.graph, &parameters);
        let evaluate = evaluation_plan(forward, &options, &state)?;
        Ok(self.plans(None, evaluate, state))
    }
}
