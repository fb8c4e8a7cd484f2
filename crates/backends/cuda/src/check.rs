//! Proves that a sequence reads only what has been written: before a step, or by earlier work of the step; that nothing
//! touches a bucket while ranks sum it; and that events order the two streams wherever they touch the same bytes.
//!
//! Scratch belongs to one instruction, so its contents count as lost when the next one begins.

use std::collections::{BTreeMap, HashMap};

use crate::sequence::{Accesses, Call, Sequence, StreamKind};
use crate::work::{Memory, Span};

/// Checks a sequence; `written` is what has contents before a step. The error names the work and the bytes.
pub(crate) fn check(sequence: &Sequence, written: &[Span]) -> Result<(), String> {
    let mut memory = Written::default();
    written.iter().for_each(|&span| memory.add(span));
    let mut instruction = None;
    let mut summed: HashMap<usize, Vec<Span>> = HashMap::new();
    let mut streams = Streams::default();
    for work in &sequence.work {
        let fail = |why: String| Err(format!("instruction {}: {} {why}", work.instruction, work.call));
        if instruction.replace(work.instruction) != Some(work.instruction) {
            memory.0.remove(&Memory::Scratch);
        }
        let accesses = work.call.accesses();
        if let Some(span) = accesses.reads.iter().find(|&&span| !memory.covers(span)) {
            return fail(format!("reads {span}, which nothing has written"));
        }
        if let Err(why) = streams.take(work.lane, &work.call) {
            return fail(why);
        }
        match &work.call {
            Call::Start(bucket, exchange) => drop(summed.insert(*bucket, exchange.from.clone())),
            Call::Finish(bucket, _) => {
                if summed.remove(bucket).is_none() {
                    return fail("was not started".to_owned());
                }
            }
            _ => {
                if let Some(span) = accesses.all().find(|span| summed.values().flatten().any(|s| s.overlaps(*span))) {
                    return fail(format!("touches {span}, which is being summed"));
                }
            }
        }
        accesses.writes.into_iter().for_each(|span| memory.add(span));
    }
    match summed.keys().next() {
        Some(bucket) => Err(format!("nothing waits for bucket {bucket}")),
        None => streams.end(),
    }
}

/// The work of both streams, and how much of each the other is known to follow.
#[derive(Default)]
struct Streams<'a> {
    /// Work of each stream.
    work: [Vec<&'a Call>; 2],
    /// How much work of the other stream has ended before this stream's next work.
    follows: [usize; 2],
    /// The stream that recorded an event, and how much work it had.
    events: HashMap<usize, (StreamKind, usize)>,
}

impl<'a> Streams<'a> {
    /// Adds work to a stream; an error if it touches what the other may not have done with.
    fn take(&mut self, lane: StreamKind, call: &'a Call) -> Result<(), String> {
        let (own, other) = match lane {
            StreamKind::Compute => (0, 1),
            StreamKind::Collectives => (1, 0),
        };
        match call {
            Call::Record(event) => drop(self.events.insert(*event, (lane, self.work[own].len()))),
            Call::Await(event) => {
                let &(of, place) = self.events.get(event).ok_or("was not recorded")?;
                if of != lane {
                    self.follows[own] = self.follows[own].max(place);
                }
            }
            _ => {
                let at_once = &self.work[other][self.follows[own]..];
                if let Some((span, work)) = at_once.iter().find_map(|work| Some((conflict(call, work)?, work))) {
                    return Err(format!("touches {span} without waiting for the other stream: {work}"));
                }
            }
        }
        self.work[own].push(call);
        Ok(())
    }

    /// The next step, and the host, wait for the first stream alone.
    fn end(&self) -> Result<(), String> {
        let mut rest = self.work[1][self.follows[0]..].iter();
        match rest.find(|call| !matches!(call, Call::Record(_) | Call::Await(_))) {
            Some(call) => Err(format!("nothing waits for {call}")),
            None => Ok(()),
        }
    }
}

/// Bytes that one call writes while the other touches them.
fn conflict(one: &Call, other: &Call) -> Option<Span> {
    let (one, other) = (one.accesses(), other.accesses());
    let conflict =
        |a: &Accesses, b: &Accesses| a.writes.iter().copied().find(|span| b.all().any(|o| o.overlaps(*span)));
    conflict(&one, &other).or_else(|| conflict(&other, &one))
}

/// The written bytes of each memory, as ranges that neither overlap nor touch: end by start.
#[derive(Default)]
struct Written(HashMap<Memory, BTreeMap<usize, usize>>);

impl Written {
    fn add(&mut self, Span { place, bytes }: Span) {
        let ranges = self.0.entry(place.memory).or_default();
        let mut start = place.offset;
        let mut end = place.offset + bytes;
        let joined: Vec<(usize, usize)> =
            ranges.range(..=end).map(|(&start, &end)| (start, end)).filter(|&(_, other)| other >= start).collect();
        for (first, last) in joined {
            ranges.remove(&first);
            (start, end) = (start.min(first), end.max(last));
        }
        ranges.insert(start, end);
    }

    fn covers(&self, Span { place, bytes }: Span) -> bool {
        let ranges = self.0.get(&place.memory);
        let before = ranges.and_then(|ranges| ranges.range(..=place.offset).next_back());
        bytes == 0 || before.is_some_and(|(_, &end)| end >= place.offset + bytes)
    }
}

#[cfg(test)]
mod tests {
    use enmasse_tensor::DType;

    use super::*;
    use crate::sequence::{Collective, Exchange, Joins, Work};
    use crate::work::Place;

    fn span(memory: Memory, range: std::ops::Range<usize>) -> Span {
        Span { place: Place { memory, offset: range.start }, bytes: range.len() }
    }

    #[test]
    fn reads_follow_writes() {
        let (a, scratch) = (Memory::Rounded, Memory::Scratch);
        let copy =
            |instruction, from, to| Work { instruction, lane: StreamKind::Compute, call: Call::Copy { from, to } };
        let check = |work: &[Work], expected: Option<&str>| {
            let sequence = Sequence { work: work.to_vec(), ..Sequence::default() };
            let found = check(&sequence, &[span(a, 0..8)]).err();
            match expected {
                None => assert_eq!(found, None),
                Some(part) => assert!(found.as_ref().is_some_and(|found| found.contains(part)), "{found:?}"),
            }
        };
        check(&[copy(0, span(a, 0..8), span(a, 8..16)), copy(1, span(a, 4..12), span(a, 20..28))], None);
        check(&[copy(0, span(a, 0..9), span(a, 8..17))], Some("instruction 0: copy"));
        check(
            &[copy(0, span(a, 0..4), span(a, 12..16)), copy(1, span(a, 0..16), span(a, 0..16))],
            Some("rounded+0:16"),
        );
        // Two halves make a whole, whatever their order.
        let halves = [copy(0, span(a, 0..4), span(a, 12..16)), copy(0, span(a, 0..4), span(a, 8..12))];
        check(&[&halves[..], &[copy(1, span(a, 0..16), span(a, 16..32))]].concat(), None);
        let first = copy(0, span(a, 0..8), span(scratch, 0..8));
        check(&[first.clone(), copy(0, span(scratch, 2..4), span(a, 8..10))], None);
        check(&[first, copy(1, span(scratch, 2..4), span(a, 8..10))], Some("instruction 1: copy"));
        // Nothing touches a bucket while it is summed, and each sum is waited for.
        let of = |range: std::ops::Range<usize>| Exchange {
            joins: Joins::Sum,
            from: vec![span(a, range.clone())],
            to: span(a, range),
            staging: 0,
        };
        let start = |range| Work { instruction: 1, lane: StreamKind::Compute, call: Call::Start(0, of(range)) };
        let finish = Work { instruction: 3, lane: StreamKind::Compute, call: Call::Finish(0, span(a, 0..4)) };
        let between = |from, to| vec![start(0..4), copy(2, from, to), finish.clone()];
        check(&between(span(a, 4..8), span(a, 8..12)), None);
        check(&between(span(a, 3..8), span(a, 8..13)), Some("touches rounded+3:5, which is being summed"));
        check(&between(span(a, 4..8), span(a, 0..4)), Some("which is being summed"));
        check(&[start(8..12), finish.clone()], Some("instruction 1: start bucket 0"));
        check(&[start(0..4)], Some("nothing waits for bucket 0"));
        check(&[finish], Some("was not started"));
        let exchange = |from| Work {
            instruction: 1,
            lane: StreamKind::Compute,
            call: Call::Exchange(Exchange { to: span(a, 8..12), ..of(from) }),
        };
        check(&[exchange(0..4), copy(2, span(a, 8..12), span(a, 0..4))], None);
        check(&[exchange(8..12)], Some("sum over ranks"));
        // Events order the streams.
        let at = |lane, call| Work { instruction: 1, lane, call };
        let own = |call| at(StreamKind::Compute, call);
        let beside = |call| at(StreamKind::Collectives, call);
        let write = own(Call::Copy { from: span(a, 0..4), to: span(a, 8..12) });
        let sum = beside(Call::Collective(Collective::AllReduce { at: span(a, 8..12), dtype: DType::F32 }));
        let read = own(Call::Copy { from: span(a, 8..12), to: span(a, 0..4) });
        let [begin, begun] = [own(Call::Record(0)), beside(Call::Await(0))];
        let [end, ended] = [beside(Call::Record(1)), own(Call::Await(1))];
        let all = [&write, &begin, &begun, &sum, &end, &ended, &read];
        let without = |left_out: &[usize]| {
            let kept = all.iter().enumerate().filter(|(at, _)| !left_out.contains(at));
            kept.map(|(_, work)| (*work).clone()).collect::<Vec<_>>()
        };
        check(&without(&[]), None);
        check(
            &without(&[2]),
            Some("ncclAllReduce f32 (rounded+8:4) -> rounded+8:4 touches rounded+8:4 without waiting"),
        );
        check(&without(&[5]), Some("copy (rounded+8:4) -> rounded+0:4 touches rounded+8:4 without waiting"));
        check(&without(&[5, 6]), Some("nothing waits for ncclAllReduce"));
        check(&without(&[1]), Some("wait for event 0 was not recorded"));
        // An event before the sum does not cover it.
        check(&[&write, &begin, &begun, &end, &sum, &ended, &read].map(Clone::clone), Some("without waiting"));
    }
}
