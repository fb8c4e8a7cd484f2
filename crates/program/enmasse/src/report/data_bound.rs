//! What a run says of training that waits for images: how much of its time, and what would help.

use enmasse_system::machine::ProcessorTime;
use enmasse_train::{EpochRecord, Started};
use enmasse_wording::counted;

/// A smaller share of the time is not worth a line.
const MATTERS: f64 = 0.1;

/// Another line follows only if the share has changed by this much.
const CHANGE: f64 = 0.2;

/// Shorter training tells little: threads start, and caches are cold.
const SECONDS: f64 = 3.0;

/// Below this share of idle processor time there is no core for another loader thread.
const IDLE: f64 = 0.1;

/// Watches how long training waits for images, epoch by epoch.
#[derive(Debug, Default)]
pub struct DataBound {
    /// Cores for each rank of this machine, at least.
    cores: usize,
    /// Loader threads of each rank.
    threads: usize,
    /// Height and width of the images that the model sees.
    size: usize,
    /// The machine's processor time when the epoch began.
    began: Option<ProcessorTime>,
    /// The share that was told last.
    told: Option<f64>,
}

impl DataBound {
    /// For ranks that have `cores` cores each.
    pub fn new(cores: usize) -> Self {
        DataBound { cores, ..DataBound::default() }
    }

    /// Takes in the facts of the run, whose first epoch begins `now`.
    pub fn begin(&mut self, started: &Started, now: Option<ProcessorTime>) {
        self.threads = started.loader_threads;
        self.size = started.size;
        self.began = now;
    }

    /// The line after an epoch that has ended `now`; `None` if the wait matters little, or was told before.
    pub fn epoch(&mut self, record: &EpochRecord, now: Option<ProcessorTime>) -> Option<String> {
        let began = std::mem::replace(&mut self.began, now);
        let idle = now.zip(began).and_then(|(now, began)| now.idle_since(began));
        let share = record.data_wait;
        let matters = share >= MATTERS && record.seconds >= SECONDS;
        let is_news = self.told.is_none_or(|told| (share - told).abs() >= CHANGE);
        if !(matters && is_news) {
            return None;
        }
        self.told = Some(share);
        let who = if record.world_size > 1 { "the slowest rank" } else { "training" };
        let epoch = record.epoch + 1;
        let percent = share * 100.0;
        let remedy = self.remedy(idle);
        Some(format!("data-bound: in epoch {epoch}, {who} waited for images {percent:.0} % of the time; {remedy}"))
    }

    /// More loader threads decode faster only on cores that were idle, as those of a rank are that waits. The idle share of the
    /// machine's processor time is unknown if the kernel does not report it.
    fn remedy(&self, idle: Option<f64>) -> String {
        let DataBound { cores, threads, size, .. } = *self;
        let full = match threads < cores {
            true if idle.is_none_or(|idle| idle >= IDLE) => {
                let threads = counted(threads, "loader thread");
                return format!("each rank has {cores} cores and {threads}: try --loader-threads {cores}");
            }
            true => "every core is busy",
            false => "every core has a loader thread",
        };
        format!("{full}: if the files are much larger than {size} x {size} pixels, shrink them beforehand")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::screen::wrap;

    fn record(epoch: u64, data_wait: f64, seconds: f64, world_size: usize) -> EpochRecord {
        EpochRecord { epoch, data_wait, seconds, world_size, ..EpochRecord::default() }
    }

    #[test]
    fn the_remedy_fits_the_machine() {
        let time = |total: u64, idle: u64| Some(ProcessorTime { total, idle });
        let check = |cores: usize, threads: usize, world_size: usize, idle: u64, expected: &str| {
            let mut bound = DataBound { threads, size: 224, began: time(500, 400), ..DataBound::new(cores) };
            let line = bound.epoch(&record(11, 0.384, 60.0, world_size), time(600, 400 + idle)).unwrap();
            assert_eq!(wrap(&line, 80), expected);
            // What was idle in the epoch before does not count.
            assert_eq!(bound.began, time(600, 400 + idle));
        };
        let more = "data-bound: in epoch 12, training waited for images 38 % of the time; each rank\n            \
                    has 4 cores and 1 loader thread: try --loader-threads 4";
        check(4, 1, 1, 10, more);
        let smaller = "data-bound: in epoch 12, training waited for images 38 % of the time; every core\n            \
                       has a loader thread: if the files are much larger than 224 x 224\n            \
                       pixels, shrink them beforehand";
        check(4, 4, 1, 90, smaller);
        check(4, 9, 1, 90, smaller);
        check(0, 1, 1, 90, smaller);
        let ranks = "data-bound: in epoch 12, the slowest rank waited for images 38 % of the time;\n            \
                     each rank has 8 cores and 2 loader threads: try --loader-threads 8";
        check(8, 2, 16, 90, ranks);
        let busy = "data-bound: in epoch 12, training waited for images 38 % of the time; every core\n            \
                    is busy: if the files are much larger than 224 x 224 pixels, shrink\n            \
                    them beforehand";
        check(4, 1, 1, 9, busy);
        let unknown = DataBound { threads: 1, ..DataBound::new(4) };
        assert_eq!(unknown.remedy(None), "each rank has 4 cores and 1 loader thread: try --loader-threads 4");
    }

    #[test]
    fn a_line_where_it_matters_and_is_news() {
        let check = |epochs: &[(f64, f64)], told: &[u64]| {
            let mut bound = DataBound::new(2);
            let lines = (0..)
                .zip(epochs)
                .filter(|(epoch, (share, seconds))| bound.epoch(&record(*epoch, *share, *seconds, 1), None).is_some());
            assert_eq!(lines.map(|(epoch, _)| epoch).collect::<Vec<_>>(), told, "{epochs:?}");
        };
        check(&[(0.09, 60.0), (0.1, 60.0)], &[1]);
        check(&[(0.5, 2.9), (0.5, 3.0)], &[1]);
        check(&[(f64::NAN, 60.0), (0.0, 60.0)], &[]);
        // Once, unless it changes much.
        check(&[(0.4, 60.0), (0.4, 60.0), (0.3, 60.0), (0.21, 60.0), (0.59, 60.0)], &[0]);
        check(&[(0.9, 60.0), (0.35, 60.0), (0.3, 60.0), (0.05, 60.0), (0.6, 60.0)], &[0, 1, 4]);
    }
}
