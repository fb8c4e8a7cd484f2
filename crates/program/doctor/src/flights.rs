//! The flight records of a failed attempt, side by side: the operation that each rank was in, or its activity
//! otherwise.

use std::collections::BTreeMap;

use enmasse_comm::FlightRecord;
use serde_json::{Value, json};

use crate::rank_end::number;
use crate::report::Finding;

/// Number of groups of ranks that are listed.
const LISTED: usize = 8;

/// Where a rank was when its group failed, ordered by progress.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place<'a> {
    /// The latest operation that it had begun, and its number; empty and 0 before the first.
    sequence: u64,
    operation: &'a str,
    /// Whether it was still in it; otherwise the activity of its own code.
    state: State<'a>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State<'a> {
    Behind(&'a str),
    Within,
}

impl<'a> Place<'a> {
    /// The place, and for how many milliseconds the rank had been there.
    fn of(record: &'a FlightRecord) -> (Self, u64) {
        let begun = record.operations.iter().rev().find_map(|op| Some((op, op.started?)));
        let (sequence, operation) = begun.map_or((0, ""), |(op, _)| (op.sequence, op.operation.as_str()));
        let (state, since) = match begun {
            Some((op, started)) if op.ended.is_none() => (State::Within, started),
            _ => (State::Behind(&record.activity), record.since),
        };
        (Place { sequence, operation, state }, record.time.saturating_sub(since))
    }

    fn words(&self, ranks: &[usize], milliseconds: u64) -> String {
        let was = if ranks.len() == 1 { "was" } else { "were" };
        let who = number(ranks);
        let seconds = milliseconds / 1000;
        let Place { sequence, operation, state } = self;
        match state {
            State::Within => format!("{who} {was} in {operation} #{sequence} for {seconds} s"),
            State::Behind(activity) if *sequence == 0 => {
                format!("{who} {was} {activity} for {seconds} s, before any operation")
            }
            State::Behind(activity) => {
                format!("{who} {was} {activity} for {seconds} s, after {operation} #{sequence}")
            }
        }
    }
}

/// A finding with the least advanced ranks first; `None` without records. `world_size` is the number of ranks.
pub fn finding(flights: &[(usize, FlightRecord)], world_size: Option<usize>) -> Option<Finding> {
    if flights.is_empty() {
        return None;
    }
    let mut places: BTreeMap<Place, (Vec<usize>, u64)> = BTreeMap::new();
    let mut facts: Vec<Value> = Vec::new();
    for (rank, record) in flights {
        let (place, milliseconds) = Place::of(record);
        facts.push(json!({
            "rank": rank,
            "sequence": place.sequence,
            "operation": place.operation,
            "within": place.state == State::Within,
            "activity": record.activity,
            "milliseconds": milliseconds,
        }));
        let (ranks, longest) = places.entry(place).or_default();
        ranks.push(*rank);
        *longest = (*longest).max(milliseconds);
    }
    let mut told: Vec<String> =
        places.iter().take(LISTED).map(|(place, (ranks, longest))| place.words(ranks, *longest)).collect();
    if places.len() > LISTED {
        told.push("and other ranks, further on".to_owned());
    }
    let lacks = |rank: &usize| flights.iter().all(|(of, _)| of != rank);
    let lacking: Vec<usize> = (0..world_size.unwrap_or(0)).filter(lacks).take(LISTED).collect();
    if !lacking.is_empty() {
        told.push(format!("no record of {}", number(&lacking)));
    }
    Some(Finding::ok("flight", told.join("; ")).fact("ranks", facts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use enmasse_comm::FlightOperation;

    /// A record of operations by their states: ended, started or queued.
    fn record(activity: &str, seconds: u64, states: &str) -> FlightRecord {
        let operation = |(place, state): (usize, char)| FlightOperation {
            sequence: place as u64 + 7,
            operation: format!("sum {}", place + 1),
            queued: 1000,
            started: (state != 'q').then_some(99_000 - 30_000),
            ended: (state == 'e').then_some(70_000),
        };
        FlightRecord {
            time: 99_000,
            activity: activity.to_owned(),
            since: 99_000 - seconds * 1000,
            operations: states.chars().enumerate().map(operation).collect(),
        }
    }

    #[test]
    fn ranks_side_by_side() {
        let check = |records: &[FlightRecord], world_size: Option<usize>, expected: Option<&str>| {
            let flights: Vec<_> = records.iter().cloned().enumerate().collect();
            assert_eq!(finding(&flights, world_size).map(|finding| finding.text).as_deref(), expected);
        };
        check(&[], Some(2), None);
        let waiting = record("computing a step", 31, "eesq");
        let late = record("reading a batch", 40, "ee");
        let told = "rank 1 was reading a batch for 40 s, after sum 2 #8; ranks 0 2 were in sum 3 #9 for 30 s";
        check(&[waiting.clone(), late.clone(), waiting.clone()], Some(3), Some(told));
        let told = "rank 1 was starting for 2 s, before any operation; rank 0 was in sum 3 #9 for 30 s; no record of ranks 2 3";
        check(&[waiting.clone(), record("starting", 2, "")], Some(4), Some(told));
        // An operation that was requested but not begun is not progress.
        check(
            &[record("reading a batch", 40, "eq")],
            None,
            Some("rank 0 was reading a batch for 40 s, after sum 1 #7"),
        );
        let many: Vec<_> = (1..=LISTED + 1).map(|count| record("at it", 1, &"e".repeat(count))).collect();
        let flights: Vec<_> = many.into_iter().enumerate().collect();
        let text = finding(&flights, None).unwrap().text;
        assert!(text.ends_with("after sum 8 #14; and other ranks, further on"), "{text}");
    }

    #[test]
    fn scripts_get_every_rank() {
        let flights = [(3, record("reading a batch", 40, "es"))];
        let facts = finding(&flights, None).unwrap().facts;
        let expected = json!([{
            "rank": 3, "sequence": 8, "operation": "sum 2", "within": true, "activity": "reading a batch",
            "milliseconds": 30_000,
        }]);
        assert_eq!(facts["ranks"], expected);
    }
}
