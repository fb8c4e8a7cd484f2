//! Convolution over images, and its two gradients: by an engine of cuDNN, with kernels around it for what the engine does not
//! take.
//!
//! Weights that multiply 16-bit activations are rounded once a step, all at once; those of images with channels of zeros get zeros, too,
//! and their gradient loses what it has for these channels. A ReLU after a bias is computed by the same engine,
//! where nothing else reads the convolution's result.

use std::ptr;
use std::sync::Arc;

use enmasse_graph::ops::{Conv2d, Conv2dBackwardData, Conv2dBackwardWeights};
use enmasse_graph::{Activation, Arena, Node, Op, Plan, ValueId};
use enmasse_tensor::DType;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::CudaError;
use crate::cudnn::{ConvolutionPlan, Direction, Epilogue, Problem};
use crate::engines::Engines;
use crate::kernels::rows::Rows;
use crate::kernels::{bias, blocks, elementwise, kernel};
use crate::lower::{Places, arithmetic, scratch, unsupported};
use crate::sequence::{Call, LibraryCall};
use crate::work::Argument::{Read, U32, U64, Write};
use crate::work::{Kernel, Memory, Place, Span};

/// Workspaces begin at multiples of this many bytes.
pub(super) const ALIGNMENT: usize = 256;

/// Where the parameters of a teacher are.
const TEACHER: Memory = Memory::Arena(Arena::Teacher);

impl OnCuda for Conv2d {
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        let engine = engine(o, lowering)?;
        let (x, y, bias) = (o.input(0), o.output(0), o.optional(2));
        let channels = input_channels(o, o.node.inputs[1], &engine);
        let (mut calls, w, used) = if channels[0] == channels[1] {
            (Vec::new(), multiplied(o, o.input(1)), 0)
        } else {
            let padded = padded_weights(&engine);
            let pad = columns([DType::F32, engine.weights], channels, o.input(1), padded);
            (vec![Call::Kernel(pad)], padded, padded.bytes)
        };
        if engine.problem().direction != Direction::Forward(Epilogue::None) {
            calls.push(call(&engine, [x, w, y], bias.map(|bias| multiplied(o, bias)), used));
            return Ok(computed(calls));
        }
        calls.push(call(&engine, [x, w, y], None, used));
        if let Some(bias) = bias {
            let [n, h, w, channels] = engine.problem().y;
            let size = Rows { rows: n * h * w, channels, dtype: o.activations() };
            calls.push(Call::Kernel(bias::bias(size, y, bias, y)));
        }
        Ok(computed(calls))
    }
}

impl OnCuda for Conv2dBackwardData {
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        let engine = engine(o, lowering)?;
        let dy = o.input(0);
        let w = multiplied(o, o.input(1));
        let dx = o.output(0);
        let adds = engine.problem().direction == (Direction::BackwardData { accumulate: true });
        let Some(base) = o.optional(2).filter(|_| !adds) else {
            return Ok(computed([call(&engine, [dx, w, dy], None, 0)]));
        };
        // The engine must not write over what is still to be added.
        let (alone, used) = if base.place == dx.place { (scratch(0, dx.bytes), dx.bytes) } else { (dx, 0) };
        let add = elementwise::add(o.activations(), alone, base, dx);
        Ok(computed([call(&engine, [alone, w, dy], None, used), Call::Kernel(add)]))
    }
}

impl OnCuda for Conv2dBackwardWeights {
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        let engine = engine(o, lowering)?;
        let (x, dy, dw) = (o.input(0), o.input(1), o.output(0));
        let [own, written] = input_channels(o, o.node.outputs[0], &engine);
        if own != written {
            let padded = padded_weights(&engine);
            let cut = columns([engine.weights, DType::F32], [written, own], padded, dw);
            return Ok(computed([call(&engine, [x, padded, dy], None, padded.bytes), Call::Kernel(cut)]));
        }
        if engine.weights == DType::F32 {
            return Ok(computed([call(&engine, [x, dw, dy], None, 0)]));
        }
        if let Some(narrow) = lowering.widen_later(dw) {
            return Ok(computed([call(&engine, [x, narrow, dy], None, 0)]));
        }
        let narrow = scratch(0, dw.bytes / 2);
        let cast = elementwise::cast(o.activations(), narrow, DType::F32, dw);
        Ok(computed([call(&engine, [x, narrow, dy], None, narrow.bytes), Call::Kernel(cast)]))
    }
}

/// Input channels of weights or of their gradient, and those of the engine's, which are more where images have channels of zeros.
fn input_channels(o: &Operands, weights: ValueId, engine: &ConvolutionPlan) -> [usize; 2] {
    [o.plan.shape(weights).last(), engine.problem().w[3]]
}

/// The engine's weights or their gradient, with those of channels of zeros.
fn padded_weights(engine: &ConvolutionPlan) -> Span {
    scratch(0, engine.problem().w.iter().product::<usize>() * engine.weights.size())
}

/// Rows of so many columns with other numbers of columns: without the last ones, or with zeros for further ones.
fn columns([read, written]: [DType; 2], [before, after]: [usize; 2], from: Span, to: Span) -> Kernel {
    let elements = to.bytes / written.size();
    let arguments = vec![Read(from), Write(to), U64(elements as u64), U32(before as u32), U32(after as u32)];
    kernel(format!("columns_{read}_to_{written}"), blocks(elements), arguments)
}

/// The kernels that round the weights that convolutions and linear layers multiply with narrower activations, and the biases that
/// they add, if there are any: one for the model and one for its teacher.
pub(crate) fn round_weights(plan: &Plan, places: &Places) -> impl Iterator<Item = Kernel> + use<> {
    let activations = plan.precision.activations();
    let is_narrow = |id: &ValueId| plan.value(*id).dtype != DType::F32;
    let multiplied = plan.instructions.iter().flat_map(|node| match (&node.op, &node.inputs[..], &node.outputs[..]) {
        // A bias that an engine adds has the type of the result.
        (Op::Conv2d(_) | Op::LinearForward(_), [_, w, bias @ ..], [y]) if is_narrow(y) => {
            [w].into_iter().chain(bias).collect()
        }
        (Op::LinearForward(_), [x, w, ..], _) if is_narrow(x) => vec![w],
        _ => Vec::new(),
    });
    let (of_teacher, own): (Vec<Span>, Vec<Span>) =
        multiplied.map(|&id| places.span(plan, id, 0)).partition(|span| span.place.memory == TEACHER);
    let wholes = [own, of_teacher].into_iter().filter_map(|spans| spans.into_iter().reduce(Span::hull));
    wholes.map(move |whole| elementwise::cast(DType::F32, whole, activations, rounded(whole)))
}

/// Weights as they are multiplied, or biases as engines add them, for the place of an f32 parameter, of its average or of a teacher's.
fn rounded(span: Span) -> Span {
    let memory = if span.place.memory == TEACHER { Memory::RoundedTeacher } else { Memory::Rounded };
    Span { place: Place { memory, offset: span.place.offset / 2 }, bytes: span.bytes / 2 }
}

/// Weights as they are multiplied, or a bias as an engine adds it.
pub(super) fn multiplied(o: &Operands, weights: Span) -> Span {
    if o.activations() == DType::F32 { weights } else { rounded(weights) }
}

fn engine(o: &Operands, lowering: &Lowering) -> Result<Arc<ConvolutionPlan>, CudaError> {
    convolution_of(o.plan, o.node, o.chosen, &lowering.gpu.engines)?.ok_or_else(|| o.unsupported())
}

/// The call of an engine, whose workspace comes after `used` bytes of scratch.
fn call(engine: &ConvolutionPlan, [x, w, y]: [Span; 3], bias: Option<Span>, used: usize) -> Call {
    let workspace = scratch(used.next_multiple_of(ALIGNMENT), usize::try_from(engine.workspace).unwrap_or(usize::MAX));
    Call::Convolution(LibraryCall { problem: *engine.problem(), engine: engine.name(), x, w, y, bias, workspace })
}

/// Whether an engine may add the bias of a convolution. cuDNN's engines for depthwise convolutions of 16 bits do not, and those that
/// take any groups are slow.
fn adds_bias(plan: &Plan, conv: &Conv2d, node: &Node) -> bool {
    let is_wide = || node.outputs.iter().all(|&id| plan.value(id).dtype == DType::F32);
    matches!((&node.inputs[..], &node.outputs[..]), ([_, _, _], [_])) && (conv.groups == 1 || is_wide())
}

/// Whether an engine may compute a ReLU with the convolution before it: the ReLU writes over the convolution's result, so
/// nothing else reads that.
pub(crate) fn may_take_relu(plan: &Plan, convolution: &Node, relu: &Node) -> bool {
    let (Op::Conv2d(conv), Op::Activation(Activation::Relu)) = (&convolution.op, &relu.op) else { return false };
    let (y, activated) = (convolution.outputs[0], relu.outputs[0]);
    adds_bias(plan, conv, convolution) && relu.inputs[0] == y && plan.slot(y) == plan.slot(activated)
}

/// Whether the engine of the convolution before a ReLU computes it.
pub(super) fn takes_relu(o: &Operands, engines: &Engines) -> Result<bool, CudaError> {
    let mut pairs = o.plan.instructions.windows(2);
    let before = pairs.find(|pair| ptr::eq(&pair[1], o.node)).map(|pair| &pair[0]);
    let Some(convolution) = before.filter(|before| may_take_relu(o.plan, before, o.node)) else { return Ok(false) };
    let problem = problem_of(o.plan, convolution, engines)?;
    Ok(problem.is_some_and(|problem| problem.direction == Direction::Forward(Epilogue::BiasRelu)))
}

/// What cuDNN does for a convolution, or for one of its gradients. `None` for another operation.
fn problem_of(plan: &Plan, node: &Node, engines: &Engines) -> Result<Option<Problem>, CudaError> {
    let Node { inputs, outputs, .. } = node;
    // What the engine would rather do, in this order, and what it does if cuDNN does not take that.
    let (conv, fused, plain) = match node.op {
        Op::Conv2d(conv) if outputs.len() == 1 => {
            let mut pairs = plan.instructions.windows(2);
            let next = pairs.find(|pair| ptr::eq(&pair[0], node)).map(|pair| &pair[1]);
            let relu = next.is_some_and(|next| may_take_relu(plan, node, next)).then_some(Epilogue::BiasRelu);
            let bias = adds_bias(plan, &conv, node).then_some(Epilogue::Bias);
            (conv, [relu, bias].map(|epilogue| epilogue.map(Direction::Forward)), Direction::Forward(Epilogue::None))
        }
        // Add to what the result's place holds, if that is to be added.
        Op::Conv2dBackwardData(Conv2dBackwardData(conv)) => {
            let adds = inputs.get(2).map(|&base| plan.slot(base)) == outputs.first().map(|&dx| plan.slot(dx));
            let fused = adds.then_some(Direction::BackwardData { accumulate: true });
            (conv, [fused, None], Direction::BackwardData { accumulate: false })
        }
        Op::Conv2dBackwardWeights(Conv2dBackwardWeights(conv)) => (conv, [None; 2], Direction::BackwardWeights),
        _ => return Ok(None),
    };
    for direction in fused.into_iter().flatten() {
        let problem = convolution_problem(plan, node, conv, direction)?;
        if engines.convolution(&problem).is_ok_and(|engine| !engine.is_fallback) {
            return Ok(Some(problem));
        }
    }
    convolution_problem(plan, node, conv, plain).map(Some)
}

/// The engine of a convolution, or of one of its gradients: the one with a chosen name, or the best by cuDNN's estimate. `None` for
/// another operation.
pub(crate) fn convolution_of(
    plan: &Plan,
    node: &Node,
    chosen: Option<&str>,
    engines: &Engines,
) -> Result<Option<Arc<ConvolutionPlan>>, CudaError> {
    let Some(problem) = problem_of(plan, node, engines)? else { return Ok(None) };
    let Some(name) = chosen else { return engines.convolution(&problem).map(Some) };
    engines.named(&problem, name).map(Some).map_err(|error| {
        let layer = &node.layer;
        let name = name.escape_default();
        CudaError::Unsupported(format!(
            "layer {layer}: the engine {name} was chosen on another GPU or by another cuDNN, and is refused here \
             ({error}): continue with `tune = false`, or start a new run"
        ))
    })
}

/// A convolution, or one of its gradients, as cuDNN states it.
fn convolution_problem(plan: &Plan, node: &Node, conv: Conv2d, direction: Direction) -> Result<Problem, CudaError> {
    let Node { inputs, outputs, .. } = node;
    let unsupported = || unsupported(plan, node);
    let [x, w, y] = match direction {
        Direction::Forward(_) => [inputs.first(), inputs.get(1), outputs.first()],
        Direction::BackwardData { .. } => [outputs.first(), inputs.get(1), inputs.first()],
        Direction::BackwardWeights => [inputs.first(), outputs.first(), inputs.get(1)],
    };
    let shape = |id: Option<&ValueId>| {
        let shape = plan.shape(*id.ok_or_else(unsupported)?);
        <[usize; 4]>::try_from(&shape[..]).map_err(|_| unsupported())
    };
    let arithmetic = arithmetic(plan, node, x)?;
    let (x, [outputs, height, width, _]) = (shape(x)?, shape(w)?);
    // Images may have channels of zeros, which the plan's weights do not have.
    let w = [outputs, height, width, x[3] / conv.groups];
    Ok(Problem { direction, x, w, y: shape(y)?, conv, arithmetic })
}

#[cfg(test)]
#[path = "conv2d_tests.rs"]
mod tests;
