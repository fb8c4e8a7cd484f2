//! Cuts a recorded step at named layers: what one stage computes stays, and values that cross a cut become instructions that send and
//! receive them.
//!
//! The whole step is recorded, fused and differentiated first, and only then cut. So every stage runs instructions of the whole
//! model's plan, in their order, with the same bits. A value that several stages need passes through those between. Backward goes
//! the other way: the gradients that the later stages have added up arrive, and the stage's own are added to them, which is the
//! order of the whole.

use std::collections::HashMap;

use crate::builder::Forward;
use crate::ops::{ReceiveFrom, SendTo, Zeros};
use crate::{Graph, GraphError, Node, Phase, Precision, Role, StageCut, ValueId};

/// The stage of each layer of a recorded model.
#[derive(Clone, Debug)]
pub(crate) struct LayerStages {
    pub cut: StageCut,
    of_layer: HashMap<String, usize>,
}

/// A value that other stages than its own need.
struct Crossing {
    value: ValueId,
    from: usize,
    /// The stage that is farthest.
    to: usize,
}

impl LayerStages {
    /// An error if a stage begins at a layer that the model does not have at this place.
    pub fn new(graph: &Graph, cut: &StageCut) -> Result<Self, GraphError> {
        let mut of_layer = HashMap::new();
        let mut stage = 0;
        for node in graph.nodes.iter().filter(|node| node.phase == Phase::Forward) {
            let begins = |name: &String| {
                node.layer.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            stage += usize::from(cut.begins.get(stage).is_some_and(begins));
            match of_layer.insert(node.layer.clone(), stage) {
                Some(earlier) if earlier != stage => {
                    let layer = &node.layer;
                    let reason =
                        format!("layer {layer} would be in stages {earlier} and {stage}: cut before or after it");
                    return Err(GraphError::Option(reason));
                }
                _ => {}
            }
        }
        match cut.begins.get(stage) {
            None => Ok(LayerStages { cut: cut.clone(), of_layer }),
            Some(missing) => {
                let mut modules: Vec<&str> = Vec::new();
                let named = graph.parameters().filter_map(|(_, value, _)| value.name.split('.').next());
                named.for_each(|name| {
                    if modules.last() != Some(&name) {
                        modules.push(name)
                    }
                });
                let place = stage.checked_sub(1).map_or(String::new(), |last| format!(" after {}", cut.begins[last]));
                let known = modules.join(", ");
                let reason =
                    format!("a stage cannot begin at {missing}: the model has no such layer{place} (it has {known})");
                Err(GraphError::Option(reason))
            }
        }
    }

    /// Values of a forward graph that other stages need. Fusing must leave them.
    pub fn crossing(&self, graph: &Graph) -> Vec<ValueId> {
        let producers = graph.producers();
        let mut crossing = Vec::new();
        for node in graph.nodes.iter().filter(|node| node.phase == Phase::Forward) {
            let other = |id: &ValueId| producers[id.0].is_some_and(|at| self.of(&graph.nodes[at]) != self.of(node));
            crossing.extend(node.inputs.iter().copied().filter(other));
        }
        crossing
    }

    /// The stage of a node. What the loss adds belongs to the last one.
    fn of(&self, node: &Node) -> usize {
        let last = self.cut.begins.len();
        if node.phase == Phase::Loss { last } else { self.of_layer.get(&node.layer).copied().unwrap_or(last) }
    }

    /// The stage of each parameter and running statistic.
    fn owners(&self, graph: &Graph) -> Result<HashMap<ValueId, usize>, GraphError> {
        let mut owners = HashMap::new();
        for node in &graph.nodes {
            let is_state = |id: &ValueId| matches!(graph.value(*id).role, Role::Parameter(_) | Role::Buffer { .. });
            for &id in node.inputs.iter().filter(|id| is_state(id)) {
                let stage = self.of(node);
                let name = &graph.value(id).name;
                match owners.insert(id, stage) {
                    Some(other) if other != stage => {
                        let reason = format!("stages {other} and {stage} both need {name}: cut the model elsewhere");
                        return Err(GraphError::Option(reason));
                    }
                    _ => {}
                }
            }
        }
        Ok(owners)
    }

    /// The values that cross cuts, in the order in which they are computed: those of forward, and those of backward.
    fn crossings(&self, graph: &Graph) -> Result<[Vec<Crossing>; 2], GraphError> {
        let mut users: HashMap<ValueId, Vec<&Node>> = HashMap::new();
        for node in &graph.nodes {
            node.inputs.iter().for_each(|&id| users.entry(id).or_default().push(node));
        }
        let mut crossings = [Vec::new(), Vec::new()];
        for node in &graph.nodes {
            let from = self.of(node);
            for &value in &node.outputs {
                let others = users.get(&value).into_iter().flatten().filter(|user| self.of(user) != from);
                let forward = node.phase == Phase::Forward;
                let mut to = from;
                for user in others {
                    let stage = self.of(user);
                    if (stage > from) != forward || graph.value(value).in_cache {
                        let (layer, other) = (&node.layer, &user.layer);
                        let reason = format!(
                            "layer {other} in stage {stage} cannot take {} of layer {layer} in stage {from}: cut the model elsewhere",
                            graph.value(value).name
                        );
                        return Err(GraphError::Option(reason));
                    }
                    to = if forward { to.max(stage) } else { to.min(stage) };
                }
                if to != from {
                    crossings[usize::from(!forward)].push(Crossing { value, from, to });
                }
            }
        }
        Ok(crossings)
    }
}

/// What a step keeps of its values beside its nodes.
pub(crate) struct Kept<'a> {
    /// What the last stage computes, and is zero on the others: loss, hits and metrics.
    pub results: Vec<&'a mut ValueId>,
    /// Inputs that come with each batch.
    pub inputs: Vec<&'a mut ValueId>,
    /// In training the parameters with their gradients, of which those of the stage stay.
    pub gradients: Option<&'a mut Vec<(ValueId, ValueId)>>,
}

/// Leaves the part of its own stage of a step that is recorded with its loss and its gradients, if it is cut.
pub(crate) fn cut_stages(forward: &mut Forward, precision: Precision, kept: Kept) -> Result<(), GraphError> {
    let Some(stages) = forward.stages.clone() else { return Ok(()) };
    let graph = &mut forward.graph;
    let own = stages.cut.index;
    let last = stages.cut.begins.len();
    let owners = stages.owners(graph)?;
    let [forwards, backwards] = stages.crossings(graph)?;
    let bytes = |graph: &Graph, id: ValueId| {
        let value = graph.value(id);
        let dtype = if value.has_precision() { precision.activations() } else { value.dtype };
        value.shape.elements() * dtype.size()
    };
    let send = |graph: &Graph, id: ValueId, stage: usize, phase: Phase| {
        Node::new(SendTo { stage, bytes: bytes(graph, id) }, [id], [], phase, format!("stage {stage}"))
    };
    let mut nodes = Vec::new();
    let mut sent: HashMap<ValueId, Vec<Node>> = HashMap::new();
    for (crossings, phase) in [(&forwards, Phase::Forward), (&backwards, Phase::Backward)] {
        for &Crossing { value, from, to } in crossings {
            let goes_on = phase == Phase::Forward;
            let (before, after) = if goes_on { (own.wrapping_sub(1), own + 1) } else { (own + 1, own.wrapping_sub(1)) };
            let is_beyond = |stage: usize| if goes_on { stage > own } else { stage < own };
            let comes = from != own && !is_beyond(from) && (to == own || is_beyond(to));
            if comes {
                let op = ReceiveFrom { stage: before, bytes: bytes(graph, value) };
                nodes.push(Node::new(op, [], [value], phase, format!("stage {before}")));
            }
            if is_beyond(to) && (comes || from == own) {
                let send = send(graph, value, after, phase);
                if comes { nodes.push(send) } else { sent.entry(value).or_default().push(send) }
            }
        }
    }
    for mut node in std::mem::take(&mut graph.nodes) {
        if stages.of(&node) != own {
            continue;
        }
        // The memory of what is carried with the gradients is that of the micro-batch whose backward runs.
        if node.phase < Phase::Backward && node.outputs.iter().any(|id| graph.value(*id).role == Role::Carried) {
            node.phase = Phase::Backward;
        }
        let sends: Vec<Node> = node.outputs.iter().flat_map(|id| sent.remove(id).unwrap_or_default()).collect();
        nodes.push(node);
        nodes.extend(sends);
    }
    let Kept { results, inputs, gradients } = kept;
    if own != last {
        let zeros: Vec<ValueId> = results.iter().map(|id| **id).chain([forward.logits]).collect();
        nodes.push(Node::new(Zeros, [], zeros, Phase::Loss, "loss"));
    }
    nodes.sort_by_key(|node| node.phase);
    graph.nodes = nodes;

    let is_foreign = |id: ValueId| owners.get(&id).is_some_and(|stage| *stage != own);
    let mut none = Vec::new();
    let gradients = match gradients {
        Some(gradients) => {
            gradients.retain(|&(parameter, _)| !is_foreign(parameter));
            if gradients.is_empty() {
                let reason = format!("stage {own} has no parameter to train: cut the model elsewhere");
                return Err(GraphError::Option(reason));
            }
            gradients
        }
        None => &mut none,
    };
    for index in 0..graph.values.len() {
        let is_removed = match graph.values[index].role {
            Role::Parameter(_) | Role::Buffer { .. } => is_foreign(ValueId(index)),
            Role::Gradient { parameter } => is_foreign(parameter),
            _ => false,
        };
        if is_removed {
            // As such it has no reader, and is pruned.
            graph.values[index].role = Role::Activation;
        }
    }
    let Forward { graph, images, labels, sample_indices, logits, mixture, targets, .. } = forward;
    let mixture = mixture.iter_mut().flat_map(|mixture| [&mut mixture.other_labels, &mut mixture.lambdas]);
    let gradients = gradients.iter_mut().flat_map(|(parameter, gradient)| [parameter, gradient]);
    let mut keep: Vec<&mut ValueId> = vec![images, labels, sample_indices, logits];
    keep.extend(mixture.chain(targets).chain(gradients).chain(results).chain(inputs));
    graph.prune(&mut keep);
    Ok(())
}
