//! Parameter groups: the weight decay and the factor of the learning rate of each parameter.

use std::fmt;

use enmasse_tensor::Shape;

use crate::GraphError;

/// Whether `pattern` matches the parameter `name`: it must equal the name, or a prefix of it that ends before a dot. `*`
/// matches any text.
///
/// ```
/// use enmasse_graph::pattern_matches;
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

/// The settings that all parameters of a group share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ParameterGroup {
    /// Weight decay, as the optimiser defines it.
    pub weight_decay: f32,
    /// Factor of the step's learning rate.
    pub learning_rate_scale: f32,
}

impl fmt::Display for ParameterGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weight_decay {}", self.weight_decay)?;
        if self.learning_rate_scale != 1.0 {
            write!(f, " learning_rate_scale {}", self.learning_rate_scale)?;
        }
        Ok(())
    }
}

/// Changes the settings of the parameters that a pattern names.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupRule {
    /// Names the parameters ([`pattern_matches`]); must match at least one trained parameter.
    pub pattern: String,
    /// Their weight decay; `None` leaves it unchanged.
    pub weight_decay: Option<f32>,
    /// Their factor of the learning rate; `None` leaves it unchanged.
    pub learning_rate_scale: Option<f32>,
}

impl GroupRule {
    /// A rule for the parameters that a pattern names, which changes nothing yet.
    pub fn new(pattern: impl Into<String>) -> Self {
        GroupRule { pattern: pattern.into(), weight_decay: None, learning_rate_scale: None }
    }

    /// Sets their weight decay.
    pub fn weight_decay(self, weight_decay: f32) -> Self {
        GroupRule { weight_decay: Some(weight_decay), ..self }
    }

    /// Sets their factor of the learning rate.
    pub fn learning_rate_scale(self, factor: f32) -> Self {
        GroupRule { learning_rate_scale: Some(factor), ..self }
    }
}

/// The group of each parameter.
///
/// ```
/// use enmasse_graph::{GroupRule, ParameterGroups};
/// let slow = GroupRule::new("layer1").learning_rate_scale(0.5);
/// let groups = ParameterGroups { weight_decay: 0.01, no_decay_norm_bias: true, rules: vec![slow] };
/// let group = groups.of("layer1.0.bn1.weight", &[64].into());
/// assert_eq!((group.weight_decay, group.learning_rate_scale), (0.0, 0.5));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParameterGroups {
    /// Weight decay of all parameters, except as set below.
    pub weight_decay: f32,
    /// Norm parameters and biases have no weight decay, and LARS does not adapt their rate. They are the parameters with
    /// one dimension.
    pub no_decay_norm_bias: bool,
    /// Exceptions by name; later rules win.
    pub rules: Vec<GroupRule>,
}

impl ParameterGroups {
    /// One group with all parameters.
    pub const fn one(weight_decay: f32) -> Self {
        ParameterGroups { weight_decay, no_decay_norm_bias: false, rules: Vec::new() }
    }

    /// Whether a parameter of this shape is exempt by [`ParameterGroups::no_decay_norm_bias`].
    pub fn spares(&self, shape: &Shape) -> bool {
        self.no_decay_norm_bias && shape.len() == 1
    }

    /// The group of a parameter.
    pub fn of(&self, name: &str, shape: &Shape) -> ParameterGroup {
        let weight_decay = if self.spares(shape) { 0.0 } else { self.weight_decay };
        let mut group = ParameterGroup { weight_decay, learning_rate_scale: 1.0 };
        for rule in self.rules.iter().filter(|rule| pattern_matches(&rule.pattern, name)) {
            group.weight_decay = rule.weight_decay.unwrap_or(group.weight_decay);
            group.learning_rate_scale = rule.learning_rate_scale.unwrap_or(group.learning_rate_scale);
        }
        group
    }

    /// Refuses factors that are negative or not finite, and rules that match none of `names`, the trained parameters.
    pub(crate) fn check<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) -> Result<(), GraphError> {
        let factors = self.rules.iter().flat_map(|rule| rule.weight_decay.into_iter().chain(rule.learning_rate_scale));
        if let Some(factor) = factors.chain([self.weight_decay]).find(|factor| !(factor.is_finite() && *factor >= 0.0))
        {
            return Err(GraphError::Option(format!(
                "weight decay and learning rate scales must be finite and not below 0, got {factor}"
            )));
        }
        let unmatched = |rule: &&GroupRule| !names.clone().any(|name| pattern_matches(&rule.pattern, name));
        match self.rules.iter().find(unmatched) {
            None => Ok(()),
            Some(rule) => Err(GraphError::Option(format!(
                "the pattern {:?} of a parameter group matches no trained parameter; the first one is {}",
                rule.pattern,
                names.clone().next().unwrap_or("none")
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(pattern: &str, weight_decay: Option<f32>, learning_rate_scale: Option<f32>) -> GroupRule {
        GroupRule { pattern: pattern.into(), weight_decay, learning_rate_scale }
    }

    #[test]
    fn groups_follow_from_dimensions_and_names() {
        let rules = vec![
            rule("layer1", None, Some(0.5)),
            rule("layer1.conv", None, Some(0.25)),
            rule("*.bias", Some(0.125), None),
        ];
        let check = |no_decay_norm_bias: bool, name: &str, shape: &[usize], weight_decay, learning_rate_scale| {
            let groups = ParameterGroups { weight_decay: 1.0, no_decay_norm_bias, rules: rules.clone() };
            let expected = ParameterGroup { weight_decay, learning_rate_scale };
            assert_eq!(groups.of(name, &shape.to_vec().into()), expected, "{name}");
        };
        check(false, "stem.weight", &[3, 3, 3, 8], 1.0, 1.0);
        check(false, "bn.weight", &[8], 1.0, 1.0);
        check(true, "stem.weight", &[3, 3, 3, 8], 1.0, 1.0);
        check(true, "fc.weight", &[8, 10], 1.0, 1.0);
        check(true, "bn.weight", &[8], 0.0, 1.0);
        check(true, "layer1.bn.weight", &[8], 0.0, 0.5);
        check(true, "layer1.conv.weight", &[3, 3, 8, 8], 1.0, 0.25);
        // A rule overrides `no_decay_norm_bias`.
        check(true, "fc.bias", &[8], 0.125, 1.0);
        check(false, "layer1.conv.bias", &[8], 0.125, 0.25);
    }

    #[test]
    fn invalid_factors_and_unmatched_rules_are_refused() {
        let check = |rules: Vec<GroupRule>, weight_decay: f32, expected: Option<&str>| {
            let groups = ParameterGroups { weight_decay, no_decay_norm_bias: false, rules };
            let found = groups.check(["fc.weight", "fc.bias"].into_iter()).err().map(|error| error.to_string());
            assert_eq!(found.as_deref(), expected);
        };
        check(vec![], 0.0, None);
        check(vec![rule("fc", Some(0.0), Some(0.0))], 1.0, None);
        let refused = "weight decay and learning rate scales must be finite and not below 0, got ";
        check(vec![], -1.0, Some(&format!("{refused}-1")));
        check(vec![rule("fc", None, Some(f32::NAN))], 1.0, Some(&format!("{refused}NaN")));
        let unmatched =
            "the pattern \"layer1\" of a parameter group matches no trained parameter; the first one is fc.weight";
        check(vec![rule("layer1", None, Some(0.5))], 1.0, Some(unmatched));
    }
}
