//! `--lr-mult PATTERN=FACTOR` and `--decay-mult PATTERN=FACTOR`: settings of the optimiser for some parameters.

use std::fmt;
use std::str::FromStr;

use enmasse_graph::GroupRule;

use super::TrainConfig;
use super::value::ListItem;

/// A factor for the parameters that a pattern names ([`enmasse_graph::pattern_matches`]).
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterFactor {
    /// The pattern.
    pub pattern: String,
    /// The factor, 0 or more.
    pub factor: f64,
}

impl fmt::Display for ParameterFactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.pattern, self.factor)
    }
}

impl FromStr for ParameterFactor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.rsplit_once('=').map(|(pattern, factor)| (pattern.trim(), factor.trim().parse()));
        match parts {
            Some((pattern, Ok(factor))) if !pattern.is_empty() && (0.0..f64::INFINITY).contains(&factor) => {
                Ok(ParameterFactor { pattern: pattern.to_owned(), factor })
            }
            _ => Err("must be PATTERN=FACTOR with a factor of 0 or more, such as *.bias=2".to_owned()),
        }
    }
}

impl ListItem for ParameterFactor {}

impl TrainConfig {
    /// The rules of `lr_mult` and `decay_mult`.
    pub(crate) fn group_rules(&self) -> impl Iterator<Item = GroupRule> + '_ {
        let rate = |of: &ParameterFactor| GroupRule::new(&of.pattern).learning_rate_scale(of.factor as f32);
        let decay =
            |of: &ParameterFactor| GroupRule::new(&of.pattern).weight_decay((self.weight_decay * of.factor) as f32);
        self.lr_mult.iter().map(rate).chain(self.decay_mult.iter().map(decay))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_become_rules() {
        let mut config = TrainConfig { weight_decay: 0.5, ..TrainConfig::default() };
        config.set("lr_mult", "*.bias=64, fc=0.5").unwrap();
        config.set("decay_mult", "*.bias=0.25").unwrap();
        let expected = [
            GroupRule::new("*.bias").learning_rate_scale(64.0),
            GroupRule::new("fc").learning_rate_scale(0.5),
            GroupRule::new("*.bias").weight_decay(0.125),
        ];
        assert_eq!(config.group_rules().collect::<Vec<_>>(), expected);
        let check = |text: &str| {
            let error = config.clone().set("lr_mult", text).unwrap_err().to_string();
            assert!(error.ends_with("must be PATTERN=FACTOR with a factor of 0 or more, such as *.bias=2"), "{error}");
        };
        ["fc", "=2", "fc=", "fc=-1", "fc=nan", "fc=inf"].into_iter().for_each(check);
    }
}
