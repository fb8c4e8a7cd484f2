//! Where values lie: the arenas of a plan, and the place of each value in them. Parameters, their gradients and the optimiser's state
//! have the same offsets, in the order in which backward completes the gradients.

use std::collections::{BTreeMap, HashMap};

use crate::builder::Forward;
use crate::options::TREE;
use crate::passes::memory::{place_activations, unshared_bytes};
use crate::passes::precision;
use crate::plan::aligned_bytes;
use crate::{
    Arena, CompileOptions, FilterOrder, Graph, GraphError, Init, Layout, Measured, Mode, Node, Op, Plan, Role, Slot,
    Stage, StateTensor, Value, ValueId,
};

/// Bytes of a value in an arena, including padding.
pub(crate) fn bytes(graph: &Graph, id: ValueId) -> usize {
    aligned_bytes(graph.shape(id), graph.value(id).dtype)
}

/// The gradient arena as `(value, first byte, bytes)`: gradients in the order in which backward completes them, then carried
/// values.
pub(crate) fn gradient_arena(graph: &Graph, gradients: &[(ValueId, ValueId)]) -> Vec<(ValueId, usize, usize)> {
    let written: Vec<ValueId> = graph.nodes.iter().flat_map(|node| node.outputs.iter().copied()).collect();
    let carried =
        graph.ids().filter(|(id, value)| value.role == Role::Carried && written.contains(id)).map(|(id, _)| id);
    let mut start = 0;
    let mut arena = Vec::new();
    for id in gradients.iter().map(|&(_, gradient)| gradient).chain(carried) {
        arena.push((id, start, bytes(graph, id)));
        start += bytes(graph, id);
    }
    arena
}

/// Tensors that outlive a step. `order` lists the parameters at the start of their arena, which are the trainable ones.
pub(crate) fn state_tensors(graph: &Graph, order: &[ValueId]) -> Vec<StateTensor> {
    let mut offsets: HashMap<ValueId, usize> = HashMap::new();
    let rest = graph.parameters().map(|(id, _, _)| id).filter(|id| !order.contains(id));
    let mut offset = 0;
    for id in order.iter().copied().chain(rest) {
        offsets.insert(id, offset);
        offset += bytes(graph, id);
    }
    let tensor = |value: &Value, layout: Layout, slot: Slot, init: Init| {
        let Value { name, shape, dtype, .. } = value.clone();
        StateTensor { name, shape, dtype, layout, slot, init }
    };
    let mut state = Vec::new();
    for (id, value, parameter) in graph.parameters() {
        let slot = Slot { arena: Arena::Parameters, offset: offsets[&id] };
        state.push(tensor(value, parameter.layout, slot, parameter.init));
    }
    let parameter_bytes = offset;
    let mut ends: HashMap<Arena, usize> = HashMap::new();
    for (id, value) in graph.ids() {
        let (arena, layout, initial) = match value.role {
            Role::Buffer { initial } => (Arena::Buffers, Layout::Plain, initial),
            Role::LossScale { initial } => (Arena::LossScale, Layout::Plain, initial),
            Role::Teacher { layout } => (Arena::Teacher, layout, 0.0),
            _ => continue,
        };
        let end = ends.entry(arena).or_default();
        state.push(tensor(value, layout, Slot { arena, offset: *end }, Init::Constant(initial)));
        *end += bytes(graph, id);
    }
    for (_, value) in graph.ids() {
        let (parameter, arena) = match value.role {
            Role::Optimizer { parameter, slot } => (parameter, Arena::Optimizer(slot)),
            Role::Residual { parameter } => (parameter, Arena::Residuals),
            _ => continue,
        };
        let layout = match &graph.value(parameter).role {
            Role::Parameter(parameter) => parameter.layout,
            _ => Layout::Plain,
        };
        state.push(tensor(value, layout, Slot { arena, offset: offsets[&parameter] }, Init::Constant(0.0)));
    }
    let averages = graph.ids().filter_map(|(_, value)| match value.role {
        Role::Average { of } => {
            let of = state.iter().find(|tensor| tensor.name == graph.value(of).name)?;
            let before = if of.slot.arena == Arena::Buffers { parameter_bytes } else { 0 };
            let slot = Slot { arena: Arena::Average, offset: before + of.slot.offset };
            Some(StateTensor { name: value.name.clone(), slot, ..of.clone() })
        }
        _ => None,
    });
    let averages: Vec<StateTensor> = averages.collect();
    state.extend(averages);
    state
}

/// Gives every value its element type and its slot. A value without a place is an error: at an arbitrary place it would
/// overwrite another value.
pub(crate) fn place(
    forward: Forward,
    options: &CompileOptions,
    mode: Mode,
    (loss, correct): (ValueId, Option<ValueId>),
    measured: Vec<Measured>,
    state: &[StateTensor],
    gradients: &[(ValueId, usize, usize)],
) -> Result<Plan, GraphError> {
    let Forward {
        mut graph,
        images,
        labels,
        sample_indices,
        logits,
        mixture,
        targets,
        teacher: _,
        kept,
        stages,
        tensor_parallel,
    } = forward;
    precision(&mut graph, options.precision);
    let is_of_gradients = |node: &&Node| matches!(node.op, Op::GradientNorm(_) | Op::Unscale(_));
    let of_gradients = graph.nodes.iter().filter(is_of_gradients).map(|node| node.outputs[0]);
    let values = measured.iter().map(|metric| metric.value);
    let keep: Vec<ValueId> = [logits, loss]
        .into_iter()
        .chain(correct)
        .chain(values)
        .chain(of_gradients)
        .chain(kept.iter().copied())
        .collect();
    let (activations, activation_bytes) = place_activations(&graph, &keep);
    let state_slots: HashMap<&str, Slot> = state.iter().map(|tensor| (tensor.name.as_str(), tensor.slot)).collect();
    let gradient_slots: HashMap<ValueId, usize> = gradients.iter().map(|&(id, start, _)| (id, start)).collect();
    let mut input_bytes = 0;
    let slots: Vec<Slot> = (graph.ids())
        .map(|(id, value)| {
            // In evaluation the name may be that of an average, which lies in another arena.
            let of_state =
                |arena| state_slots.get(value.name.as_str()).map_or((arena, None), |s| (s.arena, Some(s.offset)));
            let (arena, offset) = match &value.role {
                Role::Input => {
                    input_bytes += aligned_bytes(&value.shape, value.dtype);
                    (Arena::Input, Some(input_bytes - aligned_bytes(&value.shape, value.dtype)))
                }
                Role::Parameter(_) => of_state(Arena::Parameters),
                Role::Buffer { .. } => of_state(Arena::Buffers),
                Role::Optimizer { slot, .. } => of_state(Arena::Optimizer(*slot)),
                Role::Average { .. } => of_state(Arena::Average),
                Role::LossScale { .. } => of_state(Arena::LossScale),
                Role::Residual { .. } => of_state(Arena::Residuals),
                Role::Teacher { .. } => of_state(Arena::Teacher),
                Role::Gradient { .. } | Role::Carried => (Arena::Gradients, gradient_slots.get(&id).copied()),
                Role::Activation if value.in_cache => (Arena::Cache, Some(0)),
                Role::Activation => (Arena::Activations, activations[id.0]),
            };
            let unplaced = || GraphError::Unplaced { name: value.name.clone(), arena };
            Ok(Slot { arena, offset: offset.ok_or_else(unplaced)? })
        })
        .collect::<Result<_, GraphError>>()?;
    let gradient_bytes = gradients.last().map_or(0, |&(_, start, bytes)| start + bytes);
    let mut arenas =
        vec![(Arena::Input, input_bytes), (Arena::Activations, activation_bytes), (Arena::Gradients, gradient_bytes)];
    for tensor in state {
        let end = tensor.slot.offset + aligned_bytes(&tensor.shape, tensor.dtype);
        match arenas.iter_mut().find(|(arena, _)| *arena == tensor.slot.arena) {
            Some((_, bytes)) => *bytes = end.max(*bytes),
            None => arenas.push((tensor.slot.arena, end)),
        }
    }
    arenas.retain(|&(arena, bytes)| bytes > 0 && slots.iter().any(|slot| slot.arena == arena));
    arenas.sort_unstable();
    Ok(Plan {
        model: options.model.clone(),
        mode,
        batch: options.batch,
        classes: options.classes,
        shards: options.shards,
        stage: stages.map(|stages| Stage::of(&stages.cut)),
        tensor_parallel,
        precision: options.precision,
        filters: FilterOrder::default(),
        unshared_activations: unshared_bytes(&graph),
        recomputed: None,
        values: graph.values,
        slots,
        instructions: graph.nodes,
        algorithms: BTreeMap::new(),
        all_reduce: TREE,
        buckets: Vec::new(),
        partition: None,
        trainable: 0,
        arenas,
        images,
        labels,
        sample_indices,
        mixture,
        targets,
        loss_weight: None,
        logits,
        metrics: None,
        loss,
        correct,
        measured,
        kept,
    })
}
