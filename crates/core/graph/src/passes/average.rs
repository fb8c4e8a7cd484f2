//! Averages of the weights over the steps (`--ema`, `--lookahead`): the training step updates them,
//! and evaluation uses them instead of the weights.
//!
//! They have an arena of their own, with a place for every parameter and buffer. Evaluation is a
//! plan that reads them. A checkpoint holds both, the averages as `ema.NAME`, and every command
//! that uses a checkpoint's weights takes the averages.

use crate::ops::{Average, Lookahead};
use crate::{Graph, GraphError, Node, Op, Phase, Role, Scaling, ValueId};

/// How a second copy of weights and running statistics follows them.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Averaging {
    /// A moving average, of which each step keeps this share.
    Ema(f32),
    /// The slow weights of Lookahead.
    Lookahead,
}

/// Prefix of an average's name, before the name of the parameter or buffer.
pub const AVERAGE_PREFIX: &str = "ema.";

/// Appends the averages of all parameters and buffers to a training step, whose loss is scaled if there is `scaling`.
pub(crate) fn add_averages(
    graph: &mut Graph,
    averaging: Averaging,
    scaling: Option<Scaling<ValueId>>,
) -> Result<(), GraphError> {
    let averaged: Vec<ValueId> = averaged(graph).collect();
    let mut inputs = averaged.clone();
    for of in averaged {
        let value = graph.value(of);
        let name = format!("{AVERAGE_PREFIX}{}", value.name);
        let shape = value.shape.clone();
        let dtype = value.dtype;
        inputs.push(graph.add_value(name, shape, dtype, Role::Average { of }));
    }
    let op: Op = match averaging {
        Averaging::Ema(decay) if !(0.0..1.0).contains(&decay) => {
            let reason = format!("the decay of averages must be at least 0 and below 1, got {decay}");
            return Err(GraphError::Option(reason));
        }
        Averaging::Ema(decay) => {
            inputs.extend(scaling.into_iter().flat_map(|scaling| [scaling.unscale, scaling.skipped_steps]));
            Average { decay, scaled: scaling.is_some() }.into()
        }
        Averaging::Lookahead => Lookahead.into(),
    };
    graph.nodes.push(Node::new(op, inputs, [], Phase::Update, "step"));
    Ok(())
}

/// Makes an evaluation graph read the averages.
pub(crate) fn read_averages(graph: &mut Graph) {
    for id in averaged(graph).collect::<Vec<_>>() {
        let name = &mut graph.values[id.0].name;
        *name = format!("{AVERAGE_PREFIX}{name}");
    }
}

/// The values that are averaged: parameters and buffers.
fn averaged(graph: &Graph) -> impl Iterator<Item = ValueId> {
    graph.ids().filter(|(_, value)| matches!(value.role, Role::Parameter(_) | Role::Buffer { .. })).map(|(id, _)| id)
}

#[cfg(test)]
mod tests {
    use crate::ops::{Average, Lookahead};
    use crate::{Arena, Averaging, CompileOptions, Conv, Plans, Tensor, compile};

    fn plans(average: Option<Averaging>) -> Plans {
        let net = |x: Tensor| x.conv2d("conv", Conv::new(8, 3)).batch_norm("bn").flatten().linear("fc", 10);
        compile(&net, &CompileOptions { average, ..CompileOptions::new("net", 2, 4, 10) }).unwrap()
    }

    #[test]
    fn every_parameter_and_buffer_has_an_average_at_its_offset() {
        let plans = plans(Some(Averaging::Ema(0.5)));
        let parameters = plans.arena_bytes(Arena::Parameters);
        let mut count = 0;
        for tensor in &plans.state {
            let Some(average) = plans.find(&format!("ema.{}", tensor.name)) else {
                assert!(tensor.name.starts_with("optimizer.") || tensor.name.starts_with("ema."), "{}", tensor.name);
                continue;
            };
            let before = if tensor.slot.arena == Arena::Buffers { parameters } else { 0 };
            assert_eq!((average.slot.arena, average.slot.offset), (Arena::Average, before + tensor.slot.offset));
            assert_eq!((&average.shape, average.layout), (&tensor.shape, tensor.layout));
            count += 1;
        }
        assert_eq!(count, 8);
        assert_eq!(plans.arena_bytes(Arena::Average), parameters + plans.arena_bytes(Arena::Buffers));
        let last = plans.train.as_ref().unwrap().instructions.last().unwrap();
        assert_eq!((&last.op, last.inputs.len()), (&Average { decay: 0.5, scaled: false }.into(), 16));
    }

    #[test]
    fn evaluation_reads_only_the_averages() {
        let arenas = |plans: &Plans| -> Vec<Arena> { plans.evaluate.arenas.iter().map(|(arena, _)| *arena).collect() };
        assert_eq!(arenas(&plans(Some(Averaging::Ema(0.5)))), [Arena::Input, Arena::Average, Arena::Activations]);
        let without = [Arena::Input, Arena::Parameters, Arena::Buffers, Arena::Activations];
        assert_eq!(arenas(&plans(None)), without);
        assert!(plans(Some(Averaging::Lookahead)).evaluate.to_string().contains("ema.conv.weight, ema.conv.bias)"));
    }

    #[test]
    fn lookahead_changes_values_and_slow_weights() {
        let plans = plans(Some(Averaging::Lookahead));
        let last = plans.train.as_ref().unwrap().instructions.last().unwrap();
        assert_eq!((&last.op, last.inputs.len(), last.op.changes(16)), (&Lookahead.into(), 16, 0..16));
    }

    #[test]
    fn an_invalid_decay_is_refused() {
        let net = |x: Tensor| x.flatten().linear("fc", 10);
        for wrong in [-0.1, 1.0, f32::NAN] {
            let options =
                CompileOptions { average: Some(Averaging::Ema(wrong)), ..CompileOptions::new("net", 2, 4, 10) };
            let error = compile(&net, &options).unwrap_err().to_string();
            assert_eq!(error, format!("the decay of averages must be at least 0 and below 1, got {wrong}"));
        }
    }
}
