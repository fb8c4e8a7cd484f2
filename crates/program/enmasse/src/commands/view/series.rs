//! The curves of a run in bounded memory, however many epochs it has.

use enmasse_charts::EpochPoint;

/// Buckets, each of which keeps two epochs.
const MAX_BUCKETS: usize = 512;

/// Neighbouring epochs, of which those with the lowest and the highest loss are kept, so that no peak is lost.
#[derive(Clone, Copy)]
struct Bucket {
    epochs: u64,
    lowest: EpochPoint,
    highest: EpochPoint,
}

impl Bucket {
    fn join(self, other: Bucket) -> Bucket {
        let of_loss = |a: &EpochPoint, b: &EpochPoint| a.train_loss.total_cmp(&b.train_loss);
        let lowest = std::cmp::min_by(self.lowest, other.lowest, of_loss);
        Bucket {
            epochs: self.epochs + other.epochs,
            lowest,
            highest: std::cmp::max_by(self.highest, other.highest, of_loss),
        }
    }
}

/// Points to draw.
#[derive(Default)]
pub struct Series {
    buckets: Vec<Bucket>,
    /// Epochs of a full bucket: 2 to the power of this.
    doublings: u32,
    last: Option<EpochPoint>,
}

impl Series {
    pub fn push(&mut self, point: EpochPoint) {
        let own = Bucket { epochs: 1, lowest: point, highest: point };
        let full = 1 << self.doublings;
        match self.buckets.last_mut().filter(|last| last.epochs < full) {
            Some(last) => *last = last.join(own),
            None => self.buckets.push(own),
        }
        if self.buckets.len() > MAX_BUCKETS {
            self.buckets =
                self.buckets.chunks(2).map(|pair| pair[1..].iter().fold(pair[0], |a, b| a.join(*b))).collect();
            self.doublings += 1;
        }
        self.last = Some(point);
    }

    /// In the order of epochs, with the last one.
    pub fn points(&self) -> Vec<EpochPoint> {
        let kept = self.buckets.iter().flat_map(|bucket| [bucket.lowest, bucket.highest]);
        let mut points: Vec<EpochPoint> = kept.chain(self.last).collect();
        points.sort_by_key(|point| point.epoch);
        points.dedup_by_key(|point| point.epoch);
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(epoch: u64, loss: f64) -> EpochPoint {
        let unknown = f64::NAN;
        EpochPoint {
            epoch,
            train_loss: loss,
            val_loss: unknown,
            train_accuracy: unknown,
            val_accuracy: unknown,
            learning_rate: unknown,
        }
    }

    #[test]
    fn few_epochs_are_all_kept() {
        let mut series = Series::default();
        (1..=300).for_each(|epoch| series.push(point(epoch, 1.0 / epoch as f64)));
        let epochs: Vec<u64> = series.points().iter().map(|point| point.epoch).collect();
        assert_eq!(epochs, (1..=300).collect::<Vec<_>>());
    }

    #[test]
    fn a_million_epochs_keep_their_peak_and_their_ends() {
        let mut series = Series::default();
        let loss = |epoch: u64| if epoch == 654_321 { 99.0 } else { 1.0 + (epoch % 7) as f64 };
        (1..=1_000_000).for_each(|epoch| series.push(point(epoch, loss(epoch))));
        let points = series.points();
        assert!(points.len() <= 2 * MAX_BUCKETS + 1 && points.len() > MAX_BUCKETS / 2, "{}", points.len());
        assert!(points.iter().any(|point| point.epoch == 654_321), "the peak is lost");
        assert_eq!(points.last().map(|point| point.epoch), Some(1_000_000));
        assert!(points.is_sorted_by_key(|point| point.epoch));
        let drawn = enmasse_charts::training_curves("curves", &points, None);
        assert!(drawn.len() < 200_000, "{} bytes", drawn.len());
    }
}
