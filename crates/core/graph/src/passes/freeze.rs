//! Frozen parameters have no gradient, no optimiser state and no place in a bucket.
//!
//! Backward ends at the first trained layer. A batch norm whose parameters are both frozen
//! normalises by its running statistics and keeps them.

use crate::layers::layers_of;
use crate::ops::{BatchNormNormalize, NormStatistics};
use crate::{Graph, GraphError, Node, Op, Role, ValueId, pattern_matches};

/// The parameters that are not trained.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Freeze {
    /// Parameters that match any of the patterns ([`pattern_matches`]). Each pattern must match a parameter. An empty list
    /// freezes nothing.
    Patterns(Vec<String>),
    /// All parameters outside the classifier ([`classifier_of`]), as in fine-tuning of the last layers, and those of the
    /// classifier that match any of the patterns. Each pattern must match a parameter.
    AllButClassifier(Vec<String>),
    /// All parameters except those of the head and of so many layers before it ([`layers`](fn@crate::layers)), and those that match
    /// any of the patterns. Each pattern must match a parameter.
    AllButLast(usize, Vec<String>),
}

impl Default for Freeze {
    /// Nothing is frozen.
    fn default() -> Self {
        Freeze::Patterns(Vec::new())
    }
}

/// The classifier of a model: the top-level module of its last parameter. `names` are its parameters' names in order.
///
/// ```
/// use enmasse_graph::classifier_of;
/// assert_eq!(classifier_of(["conv1.weight", "layer1.0.conv1.weight", "fc.weight", "fc.bias"]), Some("fc"));
/// assert_eq!(classifier_of(["features.0.weight", "classifier.1.weight", "classifier.4.bias"]), Some("classifier"));
/// ```
pub fn classifier_of<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let last = names.into_iter().last()?;
    Some(last.split_once('.').map_or(last, |(module, _)| module))
}

/// Marks frozen parameters as not trainable. A batch norm whose weight and bias are both frozen normalises by its running
/// statistics and does not change them.
pub fn freeze(graph: &mut Graph, frozen: &Freeze) -> Result<(), GraphError> {
    let names = || graph.parameters().map(|(_, value, _)| value.name.as_str());
    let (patterns, classifier) = match frozen {
        Freeze::Patterns(patterns) => (patterns, None),
        Freeze::AllButClassifier(patterns) => (patterns, Some(classifier_of(names()).unwrap_or_default().to_string())),
        Freeze::AllButLast(_, patterns) => (patterns, None),
    };
    if let Some(pattern) = patterns.iter().find(|pattern| !names().any(|name| pattern_matches(pattern, name))) {
        let example = names().next().unwrap_or("none").into();
        return Err(GraphError::Pattern { pattern: pattern.clone(), example });
    }
    if let Some(classifier) =
        classifier.clone().filter(|classifier| names().all(|name| pattern_matches(classifier, name)))
    {
        return Err(GraphError::OnlyClassifier { classifier });
    }
    let is_frozen = |name: &str| {
        patterns.iter().any(|pattern| pattern_matches(pattern, name))
            || classifier.as_ref().is_some_and(|classifier| !pattern_matches(classifier, name))
    };
    let (layers, head) = layers_of(graph);
    let first = match frozen {
        Freeze::AllButLast(count, _) => head.saturating_sub(*count),
        Freeze::Patterns(_) | Freeze::AllButClassifier(_) => 0,
    };
    for (id, layer) in layers {
        let value = &mut graph.values[id.0];
        if let Role::Parameter(parameter) = &mut value.role {
            parameter.trainable &= layer >= first && !is_frozen(&value.name);
        }
    }
    let frozen = |graph: &Graph, id: ValueId| matches!(&graph.value(id).role, Role::Parameter(p) if !p.trainable);
    freeze_statistics(graph, &|graph, norm| frozen(graph, norm.inputs[3]) && frozen(graph, norm.inputs[4]));
    Ok(())
}

/// Makes the batch norms that `which` names normalise by their running statistics, which they keep.
pub(crate) fn freeze_statistics(graph: &mut Graph, which: &dyn Fn(&Graph, &Node) -> bool) {
    for index in 0..graph.nodes.len() {
        let node = &graph.nodes[index];
        let Op::BatchNormNormalize(BatchNormNormalize { statistics: NormStatistics::Batch { .. }, .. }) = node.op
        else {
            continue;
        };
        if !which(graph, node) {
            continue;
        }
        let layer = node.layer.clone();
        let Some(update) =
            graph.nodes.iter().find(|other| other.layer == layer && matches!(other.op, Op::RunningUpdate(_)))
        else {
            continue;
        };
        let running = [update.inputs[1], update.inputs[2]];
        let node = &mut graph.nodes[index];
        if let Op::BatchNormNormalize(norm) = &mut node.op {
            norm.statistics = NormStatistics::Running;
        }
        node.inputs[1..3].copy_from_slice(&running);
    }
    // Drops nodes that are no longer needed: the statistics of frozen layers, their shares, and the running updates.
    let read: Vec<ValueId> = (graph.nodes.iter())
        .filter(|node| matches!(node.op, Op::BatchNormNormalize(_)))
        .flat_map(|node| node.inputs[1..3].to_vec())
        .collect();
    let live: Vec<String> = (graph.nodes.iter())
        .filter(|node| matches!(node.op, Op::BatchNormStatistics(_)) && read.contains(&node.outputs[0]))
        .map(|node| node.layer.clone())
        .collect();
    graph.nodes.retain(|node| match node.op {
        Op::BatchNormStatistics(_) | Op::RunningShare(_) | Op::RunningUpdate(_) => live.contains(&node.layer),
        _ => true,
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, Conv, Mode};

    fn graph() -> Graph {
        let builder = Builder::new(2, [4, 4], Mode::Train, 0);
        let x = builder.pixels(&[0.0; 3], &[1.0; 3]);
        let x = x.conv2d("layer1.conv", Conv::new(4, 1)).batch_norm("layer1.bn").relu();
        let logits = x.conv2d("layer2.conv", Conv::new(4, 1)).batch_norm("layer2.bn").relu().flatten().linear("fc", 2);
        builder.finish(&logits, 2).unwrap().graph
    }

    #[test]
    fn frozen_layers_keep_their_statistics() {
        let check = |patterns: &[&str], trainable: usize, updates: usize| {
            let mut graph = graph();
            freeze(&mut graph, &Freeze::Patterns(patterns.iter().map(ToString::to_string).collect())).unwrap();
            let left = graph.parameters().filter(|(_, _, p)| p.trainable).count();
            let running = graph.nodes.iter().filter(|node| matches!(node.op, Op::RunningUpdate(_))).count();
            let statistics = graph.nodes.iter().filter(|node| matches!(node.op, Op::BatchNormStatistics(_))).count();
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
        let patterns = Freeze::Patterns(vec!["layer1".into(), "layer9".into()]);
        let error = freeze(&mut graph(), &patterns).unwrap_err().to_string();
        assert!(error.contains("layer9") && error.contains("layer1.conv.weight"), "{error}");
    }

    #[test]
    fn all_but_the_classifier() {
        let check = |patterns: &[&str], trained: &[&str]| {
            let mut graph = graph();
            let patterns = patterns.iter().map(ToString::to_string).collect();
            freeze(&mut graph, &Freeze::AllButClassifier(patterns)).unwrap();
            let trainable = graph.parameters().filter(|(_, _, parameter)| parameter.trainable);
            assert!(trainable.map(|(_, value, _)| value.name.as_str()).eq(trained.iter().copied()));
            let of_statistics = |op: &Op| matches!(op, Op::BatchNormStatistics(_) | Op::RunningUpdate(_));
            assert!(!graph.nodes.iter().any(|node| of_statistics(&node.op)));
        };
        check(&[], &["fc.weight", "fc.bias"]);
        check(&["layer1"], &["fc.weight", "fc.bias"]);
        check(&["*.bias"], &["fc.weight"]);
    }

    #[test]
    fn all_but_the_last_layers() {
        let check = |layers: usize, patterns: &[&str], first: &str, updates: usize| {
            let mut graph = graph();
            let patterns = patterns.iter().map(ToString::to_string).collect();
            freeze(&mut graph, &Freeze::AllButLast(layers, patterns)).unwrap();
            let trained = graph.parameters().find(|(_, _, parameter)| parameter.trainable);
            assert_eq!(trained.unwrap().1.name, first, "{layers}");
            let running = graph.nodes.iter().filter(|node| matches!(node.op, Op::RunningUpdate(_))).count();
            assert_eq!(running, updates, "{layers}");
        };
        check(0, &[], "fc.weight", 0);
        check(0, &["fc.weight"], "fc.bias", 0);
        check(1, &[], "layer2.conv.weight", 1);
        check(2, &[], "layer1.conv.weight", 2);
        check(9, &[], "layer1.conv.weight", 2);
    }

    #[test]
    fn statistics_are_kept_where_parameters_are_trained() {
        let mut graph = graph();
        freeze_statistics(&mut graph, &|_, _| true);
        assert!(graph.parameters().all(|(_, _, parameter)| parameter.trainable));
        let of_batch = |op: &Op| matches!(op, Op::BatchNormStatistics(_) | Op::RunningShare(_) | Op::RunningUpdate(_));
        assert!(!graph.nodes.iter().any(|node| of_batch(&node.op)));
    }

    #[test]
    fn a_model_that_is_its_classifier_has_nothing_to_freeze() {
        let builder = Builder::new(2, [4, 4], Mode::Train, 0);
        let logits = builder.pixels(&[0.0; 3], &[1.0; 3]).flatten().linear("fc.0", 3).relu().linear("fc.1", 2);
        let mut graph = builder.finish(&logits, 2).unwrap().graph;
        let error = freeze(&mut graph, &Freeze::AllButClassifier(Vec::new())).unwrap_err();
        assert_eq!(error, GraphError::OnlyClassifier { classifier: "fc".into() });
    }
}
