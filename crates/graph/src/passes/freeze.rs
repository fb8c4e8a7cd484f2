//! Frozen parameters take no gradient, no optimiser state and no all-reduce; a frozen batch norm keeps its statistics.

use crate::{Graph, GraphError, NormStatistics, Op, Role, ValueId};

/// Whether `pattern` names the parameter `name`: equal to it, or to the beginning of it up to a dot; `*` stands for any text.
///
/// ```
/// use enmasse_graph::passes::pattern_matches;
/// assert!(pattern_matches("layer1", "layer1.0.conv1.weight"));
/// assert!(pattern_matches("*.bias", "fc.bias"));
/// assert!(!pattern_matches("layer1", "layer10.weight"));
/// ```
pub fn pattern_matches(pattern: &str, name: &str) -> bool {
    fn glob(pattern: &str, name: &str) -> bool {
        match pattern.split_once('*') {
            None => name == pattern || name.strip_prefix(pattern).is_some_and(|rest| rest.starts_with('.')),
            Some((head, tail)) => name.strip_prefix(head).is_some_and(|rest| {
                rest.char_indices().map(|(i, _)| i).chain([rest.len()]).any(|i| glob(tail, &rest[i..]))
            }),
        }
    }
    glob(pattern, name)
}

/// Marks the parameters that some pattern names as not trainable. A batch norm whose weight and bias are both frozen
/// normalises by its running statistics and does not change them.
pub fn freeze(graph: &mut Graph, patterns: &[String]) -> Result<(), GraphError> {
    for pattern in patterns {
        if !graph.parameters().any(|(_, value, _)| pattern_matches(pattern, &value.name)) {
            let example = graph.parameters().next().map_or_else(|| "none".into(), |(_, value, _)| value.name.clone());
            return Err(GraphError::Pattern { pattern: pattern.clone(), example });
        }
    }
    for value in &mut graph.values {
        if let Role::Parameter(parameter) = &mut value.role {
            parameter.trainable &= !patterns.iter().any(|pattern| pattern_matches(pattern, &value.name));
        }
    }
    freeze_statistics(graph);
    Ok(())
}

fn freeze_statistics(graph: &mut Graph) {
    let frozen = |graph: &Graph, id: ValueId| matches!(&graph.value(id).role, Role::Parameter(p) if !p.trainable);
    for index in 0..graph.nodes.len() {
        let node = &graph.nodes[index];
        let Op::BatchNormNormalize { statistics: NormStatistics::Batch { .. }, .. } = node.op else { continue };
        if !(frozen(graph, node.inputs[3]) && frozen(graph, node.inputs[4])) {
            continue;
        }
        let layer = node.layer.clone();
        let Some(update) =
            graph.nodes.iter().find(|other| other.layer == layer && matches!(other.op, Op::RunningUpdate { .. }))
        else {
            continue;
        };
        let running = [update.inputs[1], update.inputs[2]];
        let node = &mut graph.nodes[index];
        if let Op::BatchNormNormalize { statistics, .. } = &mut node.op {
            *statistics = NormStatistics::Running;
        }
        node.inputs[1..3].copy_from_slice(&running);
    }
    // What nobody reads any more: statistics of frozen layers, their shares, and the updates by them.
    let read: Vec<ValueId> = (graph.nodes.iter())
        .filter(|node| matches!(node.op, Op::BatchNormNormalize { .. }))
        .flat_map(|node| node.inputs[1..3].to_vec())
        .collect();
    let live: Vec<String> = (graph.nodes.iter())
        .filter(|node| matches!(node.op, Op::BatchNormStatistics) && read.contains(&node.outputs[0]))
        .map(|node| node.layer.clone())
        .collect();
    graph.nodes.retain(|node| match node.op {
        Op::BatchNormStatistics | Op::RunningShare { .. } | Op::RunningUpdate { .. } => live.contains(&node.layer),
        _ => true,
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, Conv, Mode};

    fn graph() -> Graph {
        let builder = Builder::new(2, [4, 4], Mode::Train, 0);
        let x = builder.pixels([0.0; 3], [1.0; 3]);
        let x = x.conv2d("layer1.conv", Conv::new(4, 1)).batch_norm("layer1.bn").relu();
        let logits = x.conv2d("layer2.conv", Conv::new(4, 1)).batch_norm("layer2.bn").relu().flatten().linear("fc", 2);
        builder.finish(&logits, 2).unwrap().graph
    }

    #[test]
    fn frozen_layers_keep_their_statistics() {
        let check = |patterns: &[&str], trainable: usize, updates: usize| {
            let mut graph = graph();
            freeze(&mut graph, &patterns.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
            let left = graph.parameters().filter(|(_, _, p)| p.trainable).count();
            let running = graph.nodes.iter().filter(|node| matches!(node.op, Op::RunningUpdate { .. })).count();
            let statistics = graph.nodes.iter().filter(|node| matches!(node.op, Op::BatchNormStatistics)).count();
            assert_eq!((left, running, statistics), (trainable, updates, updates), "{patterns:?}");
        };
        check(&[], 10, 2);
        check(&["layer1"], 6, 1);
        check(&["layer1.bn.weight"], 9, 2);
        check(&["*bn*"], 6, 0);
        check(&["layer1", "layer2"], 2, 0);
    }

    #[test]
    fn a_pattern_that_matches_nothing_is_an_error() {
        let error = freeze(&mut graph(), &["layer9".into()]).unwrap_err().to_string();
        assert!(error.contains("layer9") && error.contains("layer1.conv.weight"), "{error}");
    }
}
