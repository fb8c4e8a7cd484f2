//! One row: the time of a sum of one size by one algorithm, or of a barrier, as rank 0 measured it.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use enmasse_comm::{Algorithm, Cause, CauseKind, Group};
use enmasse_tensor::AlignedBuffer;
use serde::{Deserialize, Serialize};

use super::model::Model;
use crate::failure::Failure;

/// Calls of each size that are not counted.
const WARM_UP: usize = 3;
/// Longest time for the calls of one size. Few of a long sum are enough, and many of a short one.
const BUDGET: Duration = Duration::from_millis(500);
/// Calls of one size, if the budget allows: at least and at most.
const CALLS: (i64, i64) = (5, 1000);

/// What the ranks do together.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    AllReduce,
    Barrier,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Row {
    /// How the bytes travel.
    pub transport: String,
    pub operation: Operation,
    /// The algorithm of a sum; of a barrier and of another program the program's name and version.
    pub algorithm: String,
    pub ranks: usize,
    /// Of the sum; 0 of a barrier.
    pub bytes: usize,
    pub calls: usize,
    /// Of a call on rank 0.
    pub median_us: f64,
    pub min_us: f64,
    /// Bandwidths as nccl-tests have them, in 10^9 bytes a second: of the algorithm, and of the bus.
    pub algbw: f64,
    pub busbw: f64,
    /// Counted bytes of a call, of the rank with the most; of another program not known.
    pub sent: Option<u64>,
    pub received: Option<u64>,
    /// By the model.
    pub predicted_us: Option<f64>,
    pub model: Option<Model>,
}

impl Row {
    /// Of a sum's calls, in seconds.
    pub fn new(transport: &str, algorithm: &str, ranks: usize, bytes: usize, mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let median = times.get(times.len() / 2).copied().unwrap_or(f64::NAN);
        let algbw = bytes as f64 / median / 1e9;
        Row {
            transport: transport.to_owned(),
            operation: Operation::AllReduce,
            algorithm: algorithm.to_owned(),
            ranks,
            bytes,
            calls: times.len(),
            median_us: median * 1e6,
            min_us: times.first().copied().unwrap_or(f64::NAN) * 1e6,
            algbw,
            busbw: algbw * 2.0 * (ranks - 1) as f64 / ranks as f64,
            sent: None,
            received: None,
            predicted_us: None,
            model: None,
        }
    }

    /// Of a barrier's calls, in seconds.
    pub fn barrier(transport: &str, program: &str, ranks: usize, times: Vec<f64>) -> Self {
        Row { operation: Operation::Barrier, ..Row::new(transport, program, ranks, 0, times) }
    }

    /// A barrier of the group's ranks.
    pub fn measure_barrier(group: &Group, over: &str) -> Result<Self, Arc<Cause>> {
        let times = time(|| group.barrier(), |calls| agree(group, calls))?;
        Ok(Row::barrier(over, concat!("enmasse ", env!("CARGO_PKG_VERSION")), group.world_size(), times))
    }

    /// A sum by the group's ranks.
    pub fn measure(
        group: &Group,
        over: &str,
        (algorithm, bytes): (Algorithm, usize),
        model: Model,
    ) -> Result<Self, Arc<Cause>> {
        let wrong = |message| Arc::new(group.own_cause(CauseKind::Error, message));
        let sum = |data: &mut [f32]| group.all_reduce_by(data, algorithm);
        let times = time_sum((group.rank(), group.world_size()), bytes, sum, |calls| agree(group, calls), wrong)?;
        let mut data = vec![0f32; bytes / size_of::<f32>()];
        let before = group.traffic();
        group.all_reduce_by(&mut data, algorithm)?;
        let traffic = group.traffic() - before;
        let mut all = vec![0; 2 * group.world_size()];
        group.all_gather(&[traffic.sent as i64, traffic.received as i64], &mut all)?;
        let most = |place: usize| all.iter().skip(place).step_by(2).copied().max().map(|bytes| bytes as u64);
        Ok(Row {
            sent: most(0),
            received: most(1),
            predicted_us: Some(model.predict(group, algorithm, bytes) * 1e6),
            model: Some(model),
            ..Row::new(over, algorithm.name(), group.world_size(), bytes, times)
        })
    }

    /// Its line of the table under [`header`].
    pub fn line(&self) -> String {
        let Row { transport, algorithm, median_us, min_us, .. } = self;
        let (bytes, algbw, busbw) = match self.operation {
            Operation::AllReduce => {
                (self.bytes.to_string(), format!("{:.2}", self.algbw), format!("{:.2}", self.busbw))
            }
            Operation::Barrier => ("barrier".to_owned(), "-".to_owned(), "-".to_owned()),
        };
        let counted = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| bytes.to_string());
        let predicted = self.predicted_us.map_or("-".to_owned(), |time| format!("{time:.1}"));
        format!(
            "{transport:<8}{algorithm:<22}{bytes:>10}{median_us:>11.1}{min_us:>11.1}{algbw:>8}{busbw:>8}{:>11}{:>11}{predicted:>11}",
            counted(self.sent),
            counted(self.received),
        )
    }
}

/// The columns of [`Row::line`].
pub fn header() -> String {
    let [over, algorithm, bytes, median, least] = ["", "algorithm", "bytes", "time us", "least us"];
    let [algbw, busbw, sent, received, predicted] = ["algbw", "busbw", "sent", "received", "model us"];
    format!(
        "{over:<8}{algorithm:<22}{bytes:>10}{median:>11}{least:>11}{algbw:>8}{busbw:>8}{sent:>11}{received:>11}{predicted:>11}"
    )
}

/// As many calls on all ranks: as the first one wants.
fn agree(group: &Group, calls: i64) -> Result<i64, Arc<Cause>> {
    let mut calls = [calls];
    group.broadcast(&mut calls, 0).map(|()| calls[0])
}

/// The seconds of calls, after some that are not counted. `agree` gives all ranks the first one's number.
pub fn time<E>(
    mut operation: impl FnMut() -> Result<(), E>,
    agree: impl FnOnce(i64) -> Result<i64, E>,
) -> Result<Vec<f64>, E> {
    let mut call = || {
        let start = Instant::now();
        operation().map(|()| start.elapsed().as_secs_f64())
    };
    let last = (0..WARM_UP).try_fold(0.0, |_, _| call())?;
    let calls = agree(((BUDGET.as_secs_f64() / last) as i64).clamp(CALLS.0, CALLS.1))?;
    (0..calls).map(|_| call()).collect()
}

/// The same of a sum by one rank of all, in memory like that of gradients. The first call also checks what it gives.
pub fn time_sum<E>(
    (rank, ranks): (usize, usize),
    bytes: usize,
    mut sum: impl FnMut(&mut [f32]) -> Result<(), E>,
    agree: impl FnOnce(i64) -> Result<i64, E>,
    wrong: impl Fn(String) -> E,
) -> Result<Vec<f64>, E> {
    let no_memory = |error| wrong(format!("no memory for {bytes} bytes: {error}"));
    let mut memory = AlignedBuffer::zeroed(bytes).map_err(no_memory)?;
    let data = memory.as_f32_mut();
    // Any order adds whole numbers up to the same.
    data.fill(rank as f32 + 1.0);
    sum(data)?;
    let expected = (ranks * (ranks + 1) / 2) as f32;
    if let Some(found) = data.iter().find(|&&value| value != expected) {
        return Err(wrong(format!("a sum over {ranks} ranks is {found} instead of {expected}")));
    }
    // Sums of zeros stay what they are.
    data.fill(0.0);
    time(|| sum(data), agree)
}

/// Rows as text: a JSON object in each line.
pub fn lines(rows: &[Row]) -> Result<String, Failure> {
    let line = |row| serde_json::to_string(row).map(|line| line + "\n").map_err(Failure::error);
    rows.iter().map(line).collect()
}

/// Rows from such text.
pub fn read(text: &str) -> Result<Vec<Row>, Box<dyn Error>> {
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_are_those_of_nccl_tests() {
        // As nccl-tests print for these: 1 MB in 100 us over 4 ranks is 10 GB/s, and 15 GB/s on the bus.
        let row = Row::new("tcp", "ring", 4, 1_000_000, vec![2e-4, 8e-5, 1e-4]);
        assert!((row.algbw - 10.0).abs() < 1e-9 && (row.busbw - 15.0).abs() < 1e-9, "{row:?}");
        let row = Row { sent: Some(1_500_000), received: Some(1_500_016), predicted_us: Some(90.0), ..row };
        let expected = "tcp     ring                     1000000      100.0       80.0   10.00   15.00    1500000    1500016       90.0";
        assert_eq!(row.line(), expected);
        assert_eq!(header().len(), expected.len());
        let text = serde_json::to_string(&row).unwrap();
        let rows = [row.clone(), row];
        assert_eq!(lines(&rows).unwrap(), format!("{text}\n{text}\n"));
        assert_eq!(read(&lines(&rows).unwrap()).unwrap(), rows);
        assert!(read("{}").is_err());
        let row = Row::barrier("mpi", "Open MPI 4.1.4", 4, vec![1e-5]);
        let expected = "mpi     Open MPI 4.1.4           barrier       10.0       10.0       -       -          -          -          -";
        assert_eq!(row.line(), expected);
    }

    #[test]
    fn rows_of_a_group() {
        for ranks in [2, 3] {
            let model = Model { alpha: 1e-6, overhead: 1e-7, beta: 1e-9, gamma: 1e-9 };
            let threads = Group::threads(ranks).unwrap().into_iter().map(|group| {
                std::thread::spawn(move || {
                    let row = Row::measure(&group, "shared", (Algorithm::Ring, 4096 * 3), model).unwrap();
                    (row, Row::measure_barrier(&group, "shared").unwrap())
                })
            });
            for thread in threads.collect::<Vec<_>>() {
                let (row, barrier) = thread.join().unwrap();
                assert_eq!((barrier.operation, barrier.ranks, barrier.bytes), (Operation::Barrier, ranks, 0));
                assert!(barrier.calls >= CALLS.0 as usize && barrier.min_us > 0.0, "{barrier:?}");
                assert!(
                    (CALLS.0 as usize..=CALLS.1 as usize).contains(&row.calls) && row.min_us <= row.median_us,
                    "{row:?}"
                );
                assert_eq!(row.received, Some(4096 * 3 * 2 * (ranks as u64 - 1) / ranks as u64), "{row:?}");
            }
        }
    }

    #[test]
    fn a_wrong_sum_is_found() {
        let found = time_sum((0, 2), 8, |_| Ok(()), Ok, |message| message);
        assert_eq!(found, Err("a sum over 2 ranks is 1 instead of 3".to_owned()));
    }
}
