//! Which tensors of a run evaluation uses: parameters and running statistics, or their averages if the run kept any.

use std::collections::HashSet;

use enmasse_graph::AVERAGE_PREFIX;

use crate::NamedTensor;

/// Whether a tensor belongs to the optimiser's state rather than to the weights.
pub fn is_optimizer(name: &str) -> bool {
    name.starts_with("optimizer.")
}

/// The tensors of a run that evaluation uses.
pub struct EvaluatedWeights {
    /// Parameters and running statistics. If the run kept averages, these are the averages, under the names of the
    /// tensors that they average.
    pub weights: Vec<NamedTensor>,
    /// Whether they are averages.
    pub averaged: bool,
}

impl EvaluatedWeights {
    /// Those among the tensors of a run, or of any other file of weights. A tensor is an average only if the tensor that it
    /// averages is present.
    pub fn of(mut tensors: Vec<NamedTensor>) -> Self {
        let names: HashSet<String> = tensors.iter().map(|tensor| tensor.name.clone()).collect();
        let is_average = |name: &str| name.strip_prefix(AVERAGE_PREFIX).is_some_and(|of| names.contains(of));
        let averaged = names.iter().any(|name| is_average(name));
        let is_evaluated = |tensor: &NamedTensor| !is_optimizer(&tensor.name) && averaged == is_average(&tensor.name);
        tensors.retain(is_evaluated);
        if averaged {
            tensors.iter_mut().for_each(|tensor| tensor.name.replace_range(..AVERAGE_PREFIX.len(), ""));
        }
        EvaluatedWeights { weights: tensors, averaged }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_replace_the_tensors_that_they_average() {
        let check = |names: &[&str], averaged: bool, weights: &[(&str, f32)]| {
            let tensor = |(number, name): (usize, &&str)| NamedTensor {
                name: name.to_string(),
                shape: vec![1],
                values: vec![number as f32],
            };
            let tensors: Vec<NamedTensor> = names.iter().enumerate().map(tensor).collect();
            let evaluated = EvaluatedWeights::of(tensors);
            let found: Vec<(&str, f32)> = evaluated.weights.iter().map(|t| (t.name.as_str(), t.values[0])).collect();
            assert_eq!((evaluated.averaged, &found[..]), (averaged, weights), "{names:?}");
        };
        check(&["fc.weight", "bn.running_mean"], false, &[("fc.weight", 0.0), ("bn.running_mean", 1.0)]);
        check(&["fc.weight", "optimizer.exp_avg.fc.weight"], false, &[("fc.weight", 0.0)]);
        let names = ["fc.weight", "fc.bias", "optimizer.exp_avg.fc.bias", "ema.fc.weight", "ema.fc.bias"];
        check(&names, true, &[("fc.weight", 3.0), ("fc.bias", 4.0)]);
        // A module named `ema`.
        check(&["ema.weight", "fc.weight"], false, &[("ema.weight", 0.0), ("fc.weight", 1.0)]);
    }
}
