//! What each rank does in an epoch, and what it takes: its part of the speed, its waits, its memory, its device.

use enmasse_comm::Group;
use enmasse_device::Device;
use enmasse_system::machine::ResidentMemory;
use serde::Serialize;

use crate::TrainError;
use crate::pace::{Pace, RankShares, gather};

/// A list by rank for each figure, so that a record of many ranks is short.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RankFigures {
    /// Images per second of its shards, training only.
    pub images_per_second: Vec<f64>,
    /// The share of its time of training, after its first batch, that it waited for batches: 0 to 1.
    pub data_wait: Vec<f64>,
    /// The share of the same time that it waited for others in the sums of a step.
    pub rank_wait: Vec<f64>,
    /// The resident memory of its process after the last step. Ranks that are threads have one process.
    pub resident_bytes: Vec<u64>,
    /// What all programs on its device held of the device's own memory by then. None where no device has any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_bytes: Vec<Option<u64>>,
    /// How busy the device was in the last second or less by then, 0 to 1. None where no device tells.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_utilization: Vec<Option<f64>>,
}

impl RankFigures {
    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.images_per_second.is_empty()
    }

    /// Of the ranks' parts of an epoch with this speed, and what they take at its end.
    pub(crate) fn new(shares: &[RankShares], usages: &[Usage], images_per_second: f64) -> Self {
        RankFigures {
            images_per_second: shares.iter().map(|rank| rank.images * images_per_second).collect(),
            data_wait: shares.iter().map(|rank| rank.data_wait).collect(),
            rank_wait: shares.iter().map(|rank| rank.rank_wait).collect(),
            resident_bytes: usages.iter().map(|usage| usage.resident as u64).collect(),
            device_bytes: known(usages.iter().map(|usage| usage.device.map(|bytes| bytes as u64))),
            device_utilization: known(usages.iter().map(|usage| usage.utilization)),
        }
    }
}

/// The values, if there are any.
fn known<T>(values: impl Iterator<Item = Option<T>>) -> Vec<Option<T>> {
    let values: Vec<Option<T>> = values.collect();
    if values.iter().any(Option::is_some) { values } else { Vec::new() }
}

/// What a rank takes now. Bytes are whole numbers, which f64 holds up to 2^53.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Usage {
    resident: f64,
    device: Option<f64>,
    utilization: Option<f64>,
}

impl Usage {
    pub fn of(device: &dyn Device) -> Self {
        let usage = device.usage();
        Usage {
            resident: ResidentMemory::gather().bytes() as f64,
            device: usage.map(|usage| usage.bytes as f64),
            utilization: usage.and_then(|usage| usage.utilization),
        }
    }

    /// Those of all ranks with their paces, in one exchange. Every rank must call this after the same step.
    pub fn of_all(self, pace: Pace, group: Option<&Group>) -> Result<(Vec<Pace>, Vec<Usage>), TrainError> {
        let [data, compute, other, ranks] = pace.seconds();
        let Usage { resident, device, utilization } = self;
        let [device, utilization] = [device, utilization].map(|value| value.unwrap_or(f64::NAN));
        let all = gather([data, compute, other, ranks, resident, device, utilization], group)?;
        let told = |value: f64| Some(value).filter(|value| !value.is_nan());
        let of_rank = |[data, compute, other, ranks, resident, device, utilization]: [f64; 7]| {
            let usage = Usage { resident, device: told(device), utilization: told(utilization) };
            (Pace::of([data, compute, other, ranks]), usage)
        };
        Ok(all.into_iter().map(of_rank).unzip())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_tell_each_other_what_they_take() {
        let usage = |rank: usize| Usage {
            resident: (1u64 << 40) as f64 + rank as f64,
            device: (rank == 1).then_some(7.0),
            utilization: None,
        };
        let pace = |rank: usize| Pace::of([rank as f64, 2.0, 3.0, 4.0]);
        let ranks = Group::threads(2).unwrap().into_iter().map(|group| {
            std::thread::spawn(move || usage(group.rank()).of_all(pace(group.rank()), Some(&group)).unwrap())
        });
        let found: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
        let expected = (vec![pace(0), pace(1)], vec![usage(0), usage(1)]);
        assert_eq!(found, [expected.clone(), expected]);
        let shares = [0.25, 0.75].map(|images| RankShares { images, data_wait: 0.5, rank_wait: images });
        let figures = RankFigures::new(&shares, &found[0].1, 100.0);
        assert_eq!((&figures.images_per_second[..], &figures.rank_wait[..]), (&[25.0, 75.0][..], &[0.25, 0.75][..]));
        assert_eq!(figures.resident_bytes, [1 << 40, (1 << 40) + 1]);
        assert_eq!((figures.device_bytes, figures.device_utilization), (vec![None, Some(7)], vec![]));
    }
}
