//! `--metrics NAMES`: the numbers that a run measures in addition to loss and accuracy.

use std::fmt;
use std::str::FromStr;

use enmasse_graph::Metric;

use super::value::ListItem;

/// A built-in metric, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MetricName {
    /// `topK`, such as `top5`: the share of samples whose label is among the K largest logits.
    Top(usize),
    /// `gradient_norm`: the norm of all gradients before clipping; its mean over the steps of an epoch.
    GradientNorm,
}

impl fmt::Display for MetricName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Metric::from(*self).name())
    }
}

impl From<MetricName> for Metric {
    fn from(name: MetricName) -> Self {
        match name {
            MetricName::Top(among) => Metric::Top(among),
            MetricName::GradientNorm => Metric::GradientNorm,
        }
    }
}

impl FromStr for MetricName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let among = name.strip_prefix("top").and_then(|among| among.parse().ok());
        match (name, among) {
            ("gradient_norm", _) => Ok(MetricName::GradientNorm),
            (_, Some(among)) => Ok(MetricName::Top(among)),
            _ => Err(format!("has no metric \"{name}\": use top5, another topK, or gradient_norm")),
        }
    }
}

impl ListItem for MetricName {}
