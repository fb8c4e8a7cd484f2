//! `--tune`: rank 0 measures which algorithms are the fastest. Its choices become part of every rank's plans and of the run.

use std::fmt;
use std::time::Instant;

use enmasse_device::{Device, DeviceError};
use enmasse_graph::{Choices, Plans};

/// The results of tuning, for display.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuning {
    /// Operations that were measured.
    pub measured: usize,
    /// Duration of the measurement in seconds.
    pub seconds: f64,
    /// Choices that were reused: from an earlier part of the run, or from the device's record of earlier runs.
    pub reused: usize,
    /// Instructions of a step (or of evaluation, without a training plan) that use another algorithm than they would
    /// without tuning.
    pub changed: usize,
    /// What is wrong with the device's record of earlier runs.
    pub warning: Option<String>,
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tuning { measured, seconds, reused, changed, warning: _ } = self;
        if *reused > 0 {
            write!(f, "{reused} choices reused; ")?;
        }
        write!(
            f,
            "{measured} operations measured in {seconds:.1} s; another algorithm than untuned: {changed} in a step"
        )
    }
}

/// Measures the operations for which `known` has no choice, and adds all choices to the plans, which must have none.
///
/// # Errors
/// The device cannot measure an operation: it fails, or has too little memory.
pub fn tune(device: &dyn Device, plans: &mut Plans, known: Choices) -> Result<(Choices, Tuning), DeviceError> {
    let algorithms = |plans: &Plans| device.algorithms(plans.train.as_ref().unwrap_or(&plans.evaluate));
    let untuned = algorithms(plans)?;
    let began = Instant::now();
    let found = device.tune(plans, &known)?;
    let seconds = began.elapsed().as_secs_f64();
    let measured = found.choices.len() - found.reused;
    let reused = known.len() + found.reused;
    let warning = found.warning;
    let mut choices = known;
    choices.extend(found.choices);
    plans.choose(&choices);
    let changed = untuned.iter().zip(algorithms(plans)?).filter(|(untuned, tuned)| *untuned != tuned).count();
    Ok((choices, Tuning { measured, seconds, reused, changed, warning }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display() {
        let check = |measured, seconds, reused, changed, expected: &str| {
            assert_eq!(Tuning { measured, seconds, reused, changed, warning: None }.to_string(), expected);
        };
        let fresh = "12 operations measured in 2.3 s; another algorithm than untuned: 5 in a step";
        check(12, 2.345, 0, 5, fresh);
        let resumed = "12 choices reused; 0 operations measured in 0.0 s; another algorithm than untuned: 5 in a step";
        check(0, 0.001, 12, 5, resumed);
    }
}
