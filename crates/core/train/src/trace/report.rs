//! The end of a trace: the ranks put their times on one clock, add up how much of their sums was hidden, and pass their
//! events to rank 0 one after another, so that it never holds more than one rank's.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use enmasse_comm::{Clock, ClockOffset, Group, Reduction, TimedOperation};
use enmasse_device::{DeviceError, Program};
use enmasse_graph::ops::{
    AllReduceStart, AllReduceWait, ReduceScatterStart, ReduceScatterWait, ReduceStart, ReduceWait,
};
use enmasse_graph::{Op, Plan};
use serde_json::{Value, json};

use super::chrome::{SpanTimes, TraceProcess, Track};
use super::overlap::{Overlap, Sum};
use super::{Recording, Traced, compare_clocks};
use crate::TrainError;
use crate::run_writer::RunWriter;

/// Bytes of a rank's events that rank 0 holds at a time.
const PIECE: usize = 4 << 20;

/// Converts this rank's instants to the clock of rank 0.
struct Axis {
    clock: Clock,
    /// This clock's time when the clocks were compared, and how far it was ahead of rank 0's.
    before: [i64; 2],
    after: [i64; 2],
    /// The zero of the trace.
    origin: i64,
}

impl Axis {
    /// Nanoseconds since the zero of the trace. Clocks drift apart steadily, so between the two comparisons a line holds.
    fn at(&self, instant: Instant) -> i64 {
        let [from, first] = self.before;
        let [to, last] = self.after;
        let time = self.clock.at(instant);
        let share = (time - from) as f64 / (to - from).max(1) as f64;
        time - first - (share * (last - first) as f64) as i64 - self.origin
    }

    fn span(&self, [began, ended]: [Instant; 2]) -> SpanTimes {
        [self.at(began), self.at(ended)]
    }
}

impl Recording {
    /// Ends the recording on all ranks, and writes it on the rank that has a writer. `device` names this rank's device.
    pub(crate) fn finish(
        mut self,
        program: &mut dyn Program,
        group: Option<&Group>,
        device: &str,
        writer: Option<&RunWriter>,
    ) -> Result<Traced, TrainError> {
        self.at("");
        let instructions = program.take_timeline();
        let after = compare_clocks(&self.clock, group)?;
        let (rank, ranks) = group.map_or((0, 1), |group| (group.rank(), group.world_size()));
        let axis = self.axis(&after, rank, group)?;
        let plan = program.plans().train.as_ref().ok_or_else(not_compiled)?;
        let sums = self.overlap(&axis, plan, group)?;

        let host = group.and_then(|group| group.host(rank)).map_or(String::new(), |host| format!("{host}, "));
        let mut process = TraceProcess::new(rank, &format!("rank {rank}, {host}{device}"));
        self.write_training(&axis, &mut process);
        for span in &instructions {
            let node = &plan.instructions[span.instruction];
            let name = match node.op {
                Op::AllReduceStart(AllReduceStart { bucket })
                | Op::AllReduceWait(AllReduceWait { bucket })
                | Op::ReduceScatterStart(ReduceScatterStart { bucket })
                | Op::ReduceScatterWait(ReduceScatterWait { bucket })
                | Op::ReduceStart(ReduceStart { bucket })
                | Op::ReduceWait(ReduceWait { bucket }) => {
                    format!("{} of bucket {bucket}", node.op.name())
                }
                ref other => format!("{} {}", other.name(), node.layer),
            };
            let args = json!({"phase": node.phase.name(), "instruction": span.instruction, "shard": span.shard});
            process.span(Track::Instructions, name.trim_end(), axis.span([span.began, span.ended]), &args);
        }
        self.write_operations(&axis, &mut process);

        let worst = |offsets: &[ClockOffset]| offsets.iter().map(|offset| offset.accuracy).max().unwrap_or(0);
        // Each of two ranks may be off, in opposite directions.
        let accuracy = Duration::from_nanos(2 * worst(&self.before.1).max(worst(&after.1)) as u64);
        let mut left_out = [self.operations.as_ref().map_or(0, |operations| operations.lost()) as i64];
        group.map_or(Ok(()), |group| group.all_reduce(&mut left_out))?;
        let mut traced =
            Traced { path: None, first_step: self.first_step, steps: self.steps.len() as u64, accuracy, sums };
        let about = about(&traced, plan, ranks, left_out[0]);
        traced.path = write(&about, &process.text(), group, writer)?;
        Ok(traced)
    }

    fn axis(
        &self,
        after: &(Instant, Vec<ClockOffset>),
        rank: usize,
        group: Option<&Group>,
    ) -> Result<Axis, TrainError> {
        let point = |(instant, offsets): &(Instant, Vec<ClockOffset>)| [self.clock.at(*instant), offsets[rank].ahead];
        let mut axis = Axis { clock: self.clock.clone(), before: point(&self.before), after: point(after), origin: 0 };
        let mut origin = [self.steps.first().map_or(0, |&[began, _]| axis.at(began))];
        group.map_or(Ok(()), |group| group.all_reduce_with(&mut origin, Reduction::Min))?;
        axis.origin = origin[0];
        Ok(axis)
    }

    /// The operations of a step, in order.
    fn of_step(&self, [began, ended]: [Instant; 2]) -> impl Iterator<Item = &TimedOperation> {
        let all = self.operations.iter().flat_map(|operations| operations.operations());
        all.filter(move |operation| began <= operation.queued && operation.queued <= ended)
    }

    /// The buckets of a step: the operations that the plan starts and later waits for.
    fn buckets(&self, step: [Instant; 2]) -> impl Iterator<Item = &TimedOperation> {
        self.of_step(step).filter(|operation| operation.in_background)
    }

    /// How much of the sums was hidden on all ranks; `None` if there were none, or a rank could not record them all.
    fn overlap(&self, axis: &Axis, plan: &Plan, group: Option<&Group>) -> Result<Option<Overlap>, TrainError> {
        let Some(group) = group else { return Ok(None) };
        let starts = |op: &Op| matches!(op, Op::AllReduceStart(_) | Op::ReduceScatterStart(_) | Op::ReduceStart(_));
        let started = plan.instructions.iter().filter(|node| starts(&node.op)).count();
        // When each sum of each step was queued, and when its turn came.
        let own: Vec<i64> = (self.steps.iter().flat_map(|&step| self.buckets(step)))
            .flat_map(|sum| [axis.at(sum.queued), axis.at(sum.started)])
            .collect();
        let is_whole = self.steps.iter().all(|&step| self.buckets(step).count() == started) && started > 0;
        let mut whole = [i64::from(is_whole)];
        group.all_reduce_with(&mut whole, Reduction::Min)?;
        if whole[0] == 0 {
            return Ok(None);
        }
        // The last of all ranks.
        let mut latest = own;
        group.all_reduce_with(&mut latest, Reduction::Max)?;
        let mut latest = latest.as_chunks::<2>().0.iter();
        let seconds = |nanoseconds: i64| nanoseconds as f64 / 1e9;
        let mut found = Overlap::default();
        for &step in &self.steps {
            let joined = self.buckets(step).zip(latest.by_ref().take(started));
            let sum = |(own, &[ready, began]): (&TimedOperation, &[i64; 2])| Sum {
                ready: seconds(ready),
                began: seconds(began),
                ended: seconds(axis.at(own.ended)),
            };
            let sums: Vec<Sum> = joined.map(sum).collect();
            let waits = self.of_step(step).filter_map(|operation| operation.awaited);
            let waits: Vec<[f64; 2]> = waits.map(|wait| axis.span(wait).map(seconds)).collect();
            let last = self.buckets(step).last().map_or(0.0, |sum| seconds(axis.at(sum.queued)));
            found = found.plus(Overlap::of_step(&sums, last, &waits));
        }
        let mut all = [found.seconds, found.hidden, found.hideable];
        group.all_reduce(&mut all)?;
        let [seconds, hidden, hideable] = all;
        Ok(Some(Overlap { seconds, hidden, hideable }))
    }

    /// What the thread that trains did, and within that its waits for operations.
    fn write_training(&self, axis: &Axis, process: &mut TraceProcess) {
        let activities = self.activities.iter().map(|&(name, times)| (name.to_owned(), axis.span(times)));
        let waits = self.named_operations().filter_map(|(name, operation)| {
            operation.awaited.map(|times| (format!("waiting for {name}"), axis.span(times)))
        });
        let mut spans: Vec<(String, SpanTimes)> = activities.chain(waits).collect();
        // One that encloses others comes before them.
        spans.sort_by_key(|(_, [began, ended])| (*began, -ended));
        spans.iter().for_each(|(name, times)| process.span(Track::Training, name, *times, &json!({})));
    }

    fn write_operations(&self, axis: &Axis, process: &mut TraceProcess) {
        for (name, operation) in self.named_operations() {
            let times = axis.span([operation.started, operation.ended]);
            let queued = (times[0] - axis.at(operation.queued)) as f64 / 1e3;
            let args = json!({
                "operation": operation.description(), "number": operation.sequence(), "bytes": operation.bytes,
                "queued_us": queued,
            });
            process.span(Track::Communication, &name, times, &args);
        }
    }

    /// The operations of all steps: the buckets in the order in which the plan starts them, others by what they do.
    fn named_operations(&self) -> impl Iterator<Item = (String, &TimedOperation)> {
        self.steps.iter().flat_map(|&step| {
            self.of_step(step).scan(0, |bucket, operation| {
                let name = match operation.in_background {
                    true => format!("bucket {bucket}"),
                    false => operation.description(),
                };
                *bucket += usize::from(operation.in_background);
                Some((name, operation))
            })
        })
    }
}

fn not_compiled() -> DeviceError {
    DeviceError::Unsupported("the program was compiled only for evaluation".into())
}

/// What the file says of itself.
fn about(traced: &Traced, plan: &Plan, ranks: usize, left_out: i64) -> Value {
    let sums = traced.sums.map(|sums| {
        json!({
            "seconds": sums.seconds, "hidden_seconds": sums.hidden, "hideable_seconds": sums.hideable,
            "hidden": sums.share(), "hidden_of_hideable": sums.share_of_hideable(),
        })
    });
    json!({
        "program": concat!("enmasse ", env!("CARGO_PKG_VERSION")),
        "model": plan.model,
        "ranks": ranks,
        "first_step": traced.first_step,
        "steps": traced.steps,
        "clock": "rank 0's",
        "clock_accuracy_us": traced.accuracy.as_nanos() as f64 / 1e3,
        "operations_left_out": left_out,
        "sums_of_gradients": sums,
    })
}

/// Passes the events of all ranks to the one that writes, and returns the path there.
fn write(
    about: &Value,
    own: &str,
    group: Option<&Group>,
    writer: Option<&RunWriter>,
) -> Result<Option<PathBuf>, TrainError> {
    let ranks = group.map_or(1, Group::world_size);
    let Some(writer) = writer else {
        for rank in 0..ranks {
            // Nothing is written here, so nothing can go wrong with it.
            let _ = pass(rank, own, group, &mut |_| Ok(()))?;
        }
        return Ok(None);
    };
    // Not an error of the file: rank 0 returns it as it is.
    let mut failed = None;
    let path = writer.folder.write_trace(|file| {
        write!(file, "{{\"displayTimeUnit\":\"ms\",\"otherData\":{about},\"traceEvents\":[")?;
        for rank in 0..ranks {
            file.write_all(if rank == 0 { b"\n" } else { b",\n" })?;
            let written = pass(rank, own, group, &mut |piece| file.write_all(piece));
            written.unwrap_or_else(|error| {
                failed = Some(error);
                Err(io::Error::other("another rank has failed"))
            })?;
        }
        file.write_all(b"\n]}\n")
    });
    failed.map_or(Ok(()), Err)?;
    Ok(Some(path?))
}

/// Gives the events of a rank to every rank, in pieces.
fn pass(
    rank: usize,
    own: &str,
    group: Option<&Group>,
    take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<io::Result<()>, TrainError> {
    let Some(group) = group else { return Ok(take(own.as_bytes())) };
    let mut length = [own.len() as i64];
    group.broadcast(&mut length, rank)?;
    let length = length[0] as usize;
    let mut piece = Vec::new();
    for start in (0..length).step_by(PIECE) {
        let range = start..length.min(start + PIECE);
        piece.resize(range.len(), 0);
        if group.rank() == rank {
            piece.copy_from_slice(&own.as_bytes()[range]);
        }
        group.broadcast(&mut piece, rank)?;
        if let Err(error) = take(&piece) {
            return Ok(Err(error));
        }
    }
    Ok(Ok(()))
}
