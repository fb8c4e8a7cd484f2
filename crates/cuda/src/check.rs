//! Proves that a sequence reads only what has been written: before a step, or by earlier work of the step.
//!
//! Scratch belongs to one instruction, so its contents count as lost when the next one begins.

use std::collections::{BTreeMap, HashMap};

use crate::sequence::{Call, Sequence};
use crate::work::{Argument, Memory, Span};

/// Checks a sequence; `written` is what has contents before a step. The error names the work and the bytes.
pub(crate) fn check(sequence: &Sequence, written: &[Span]) -> Result<(), String> {
    let mut memory = Written::default();
    written.iter().for_each(|&span| memory.add(span));
    let mut instruction = None;
    for work in &sequence.work {
        if instruction.replace(work.instruction) != Some(work.instruction) {
            memory.0.remove(&Memory::Scratch);
        }
        if let Some(span) = reads(&work.call).into_iter().find(|&span| !memory.covers(span)) {
            return Err(format!(
                "instruction {}: {} reads {span}, which nothing has written",
                work.instruction, work.call
            ));
        }
        writes(&work.call).into_iter().for_each(|span| memory.add(span));
    }
    Ok(())
}

/// What a call reads before it has written it.
pub(crate) fn reads(call: &Call) -> Vec<Span> {
    match call {
        Call::Kernel(kernel) => (kernel.arguments.iter())
            .filter_map(|argument| match *argument {
                Argument::Read(span) | Argument::Change(span) => Some(span),
                Argument::Write(_) | Argument::Null | Argument::U32(_) | Argument::U64(_) | Argument::F32(_) => None,
            })
            .collect(),
        Call::Convolution(convolution) => convolution.accesses().0,
        Call::Product(product) => product.accesses().0,
        Call::Copy { from, .. } | Call::Read { from, .. } => vec![*from],
    }
}

/// What a call has written when it ends.
pub(crate) fn writes(call: &Call) -> Vec<Span> {
    match call {
        Call::Kernel(kernel) => (kernel.arguments.iter())
            .filter_map(|argument| match *argument {
                Argument::Write(span) | Argument::Change(span) => Some(span),
                Argument::Read(_) | Argument::Null | Argument::U32(_) | Argument::U64(_) | Argument::F32(_) => None,
            })
            .collect(),
        Call::Convolution(convolution) => vec![convolution.accesses().1],
        Call::Product(product) => vec![product.accesses().1],
        Call::Copy { to, .. } => vec![*to],
        Call::Read { .. } => Vec::new(),
    }
}

/// The written bytes of each memory, as ranges that neither overlap nor touch: end by start.
#[derive(Default)]
struct Written(HashMap<Memory, BTreeMap<usize, usize>>);

impl Written {
    fn add(&mut self, Span { place, bytes }: Span) {
        let ranges = self.0.entry(place.memory).or_default();
        let (mut start, mut end) = (place.offset, place.offset + bytes);
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
    use super::*;
    use crate::sequence::Work;
    use crate::work::Place;

    fn span(memory: Memory, range: std::ops::Range<usize>) -> Span {
        Span { place: Place { memory, offset: range.start }, bytes: range.len() }
    }

    #[test]
    fn reads_follow_writes() {
        let (a, scratch) = (Memory::Rounded, Memory::Scratch);
        let copy = |instruction, from, to| Work { instruction, call: Call::Copy { from, to } };
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
    }
}
