//! The targets of a loss: what each sample should have of each class.

use enmasse_device::DeviceError;
use enmasse_graph::ops::Targets;

use super::{Call, unsupported};

/// `[N,K]`: 1 at the label, 0 elsewhere. Of mixtures, which have other labels and lambdas, the share at the label plus the rest
/// at the other one.
pub fn targets(labels: &[f64], mixture: Option<[&[f64]; 2]>, classes: usize) -> Vec<f64> {
    let of_sample = |(sample, &label): (usize, &f64)| {
        let (other, share) = mixture.map_or((label, 1.0), |[others, lambdas]| (others[sample], lambdas[sample]));
        let at = |class: usize, label: f64| f64::from(u8::from(class as f64 == label));
        let target = move |class| at(class, label) * share + at(class, other) * (1.0 - share);
        (0..classes).map(move |class| if label < 0.0 { 0.0 } else { target(class) })
    };
    labels.iter().enumerate().flat_map(of_sample).collect()
}

/// The same for a call whose last operands are, for mixtures, the other labels and the lambdas.
pub(super) fn targets_of(call: &Call, labels: &[f64], classes: usize) -> Result<Vec<f64>, DeviceError> {
    match *call.rest {
        [] => Ok(targets(labels, None, classes)),
        [others, lambdas] => Ok(targets(labels, Some([others, lambdas]), classes)),
        _ => Err(unsupported(call.step.node)),
    }
}

each_shard!(Targets, |_, call, [labels]| vec![targets_of(call, labels, call.classes())?]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_by_hand() {
        assert_eq!(targets(&[2.0, -1.0, 0.0], None, 3), [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
        let mixture = [&[1.0, 1.0, 0.0][..], &[0.75, 0.5, 0.25]];
        assert_eq!(targets(&[2.0, -1.0, 0.0], Some(mixture), 3), [0.0, 0.25, 0.75, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
    }
}
