//! The convolutions of every model's training step, and the GPUs for which they are planned.

use std::collections::BTreeSet;

use enmasse_cuda::cudnn::{Direction, Epilogue, Options, Problem};
use enmasse_cuda::roofline::target;
use enmasse_graph::ops::{Conv2dBackwardData, Conv2dBackwardWeights};
use enmasse_graph::{CompileOptions, Op, Precision, ValueId};
use enmasse_models::Model;
use serde_json::{Map, Value};

/// Samples of a batch.
pub const BATCH: usize = 128;

/// What is asked of an engine.
pub const OPTIONS: Options = Options { deterministic: true, exact: false, workspace: 4 << 30, candidates: 1 };

/// All precisions of a step.
pub const ARITHMETICS: [Precision; 4] = [Precision::F32, Precision::Tf32, Precision::Bf16, Precision::F16];

/// Every GPU, by name, as cuDNN wants it described.
pub fn gpus() -> Vec<(String, String)> {
    let gpus: Map<String, Value> = serde_json::from_str(include_str!("gpus.json")).expect("an object of GPUs");
    let default = &gpus["every GPU"];
    let described = gpus.iter().filter(|(name, _)| *name != "every GPU").map(|(name, own)| {
        let mut properties = default.as_object().expect("properties").clone();
        properties.extend(own.as_object().expect("properties").clone());
        (name.clone(), Value::Object(properties).to_string())
    });
    described.collect()
}

/// The convolutions of a model's training step in this precision, each distinct one once.
pub fn convolutions(model: &Model, arithmetic: Precision) -> Vec<Problem> {
    let precision = arithmetic;
    let options = CompileOptions { precision, ..CompileOptions::new(model.name(), BATCH, model.size(), 1000) };
    let plans = target().compile(&|x| model.forward(x, 1000), &options).expect("a plan");
    let plan = plans.train.expect("a training step");
    let mut seen = BTreeSet::new();
    let problems = plan.instructions.iter().filter_map(|node| {
        let shape = |id: ValueId| -> [usize; 4] {
            let shape = &plan.values[id.0].shape;
            std::array::from_fn(|axis| shape[axis])
        };
        let inputs = &node.inputs;
        let output = node.outputs.first()?;
        let (direction, x, w, y, conv) = match &node.op {
            Op::Conv2d(conv) => (
                Direction::Forward(if inputs.len() > 2 { Epilogue::Bias } else { Epilogue::None }),
                shape(inputs[0]),
                shape(inputs[1]),
                shape(*output),
                conv,
            ),
            Op::Conv2dBackwardData(Conv2dBackwardData(conv)) => {
                let accumulate = inputs.len() > 2;
                (Direction::BackwardData { accumulate }, shape(*output), shape(inputs[1]), shape(inputs[0]), conv)
            }
            Op::Conv2dBackwardWeights(Conv2dBackwardWeights(conv)) => {
                (Direction::BackwardWeights, shape(inputs[0]), shape(*output), shape(inputs[1]), conv)
            }
            _ => return None,
        };
        // Images may have channels of zeros, for which the program gives the weights zeros.
        let w = [w[0], w[1], w[2], x[3] / conv.groups];
        let problem = Problem { direction, x, w, y, conv: *conv, arithmetic };
        seen.insert(problem.to_string()).then_some(problem)
    });
    problems.collect()
}
